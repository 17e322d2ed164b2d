"""DirectCalls: a call between two models of this process, run by the calling thread as a function call.

Going through the loop costs two hand-overs between threads in each direction. Where an instance of the called model is free
and nothing waits for it, the caller's thread takes the instance and runs it itself; the loop is told afterwards what was
done, for the statistics, many calls at a time.

Any thread may call. What it shares with the loop is used in single steps that the interpreter does not interrupt (``pop``,
``append``, ``add``): a slot that was taken out of the pool's free list belongs to whoever took it.
"""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING, Final

from bireme.engine.instances import RequestSlot, Slot, TensorSlot
from bireme.telemetry.spans import begin_call, end_span
from bireme.types import BiremeError, Execution, InferenceRequest, InferenceResponse

if TYPE_CHECKING:
    from bireme.engine.model import Model

_SETTLE_S: Final = 0.05
"""How long the statistics may lag behind."""

_now_ns = time.monotonic_ns


class DirectCalls:
    """The direct calls to one model version."""

    __slots__ = ("_done", "_is_settling", "_model", "_shared")

    def __init__(self, model: Model) -> None:
        self._model = model
        self._done: deque[tuple[InferenceRequest, Execution, InferenceResponse]] = deque()
        self._is_settling = False
        slot = model.pool.slots[0]
        self._shared = slot if slot.capacity > 1 else None
        """The slot of an ensemble: it takes any number of requests at a time, and is free for the others meanwhile."""

    def call(self, request: InferenceRequest) -> InferenceResponse | None:
        """Run ``request`` on this thread and return its response; None: it has to go through the queue.

        Raises:
            BiremeError: the request does not fit the model.
        """
        model = self._model
        pool = model.pool
        if not model.is_free_for_calls(request):
            return None
        slot = self._shared or pool.reserve()
        if slot is None:
            return None
        execution = Execution([request], 1, "single")
        slot.active.add(execution)
        caller = request.parent
        if caller is not None:  # known to those who look for calls that would wait for one another
            if caller.calls is None:
                caller.calls = set()
            caller.calls.add(request)
        try:
            # Asked again, now that a model that begins to retire sees this execution.
            if model.refuses():
                return None
            model.validator.check(request)
            execution.batch_size = request.batch_size
            if caller is not None or request.trace_context is not None:
                begin_call(request, caller)
            request.start_ns = request.queue_ns = execution.compute_start_ns = _now_ns()
            request.execution = execution
            execution.holder = slot
            response = self._run(slot, execution, request)
        finally:
            if caller is not None and caller.calls:
                caller.calls.discard(request)
            execution.holder = request.instance = None
            slot.active.discard(execution)
            if slot is not self._shared and slot.unavailable is None:
                pool.free.append(slot)
            if model.has_waiting:  # what came meanwhile found no free instance
                model.wake()
        if request.trace is not None:
            is_ensemble = model.config.ensemble_scheduling is not None
            request.trace.set_model(model.name, model.version, is_ensemble=is_ensemble)
            end_span(request, response)
        self._done.append((request, execution, response))
        if not self._is_settling:
            self._is_settling = True
            model.call_on_loop(self._settle_soon)
        return response

    def _run(self, slot: Slot, execution: Execution, request: InferenceRequest) -> InferenceResponse:
        if isinstance(slot, RequestSlot):
            request.instance = slot.requests  # for a caller that gives up meanwhile
            return slot.requests.call(execution)
        assert isinstance(slot, TensorSlot)
        model = self._model
        (result,) = model.runs.run(slot, execution)
        if isinstance(result, BiremeError):
            return InferenceResponse(model.name, model.version, request.id, error=result)
        return InferenceResponse(model.name, model.version, request.id, result)

    def _settle_soon(self) -> None:
        self._model.call_later(_SETTLE_S, self.settle)

    def settle(self) -> None:
        """Count what was called. On the loop thread."""
        self._is_settling = False
        statistics = self._model.statistics
        done = self._done
        while done:
            request, execution, response = done.popleft()
            execution.requests = []
            statistics.accept()
            statistics.start(1)
            if response.error is not None:
                duration_ns = execution.compute_end_ns - request.start_ns
                statistics.fail(response.error.reason, duration_ns, was_pending=False)
            else:
                statistics.succeed(request, execution.compute_end_ns)
                statistics.finish_execution(execution)
