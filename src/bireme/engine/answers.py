"""Answers: how the requests of one model version get their responses, and how that is counted. Loop thread only."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable

from bireme.engine.request_deadlines import RequestDeadlines
from bireme.scheduling import ResponseOrder
from bireme.telemetry import ModelStatistics
from bireme.telemetry.spans import end_span, note_response
from bireme.types import (
    BackendFailed,
    BiremeError,
    Cancelled,
    DeadlineExceeded,
    Execution,
    InferenceRequest,
    InferenceResponse,
    Parameter,
    Tensor,
)

log = logging.getLogger("bireme.engine")

_now_ns = time.monotonic_ns


class Answers:
    """The open requests of one model version: accepted, and without their final response."""

    __slots__ = (
        "_failure_reason",
        "_is_decoupled",
        "_is_ensemble",
        "_name",
        "_on_end",
        "_on_idle",
        "_order",
        "_owner",
        "_version",
        "deadlines",
        "num_given_up",
        "num_open",
        "statistics",
    )

    def __init__(
        self,
        owner: object,
        name: str,
        version: int,
        statistics: ModelStatistics,
        *,
        is_decoupled: bool,
        is_ensemble: bool,
        order: ResponseOrder | None,
        on_idle: Callable[[], None],
        on_end: Callable[[InferenceRequest], None] | None = None,
        deadlines: RequestDeadlines,
    ) -> None:
        """``owner`` is what open requests are marked with. ``on_idle`` is called whenever none is open any more."""
        self._owner: object = owner
        self._name = name
        self._version = version
        self._is_decoupled = is_decoupled
        self._is_ensemble = is_ensemble
        self._order = order
        self._on_idle = on_idle
        self._on_end = on_end
        # An ensemble's failures are those of its members, where they count with their own reasons. Source: Triton.
        self._failure_reason = (BiremeError if is_ensemble else BackendFailed).reason
        self.deadlines = deadlines
        self.statistics = statistics
        self.num_open = 0
        self.num_given_up = 0
        """Requests that run though their callers have cancelled them."""

    def close(self) -> None:
        """Let go of the owner: it has no open requests, and will have none."""
        self._owner = None
        self._on_idle = _do_nothing
        self.deadlines.close()

    def open(self, request: InferenceRequest) -> None:
        """``request`` has been accepted."""
        self.num_open += 1
        if request.deadline_ns or self.deadlines.default_ns:
            self.deadlines.add(request, request.queue_ns)
        if self._order is not None:
            self._order.admit(request)

    def start(self, requests: Iterable[InferenceRequest], instance: int) -> None:
        """``requests`` of sequences begin to run on an instance: their places in the order, if it is kept, are as they start."""
        if self._order is not None:
            for request in requests:
                self._order.start(request, instance)

    def answer_batch(
        self,
        execution: Execution,
        requests: Iterable[InferenceRequest],
        results: Iterable[list[Tensor] | BiremeError],
    ) -> None:
        """Answer the requests of a batch of a model that takes tensors, in order, and count it."""
        end_ns = execution.compute_end_ns
        statistics = self.statistics
        any_succeeded = False
        # A request is counted when its answer is on its way: nobody can ask before that is done.
        for request, result in zip(requests, results, strict=True):
            request.execution = execution
            if request.failure is not None:
                result = request.failure  # noqa: PLW2901 (it has been answered meanwhile)
            if isinstance(result, BiremeError):
                self._respond(request, InferenceResponse(self._name, self._version, request.id, error=result))
                statistics.fail(result.reason, end_ns - request.start_ns, was_pending=False)
            else:
                any_succeeded = True
                self._respond(request, InferenceResponse(self._name, self._version, request.id, result))
                statistics.succeed(request, end_ns)
        # Source: Triton's backends report a batch unless all of its requests failed.
        if any_succeeded:
            statistics.finish_execution(execution)

    def answer_hit(
        self,
        request: InferenceRequest,
        outputs: list[Tensor],
        parameters: dict[str, Parameter] | None,
        lookup_ns: int,
    ) -> None:
        """Answer a request out of the response cache, after a look-up of ``lookup_ns``, and count it."""
        self._respond(
            request,
            InferenceResponse(
                self._name, self._version, request.id, outputs, parameters=parameters and dict(parameters)
            ),
        )
        self.statistics.hit(request, lookup_ns, _now_ns())

    def refuse(self, request: InferenceRequest, error: BiremeError) -> None:
        """Answer a request that never ran."""
        self.statistics.fail(error.reason, _now_ns() - request.start_ns, was_pending=True)
        self._respond(request, InferenceResponse(self._name, self._version, request.id, error=error))

    def fail(self, request: InferenceRequest, error: BiremeError) -> None:
        """Answer a request that runs, if it is still open, finally."""
        self.respond(request, InferenceResponse(self._name, self._version, request.id, error=error))

    def answer_early(self, request: InferenceRequest, error: BiremeError) -> None:
        """Let the caller wait no longer. The request stays open until what runs for it has ended, and nobody hears of that."""
        request.failure = error
        response = InferenceResponse(self._name, self._version, request.id, error=error)
        if request.trace is not None:
            self._end_trace(request, response)
            request.trace = None
        respond, request.respond = request.respond, _drop
        try:
            respond(request, response)
        except Exception as fault:  # noqa: BLE001 (logged)
            self._note_fault(request, fault)

    def respond(self, request: InferenceRequest, response: InferenceResponse) -> None:
        """Pass on what an instance answers; of a model that answers once, when it says that there are no more."""
        if request.owner is not self._owner:  # it has had its final response
            return
        if response.error is not None and request.failure is None:
            request.failure = response.error
        if not self._is_decoupled:
            if not response.final:
                request.num_responses += 1
                request.held = response
                return
            response = self._only_response(request, response)
        if response.final:
            now_ns = _now_ns()
            self._respond(request, response)
            self._count(request, now_ns)
            return
        if request.num_responses == 0 and self.statistics.observer is not None:
            self.statistics.observer.on_first_response(_now_ns() - request.start_ns)
        request.num_responses += 1
        if request.trace is not None:
            note_response(request.trace, response)
        self._respond(request, response)

    def _only_response(self, request: InferenceRequest, response: InferenceResponse) -> InferenceResponse:
        """Return the response of a model that answers once, whose last one is ``response``."""
        num_responses = request.num_responses + (not response.flag_only)
        if num_responses != 1:
            error = BackendFailed(f"expected a single response, got {num_responses}")
            request.failure = error
            return InferenceResponse(self._name, self._version, request.id, error=error)
        held, request.held = request.held, None
        if held is None:
            return response
        held.final = True
        return held

    def _count(self, request: InferenceRequest, now_ns: int) -> None:
        """Count a request that has got its final response, maybe before its execution has ended."""
        if request.failure is not None:
            # Whatever a model or its process answers is the backend's failure, also where its code blames the request.
            cancelled = isinstance(request.failure, (Cancelled, DeadlineExceeded))
            reason = request.failure.reason if cancelled else self._failure_reason
            self.statistics.fail(reason, now_ns - request.start_ns, was_pending=False)
            return
        execution = request.execution
        assert execution is not None
        if execution.compute_end_ns:
            self.statistics.succeed(request, now_ns)
            return
        execution.compute_input_end_ns = execution.compute_input_end_ns or execution.compute_start_ns
        execution.compute_output_start_ns = execution.compute_end_ns = now_ns
        self.statistics.succeed(request, now_ns)
        execution.compute_end_ns = 0

    def _respond(self, request: InferenceRequest, response: InferenceResponse) -> None:
        if self._order is None:
            self._send(request, response)
            return
        for ready, its_response in self._order.complete(request, response):
            self._send(ready, its_response)

    def _send(self, request: InferenceRequest, response: InferenceResponse) -> None:
        if response.final:
            self._end(request)
            if request.trace is not None:
                self._end_trace(request, response)
        try:
            request.respond(request, response)
        except Exception as error:  # noqa: BLE001 (one caller's fault must not cost the others of the batch their answers)
            self._note_fault(request, error)
        if response.final and self._on_end is not None:
            self._on_end(request)
        if self.num_open == 0:
            self._on_idle()

    def _end_trace(self, request: InferenceRequest, response: InferenceResponse) -> None:
        assert request.trace is not None
        request.trace.set_model(
            self._name, self._version, is_decoupled=self._is_decoupled, is_ensemble=self._is_ensemble
        )
        end_span(request, response)

    def _note_fault(self, request: InferenceRequest, error: Exception) -> None:
        log.error(
            "model '%s': the caller of request '%s' failed to take its response",
            self._name,
            request.id,
            exc_info=error,
        )

    def _end(self, request: InferenceRequest) -> None:
        request.owner = request.instance = None
        self.num_open -= 1
        if request.deadline_ns:
            self.deadlines.discard(request)
        if request.parent is not None:
            forget_call(request, request.parent)
        if request.cancelled and request.execution is not None:
            self.num_given_up -= 1


def forget_call(request: InferenceRequest, caller: Execution) -> None:
    """The code of ``caller`` does not wait for ``request`` any more."""
    if caller.calls is not None:
        caller.calls.discard(request)
        if not caller.calls and caller.holding is not None:
            caller.holding.take_back()


def _do_nothing() -> None:
    pass


def _drop(request: InferenceRequest, response: InferenceResponse) -> None:
    """Take a response that comes too late."""
