"""ProcessInstance: one instance of a Python model, in a process of its own, as the engine sees it.

A batch goes out as one `Execute` and comes back as one `Executed`, both handled on the loop: no thread, no task and no
future is between a request and its process. Tensors travel by the channel's ledger, at most copied once.

Source: Triton ``python_be.cc`` (ProcessRequests, ModelInstanceReady).
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Final

from bireme.backends.errors import RESCHEDULED, UNANSWERED, make_error
from bireme.backends.interface import Host, ModelContext, ResponseSink
from bireme.backends.python.calls import Calls
from bireme.backends.supervised import Launch, SupervisedWorker
from bireme.ipc.messages import (
    Call,
    Cancel,
    CancelCall,
    CheckReady,
    DropSequence,
    Execute,
    Executed,
    Hold,
    Infer,
    LogLine,
    Orphaned,
    Readiness,
    RequestData,
    Respond,
    ResponseData,
    Resume,
    Soon,
    Taken,
)
from bireme.ipc.spin import window_ns
from bireme.ipc.worker_process import WorkerProcess
from bireme.types import (
    BackendFailed,
    BiremeError,
    Execution,
    InferenceRequest,
    InferenceResponse,
    Unavailable,
)

log = logging.getLogger("bireme.backends.python")

READY_TIMEOUT_S: Final = 5.0
"""How long a model's ``is_ready`` may take."""

_now_ns = time.monotonic_ns


class ProcessInstance(SupervisedWorker):
    """Takes whole requests: `bireme.backends.interface.RequestInstance`. Made and opened on a loading thread."""

    def __init__(self, ctx: ModelContext, host: Host, launch: Launch, *, max_concurrent: int) -> None:
        """``max_concurrent``: executions at one time, where ``execute`` is asynchronous; otherwise one."""
        super().__init__(host.loop, launch)
        self.max_concurrent = max_concurrent
        self.has_ready_hook = False
        self._has_drop_hook = False
        self.can_be_called = False
        self._name = ctx.name
        self._version = ctx.version
        self._host = host
        self._sink: ResponseSink | None = None
        self._calls: Calls | None = None
        self._executions: dict[int, tuple[Execution, int, int]] = {}
        """What runs: each execution with the number of its first request, and how many it has."""
        self._open: dict[int, InferenceRequest] = {}
        """Requests that have had no final response, by number."""
        self._held: set[int] = set()
        """Those of them that are held."""
        self._last_execution = 0
        self._last_request = 0
        self._readiness: asyncio.Future[bool] | None = None
        self._unready_reason = ""
        self._spins = window_ns() > 0
        self._handlers |= {
            Executed: self._on_executed,
            Respond: self._on_respond,
            Orphaned: self._on_orphaned,
            Readiness: self._on_readiness,
        }

    def start(self, sink: ResponseSink) -> None:
        """See `RequestInstance.start`."""
        self._sink = sink

    # What the engine asks.

    def execute_requests(self, execution: Execution) -> None:
        """See `RequestInstance.execute_requests`."""
        worker = self._worker
        if worker is None or not self._is_up:
            self._loop.call_soon(self._refuse, execution, Unavailable(str(self.unavailable)))
            return
        self._last_execution = number = self._last_execution + 1
        first = last = self._last_request
        try:
            export = self._ledger.export
            requests = []
            for request in execution.requests:
                last += 1
                requests.append(
                    RequestData(
                        last,
                        request.id,
                        [export(tensor) for tensor in request.inputs.values()],
                        None if request.outputs is None else list(request.outputs),
                        request.parameters,
                        request.sequence_id,
                        request.sequence_start + 2 * request.sequence_end,
                        request.timeout_us,
                        request.priority,
                        request.trace_context,
                        request.parent is not None,
                        request.cancelled,
                    )
                )
            execution.compute_start_ns = _now_ns()
            worker.send(Execute(number, requests, self._ledger.take_released()))
        except Exception as error:  # noqa: BLE001 - out of memory, or BYTES that are none: the engine must get its answer
            failure = (
                error
                if isinstance(error, BiremeError)
                else BackendFailed(f"cannot hand over a request: {error}")
            )
            self._loop.call_soon(self._refuse, execution, failure)
            return
        self._executions[number] = (execution, first + 1, last - first)
        for request in execution.requests:
            first += 1
            self._open[first] = request
        self._last_request = last

    def call(self, execution: Execution) -> InferenceResponse:
        """See `RequestInstance.call`: not for a process."""
        raise NotImplementedError

    def cancel(self, request: InferenceRequest) -> None:
        """See `RequestInstance.cancel`."""
        number = self._find(request)
        if number and self._worker is not None:
            self._worker.send(Cancel(number))

    def drop_sequence(self, sequence_id: int | str) -> None:
        """See `RequestInstance`."""
        if self._has_drop_hook and self._worker is not None:
            self._worker.send(DropSequence(sequence_id))

    def kill(self) -> None:
        """See `RequestInstance.kill`."""
        if self._executions or self._open or not self._is_up:
            super().kill()

    def expect(self) -> None:
        """See `RequestInstance.expect`: to wake a process takes as long as a short model runs."""
        if self._worker is not None and not self._executions and self._spins:
            self._worker.send(Soon())

    def hold(self, request: InferenceRequest) -> None:
        """See `RequestInstance.hold`."""
        number = self._find(request)
        if number and number not in self._held and self._worker is not None:
            self._held.add(number)
            self._worker.send(Hold(number))

    def resume(self, request: InferenceRequest) -> None:
        """See `RequestInstance.resume`."""
        self._release(self._find(request))

    def _release(self, number: int) -> None:
        """End the hold of a request, if it is held: it may go on, or nobody answers it any more."""
        if number in self._held:
            self._held.discard(number)
            if self._worker is not None:
                self._worker.send(Resume(number))

    def _find(self, request: InferenceRequest) -> int:
        """Return the number of an open request; 0: it is not open here."""
        for number, candidate in self._open.items():
            if candidate is request:
                return number
        return 0

    async def check_ready(self) -> bool:
        """See `RequestInstance.check_ready`. One question to the process answers all who ask meanwhile."""
        worker = self._worker
        if worker is None or not self._is_up:
            return False
        if not self.has_ready_hook:
            return True
        if self._readiness is None:
            self._readiness = self._loop.create_future()
            worker.send(CheckReady(0))
        try:
            return await asyncio.wait_for(asyncio.shield(self._readiness), READY_TIMEOUT_S)
        except TimeoutError:
            return False

    # What the process says.

    def _on_executed(self, message: Executed) -> None:
        entry = self._executions.pop(message.number, None)
        sink = self._sink
        if entry is None or sink is None:
            return
        execution, number, _ = entry
        if message.released:
            self._ledger.take_back(message.released)
        execution.compute_input_end_ns = message.start_ns
        execution.compute_output_start_ns = message.end_ns
        execution.compute_end_ns = _now_ns()
        failure = message.error
        if failure is not None:
            error = make_error(failure.code, failure.message)
            for taken in range(number, number + entry[2]):
                self._open.pop(taken, None)
                self._release(taken)
            log.error("%s", failure.message)
            sink.finish(execution, error)
            return
        # The process gets its next batch first, if one waits: it does not wait for this one's answers to be written.
        requests = execution.requests
        for rescheduled in message.rescheduled:
            self._run_again(rescheduled, sink)
        has_waiting = sink.has_waiting
        if has_waiting:
            sink.finish(execution)
        open_requests = self._open
        for request, data in zip(requests, message.responses, strict=False):
            if data is not None and number in open_requests:
                response = self._make_response(request, data)
                # Only now: whatever is open when a process talks nonsense is answered with that.
                if response.final:
                    del open_requests[number]
                sink.respond(request, response)
            number += 1
        if not has_waiting:
            sink.finish(execution)
        self._flush_soon()

    def _run_again(self, number: int, sink: ResponseSink) -> None:
        """A request that runs is to run again, with a number of its own."""
        request = self._open.get(number)
        if request is not None and sink.run_again(request):
            del self._open[number]
            self._release(number)
        else:
            self._fail(number, RESCHEDULED)

    def _on_respond(self, message: Respond) -> None:
        if message.released:
            self._ledger.take_back(message.released)
        number = message.request
        data = message.response
        request = self._open.get(number)
        if request is not None and self._sink is not None:
            response = self._make_response(request, data)
            if data.is_final:
                del self._open[number]
                # Another thread than the one that waits has ended it: that one learns of it by a message.
                self._release(number)
            self._sink.respond(request, response)
        self._flush_soon()

    def _make_response(self, request: InferenceRequest, data: ResponseData) -> InferenceResponse:
        failure = data.error
        if failure is None:
            adopt = self._ledger.adopt
            return InferenceResponse(
                self._name,
                self._version,
                request.id,
                [adopt(tensor) for tensor in data.outputs],
                parameters=data.parameters,
                final=data.is_final,
                flag_only=data.is_flag_only,
            )
        return InferenceResponse(
            self._name,
            self._version,
            request.id,
            parameters=data.parameters,
            error=make_error(failure.code, failure.message),
            final=data.is_final,
        )

    def _on_orphaned(self, message: Orphaned) -> None:
        self._fail(message.request, UNANSWERED)

    def _fail(self, number: int, fault: str) -> None:
        """Answer an open request whose model has done what it must not."""
        request = self._open.pop(number, None)
        self._release(number)
        if request is not None and self._sink is not None:
            error = BackendFailed(f"model '{self._name}' {fault}")
            self._sink.respond(request, InferenceResponse(self._name, self._version, request.id, error=error))

    def _on_readiness(self, message: Readiness) -> None:
        if message.reason and message.reason != self._unready_reason:  # not with each of many probes
            log.warning(
                "%s: instance '%s' is not ready: %s",
                self._launch.model,
                self._launch.instance,
                message.reason,
            )
        self._unready_reason = message.reason
        self._settle_readiness(is_ready=message.is_ready)

    def _settle_readiness(self, *, is_ready: bool) -> None:
        readiness, self._readiness = self._readiness, None
        if readiness is not None and not readiness.done():
            readiness.set_result(is_ready)

    def _refuse(self, execution: Execution, error: BiremeError) -> None:
        """Finish an execution that has not come to run."""
        now_ns = _now_ns()
        execution.compute_input_end_ns = execution.compute_output_start_ns = execution.compute_end_ns = now_ns
        if self._sink is not None:
            self._sink.finish(execution, error)

    # The life of the process: see `SupervisedWorker`.

    def _on_begin(self, worker: WorkerProcess) -> None:
        calls = Calls(self._host, worker.ledger, worker.send, self._executions, self._name)
        self._calls = calls
        self._handlers |= {
            Infer: calls.infer,
            CancelCall: calls.cancel,
            Taken: calls.take,
            Call: calls.call,
            LogLine: calls.log,
        }

    def _on_up(self, facts: dict[str, str]) -> None:
        self.has_ready_hook = facts.get("has_is_ready") == "1"
        self._has_drop_hook = facts.get("has_drop_sequence") == "1"
        if facts.get("is_async") != "1":
            self.max_concurrent = 1

    def _on_down(self, error: Unavailable) -> None:
        executions, requests = list(self._executions.values()), self._open.copy()
        self._executions.clear()
        self._open.clear()
        self._held.clear()
        sink = self._sink
        if sink is None:
            return
        for execution, first, num_requests in executions:
            for number in range(first, first + num_requests):
                requests.pop(number, None)
            execution.compute_input_end_ns = execution.compute_output_start_ns = _now_ns()
            execution.compute_end_ns = execution.compute_output_start_ns
            sink.finish(execution, error)
        for request in requests.values():  # decoupled: their executions ended before their responses
            sink.respond(request, InferenceResponse(self._name, self._version, request.id, error=error))

    def _on_end(self) -> None:
        if self._calls is not None:
            self._calls.close()
            self._calls = None
        self._settle_readiness(is_ready=False)

    def _on_change(self) -> None:
        if self._sink is not None:
            self._sink.change()

    def __repr__(self) -> str:
        return (
            f"ProcessInstance({self._launch.instance!r}, pid {self.pid}, {len(self._executions)} executions, "
            f"{len(self._open)} requests open, {self.num_restarts} restarts)"
        )
