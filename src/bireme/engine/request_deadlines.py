"""RequestDeadlines: when the callers of one model version want their answers at the latest, whatever runs for them.

A queue timeout (`timeout_us`) ends when a request begins to run. A deadline goes on: past it the caller gets
`DeadlineExceeded` at once, a request that waits leaves the queue, and code that runs for it is told to stop. It comes from the
request parameter `REQUEST_PARAMETER`, else from the model's config parameter `deadline_us`; what a model calls inherits it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from bireme.config import ModelConfig
from bireme.config.validate.general import DEADLINE_PARAMETER, MAX_DEADLINE_US
from bireme.engine.timer import Deadline, DeadlineTimer
from bireme.scheduling.deadlines import Deadlines
from bireme.telemetry.spans import TRACE_PARAMETER, begin_trace
from bireme.types import Execution, InferenceRequest, InvalidArgument

REQUEST_PARAMETER: Final = "bireme_deadline_us"
"""Of a request: microseconds until its caller needs the answer; 0: any time will do. No model sees it."""

_now_ns = time.monotonic_ns


class RequestDeadlines:
    """The deadlines of the open requests of one model version, with one alarm for all of them. Loop thread only."""

    __slots__ = ("_alarm", "_deadlines", "_expire", "_timer", "default_ns")

    def __init__(
        self, timer: DeadlineTimer, default_ns: int, expire: Callable[[InferenceRequest], None]
    ) -> None:
        """``expire`` is called with each request whose deadline has passed, unless it was discarded before."""
        self.default_ns = default_ns
        """What requests without a deadline of their own get, from their acceptance; 0: none."""
        self._timer = timer
        self._expire = expire
        self._deadlines: Deadlines[InferenceRequest] = Deadlines()
        self._alarm: Deadline | None = None

    def add(self, request: InferenceRequest, now_ns: int) -> None:
        """Watch ``request``; one without a deadline (0) gets the model's."""
        if not request.deadline_ns:
            request.deadline_ns = now_ns + self.default_ns
        if request.deadline_ns > 0:
            self.watch(request, request.deadline_ns)

    def watch(self, request: InferenceRequest, until_ns: int) -> None:
        """Let ``request`` expire at ``until_ns``, whatever its deadline."""
        self._deadlines.add(request, until_ns)
        self._set_alarm(until_ns)

    def concern(self, request: InferenceRequest) -> bool:
        """Whether ``request`` will have a deadline: the model's, its own, or its caller's. Any thread."""
        caller, parameters = request.parent, request.parameters
        return (
            self.default_ns > 0
            or request.deadline_ns > 0
            or (caller is not None and bool(caller.requests) and caller.requests[0].deadline_ns > 0)
            or (parameters is not None and REQUEST_PARAMETER in parameters)
        )

    def discard(self, request: InferenceRequest) -> None:
        """``request`` has been answered."""
        self._deadlines.discard(request)

    def _set_alarm(self, when_ns: int) -> None:
        """Look again at ``when_ns``. An earlier alarm stays: it only looks once too often."""
        if self._alarm is not None:
            if self._alarm.when_ns <= when_ns:
                return
            self._alarm.cancel()
        self._alarm = self._timer.call_at(when_ns, self._ring)

    def _ring(self) -> None:
        self._alarm = None
        for request, _ in self._deadlines.pop_expired(_now_ns()):
            self._expire(request)
        nearest_ns = self._deadlines.nearest_ns()
        if nearest_ns is not None:
            self._set_alarm(nearest_ns)

    def close(self) -> None:
        """Watch nothing any more, and let go of the model."""
        self._expire = _ignore
        self._deadlines.clear()
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None

    def __len__(self) -> int:
        return len(self._deadlines)


def take_deadline(request: InferenceRequest, start_ns: int = 0) -> None:
    """Take the parameter off ``request``, so that no model sees it, and set the deadline that it asks for.

    It counts from ``start_ns`` (`time.monotonic_ns`); 0: from now.

    Raises:
        InvalidArgument: it is no number of microseconds.
    """
    parameters = dict(request.parameters or {})
    value = parameters.pop(REQUEST_PARAMETER)
    request.parameters = parameters or None
    if isinstance(value, str) and value.isdecimal():  # a header that the front end forwards
        value = int(value[:20])
    if type(value) is not int or not 0 <= value <= MAX_DEADLINE_US:
        raise InvalidArgument(
            f"{request.id_prefix}parameter '{REQUEST_PARAMETER}': expected microseconds from 0 to {MAX_DEADLINE_US}, "
            f"got {value!r:.40}"
        )
    request.deadline_ns = (start_ns or _now_ns()) + value * 1000 if value else -1


def take_parameters(request: InferenceRequest, start_ns: int = 0) -> None:
    """Do what the parameters of a client's ``request`` ask of the server itself, and take those off.

    A deadline counts from ``start_ns``, as for `take_deadline`.

    Raises:
        InvalidArgument: the value of one is wrong.
    """
    asked = request.parameters or {}
    if TRACE_PARAMETER in asked:
        begin_trace(request)
    if REQUEST_PARAMETER in asked:
        take_deadline(request, start_ns)


def inherit_deadline(request: InferenceRequest, caller: Execution) -> None:
    """Let ``request`` have no more time than those have for whom ``caller`` makes it: the last one's, if all have one."""
    latest_ns = 0
    for called_for in caller.requests:
        if called_for.deadline_ns <= 0:
            return
        latest_ns = max(latest_ns, called_for.deadline_ns)
    if latest_ns and not 0 < request.deadline_ns <= latest_ns:
        request.deadline_ns = latest_ns


def default_deadline_ns(config: ModelConfig) -> int:
    """Return the deadline of a model's requests, counted from their acceptance; 0: none."""
    return int(config.parameter(DEADLINE_PARAMETER, "0")) * 1000


def _ignore(request: InferenceRequest) -> None:
    """Let a request be."""
