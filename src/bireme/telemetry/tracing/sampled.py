"""SampledTrace: one sampled request, from the moment it came to the moment its last answer has left."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable
from typing import Final

from bireme.telemetry.spans import begin_sample, leave_sample
from bireme.telemetry.tracing.context import TraceContext
from bireme.telemetry.tracing.settings import TraceSetting
from bireme.types import InferenceRequest, InferenceResponse, Respond, Sample, Span

MAX_EVENTS: Final = 1000
"""So many events of the front end one trace holds: a decoupled model may answer without end."""
_numbers: Final = itertools.count(1)
_now_ns = time.monotonic_ns


class TraceSource:
    """A front end, as its events are named."""

    __slots__ = ("receive_end", "receive_start", "send_end", "send_start")

    def __init__(self, receive: str, send: str) -> None:
        self.receive_start = f"{receive}_START"
        self.receive_end = f"{receive}_END"
        self.send_start = f"{send}_START"
        self.send_end = f"{send}_END"


HTTP: Final = TraceSource("HTTP_RECV", "HTTP_SEND")
GRPC: Final = TraceSource("GRPC_WAITREAD", "GRPC_SEND")


class SampledTrace:
    """The spans of one sampled request, and what its front end did. Made on the loop thread."""

    __slots__ = (
        "_finish",
        "_respond",
        "_source",
        "end_ns",
        "events",
        "parent",
        "root",
        "root_span_id",
        "setting",
        "start_ns",
        "takes_tensors",
        "trace_id",
        "wall_offset_ns",
    )

    def __init__(
        self,
        request: InferenceRequest,
        setting: TraceSetting,
        finish: Callable[[SampledTrace], None],
        *,
        source: TraceSource | None = None,
        parent: TraceContext | None = None,
        receive_ns: int = 0,
        is_exported: bool = False,
    ) -> None:
        """Begin to trace ``request``: its ``respond`` is this trace's from here on, which calls the one it had.

        ``finish`` is called when the last answer has been given away. ``receive_ns``: when the request began to come; 0:
        nobody knows. ``is_exported``: its spans get identities of OpenTelemetry's.
        """
        now_ns = _now_ns()
        self._finish = finish
        self._source = source
        self._respond: Respond = request.respond
        self.setting = setting
        self.parent = parent
        self.events: list[tuple[int, str]] = []
        """What the front end did, and when; of ``time.monotonic_ns``, as all times."""
        self.start_ns = receive_ns or now_ns
        self.end_ns = 0
        self.takes_tensors = not is_exported and "TENSORS" in setting.level
        self.trace_id = self.root_span_id = self.wall_offset_ns = 0
        if is_exported:
            self.trace_id = random.getrandbits(128) or 1 if parent is None else parent.trace_id
            self.root_span_id = random.getrandbits(64) or 1
            self.wall_offset_ns = time.time_ns() - now_ns
        if source is not None:
            self.events = [(self.start_ns, source.receive_start), (now_ns, source.receive_end)]
        self.root: Span = begin_sample(request, self.make_sample)
        request.respond = self.answer

    def make_sample(self, caller: Sample | None) -> Sample:
        """Return the place of a new span below that of ``caller``; None: of the first one. Any thread."""
        number = next(_numbers)
        parent_number = 0 if caller is None else caller.number
        if not self.trace_id:
            return Sample(self, number, parent_number, 0, str(number))
        span_id = random.getrandbits(64) or 1
        state = "" if self.parent is None else self.parent.state
        return Sample(
            self, number, parent_number, span_id, TraceContext(self.trace_id, span_id, state).to_json()
        )

    def answer(self, request: InferenceRequest, response: InferenceResponse) -> None:
        """Pass on ``response``; when it was the last, end the trace."""
        if self._source is None or len(self.events) >= MAX_EVENTS:
            self._pass_on(request, response)
            return
        now_ns = _now_ns()
        self.events += ((now_ns, "INFER_RESPONSE_COMPLETE"), (now_ns, self._source.send_start))
        try:
            self._pass_on(request, response)
        finally:
            # What is encoded beside the loop leaves later; nobody is asked when.
            self.events.append((_now_ns(), self._source.send_end))

    def _pass_on(self, request: InferenceRequest, response: InferenceResponse) -> None:
        respond = self._respond
        try:
            respond(request, response)
        finally:
            if response.final:
                self.close()

    def close(self) -> None:
        """End the trace, and let go of who waited for the answer."""
        del self._respond
        leave_sample(self.root)
        self.end_ns = _now_ns()
        self._finish(self)

    def __repr__(self) -> str:
        return f"SampledTrace({self.root!r})"
