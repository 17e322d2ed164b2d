"""Model: one loaded version — its scheduler, its instances and the requests between them.

All of it belongs to the loop thread. A request's way: `Model.enqueue` checks and queues it; `_dispatch` asks the
scheduler what runs next and hands the batch to a free instance, inline or on the instance's thread; `_answer` answers.
"""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import replace
from typing import Any

from bireme.backends.interface import Instance
from bireme.engine.instances import CompletionQueue, InstanceSlot, Results
from bireme.engine.loading import PreparedModel
from bireme.engine.timer import Deadline, DeadlineTimer
from bireme.engine.validation import RequestValidator
from bireme.scheduling import DirectScheduler, InlinePolicy, ResponseOrder
from bireme.telemetry import ModelStatistics, log as server_log
from bireme.types import (
    BackendFailed,
    BiremeError,
    Cancelled,
    Execution,
    InferenceRequest,
    InferenceResponse,
    QueueFull,
    Unavailable,
)

log = logging.getLogger("bireme.engine")

_now_ns = time.monotonic_ns
_cpu_ns = time.thread_time_ns


class Model:
    """One version of a model that serves. Made and used on the loop thread."""

    def __init__(
        self,
        prepared: PreparedModel,
        *,
        loop: asyncio.AbstractEventLoop,
        timer: DeadlineTimer,
        statistics: ModelStatistics,
    ) -> None:
        """Take over ``prepared``: this model closes it."""
        self.name = prepared.name
        self.version = prepared.version
        self.config = prepared.config
        self.labels = prepared.labels
        self.statistics = statistics
        self.validator = RequestValidator(prepared.config)
        self.inputs = self.validator.inputs
        self.outputs = self.validator.outputs
        self.max_batch_size = prepared.config.max_batch_size
        policy = prepared.config.model_transaction_policy
        self.is_decoupled = policy is not None and policy.decoupled
        """Whether a request has any number of responses."""
        self._prepared = prepared
        self._plan = prepared.plan
        self._loop = loop
        self._timer = timer
        self._deadline: Deadline | None = None
        self._scheduler = prepared.scheduler
        # Without batching there is nothing to wait for; a batch forms from all that came in one loop iteration.
        self._dispatch_at_once = isinstance(self._scheduler, DirectScheduler)
        self._dispatch_is_due = False
        self._is_dispatching = False
        batching = prepared.config.dynamic_batching
        self._order = ResponseOrder() if batching is not None and batching.preserve_ordering else None
        self._inline = InlinePolicy()
        completions = CompletionQueue(loop)
        self._slots = [
            InstanceSlot(placement, instance, self._run, self._finish, completions)
            for placement, instance in prepared.instances
        ]
        self._may_run_inline = all(_may_run_inline(slot.instance) for slot in self._slots)
        self._free = list(reversed(self._slots))
        for execution in prepared.warmup:
            self._count_warmup(execution)
        self._num_in_flight = 0
        self._drained: asyncio.Future[None] | None = None
        self._retirement: asyncio.Task[None] | None = None

    def _count_warmup(self, execution: Execution) -> None:
        requests, execution.requests = execution.requests, []
        for _ in requests:
            self.statistics.accept()
        self.statistics.start(len(requests))
        for request in requests:
            self.statistics.succeed(request, execution.compute_end_ns)
        self.statistics.finish_execution(execution)

    @property
    def num_in_flight(self) -> int:
        """Requests accepted and not answered yet."""
        return self._num_in_flight

    def queue_statistics(self) -> dict[str, Any]:
        """Return the state of queue and instances for people and metrics."""
        return {
            "queue": self._scheduler.statistics(),
            "instances": len(self._slots),
            "instances_free": len(self._free),
            "inline": self._inline.inline and self._may_run_inline,
        }

    def enqueue(self, request: InferenceRequest) -> None:
        """Check ``request`` and queue it. From here on it is answered exactly once, through ``request.respond``.

        Raises:
            InvalidArgument: the request does not fit the model.
            Unavailable: the model is retiring, or its queue is full (`QueueFull`).
        """
        if self._drained is not None:
            raise Unavailable(
                f"{request.id_prefix}Server is stopping, scheduler for model has stopped accepting new inference requests"
            )
        now_ns = _now_ns()
        self.validator.check(request)
        request.owner = self
        request.start_ns = request.start_ns or now_ns
        request.queue_ns = now_ns
        statistics = self.statistics
        statistics.accept()
        try:
            self._enqueue(request, now_ns)
        except BiremeError as error:
            statistics.fail(error.reason, _now_ns() - request.start_ns, was_pending=True)
            raise
        self._num_in_flight += 1
        if self._order is not None:
            self._order.admit(request)
        if not self._dispatch_at_once:
            self._dispatch_soon()
        elif self._free and not self._is_dispatching:
            self._dispatch()

    def _enqueue(self, request: InferenceRequest, now_ns: int) -> None:
        try:
            self._scheduler.enqueue(request, now_ns)
        except QueueFull:
            # Requests that only wait for the end of this loop iteration, while an instance is free, are not a queue.
            if not (self._dispatch_is_due and self._free) or self._is_dispatching:
                raise
            self._dispatch()
            self._scheduler.enqueue(request, now_ns)

    def cancel(self, request: InferenceRequest) -> None:
        """Take ``request`` back: one that waits is answered `Cancelled` at once, one that runs is flagged."""
        if request.cancelled:
            return
        request.cancelled = True
        if self._scheduler.cancel(request):
            self._refuse(
                request, Cancelled(f"{request.id_prefix}the request was cancelled while it was queued")
            )
            if self._scheduler.num_waiting:
                self._dispatch_soon()  # without it, the rest may be a batch that need not wait longer

    async def drain_and_close(self) -> None:
        """Accept nothing more, let the accepted requests finish, then close the instances and the model file.

        May be called again, and the caller may be cancelled: the retirement itself goes on.
        """
        if self._retirement is None:
            self._drained = self._loop.create_future()
            if self._num_in_flight == 0:
                self._drained.set_result(None)
            self._retirement = self._loop.create_task(self._retire(self._drained))
        await asyncio.shield(self._retirement)

    async def _retire(self, drained: asyncio.Future[None]) -> None:
        await drained
        self._set_deadline(None)
        try:
            await self._loop.run_in_executor(None, self._close)
        finally:
            # They refer to this model's methods: without this it would live until a garbage collection finds it.
            self._slots.clear()
            self._free.clear()

    def abort(self, error: BiremeError) -> None:
        """Answer every request that still waits with ``error``; running ones finish on their own."""
        for request in self._scheduler.drain():
            self._refuse(request, error)

    def _close(self) -> None:
        for slot in self._slots:
            slot.close()
        replace(self._prepared, instances=[]).close()

    # Dispatch: ask the scheduler, act on its decision, look again when it says so.

    def _dispatch_soon(self) -> None:
        """Dispatch at the end of this loop iteration, when all that it brought is queued."""
        if not self._dispatch_is_due:
            self._dispatch_is_due = True
            self._loop.call_soon(self._dispatch)

    def _dispatch(self) -> None:
        self._dispatch_is_due = False
        # An inline run answers within this loop, and its caller may enqueue the next request: the loop takes that too.
        self._is_dispatching = True
        try:
            while (batch := self._next_batch()) is not None:
                self._execute(batch)
        finally:
            self._is_dispatching = False

    def _next_batch(self) -> Execution | None:
        """Refuse what has expired and return what runs next; None: nothing can, until an event or the deadline."""
        decision = self._scheduler.schedule(_now_ns(), instance_free=bool(self._free))
        for request, error in decision.refused:
            self._refuse(request, error)
        if decision.batch is None:
            self._set_deadline(decision.wake_at_ns)
            return None
        return Execution(decision.batch, decision.batch_size, decision.close_reason)

    def _set_deadline(self, when_ns: int | None) -> None:
        """Dispatch again at ``when_ns``. An earlier alarm stays: it only looks once too often."""
        current = self._deadline
        if current is not None:
            if when_ns is not None and current.when_ns <= when_ns:
                return
            current.cancel()
            self._deadline = None
        if when_ns is not None:
            self._deadline = self._timer.call_at(when_ns, self._on_deadline)

    def _on_deadline(self) -> None:
        self._deadline = None
        self._dispatch()

    def _execute(self, execution: Execution) -> None:
        slot = self._free.pop()
        self.statistics.start(len(execution.requests))
        if self._may_run_inline and self._inline.inline:
            results = self._run(slot, execution)
            self._free.append(slot)
            self._answer(execution, results)
        else:
            slot.submit(execution)

    def _finish(self, slot: InstanceSlot, execution: Execution, results: Results) -> None:
        """Take a batch back from its slot's thread; on the loop thread."""
        self._free.append(slot)
        # The instance gets its next batch before this one's answers are encoded, so that it does not wait for them.
        if self._scheduler.num_waiting and not self._is_dispatching:
            self._dispatch()
        self._answer(execution, results)

    def _run(self, slot: InstanceSlot, execution: Execution) -> Results:
        """Execute one batch; on the loop thread or on the slot's. Never raises."""
        requests = execution.requests
        execution.compute_start_ns = _now_ns()
        try:
            inputs = self._plan.gather(requests, execution.batch_size, slot.buffers)
            execution.compute_input_end_ns = _now_ns()
            cpu_start_ns = _cpu_ns() if self._may_run_inline else 0
            targets = requests[0].targets
            if targets is None or slot.execute_into is None or len(requests) > 1:
                outputs = slot.instance.execute(inputs)
            else:
                outputs = slot.execute_into(inputs, targets)
            execution.compute_output_start_ns = _now_ns()
            if self._may_run_inline:
                execution.cpu_ns = _cpu_ns() - cpu_start_ns
            results: Results = self._plan.scatter(outputs, requests)
        except Exception as error:  # noqa: BLE001 - whatever a framework raises becomes the answer
            results = [self._failure(error)] * len(requests)
            failed_ns = _now_ns()
            execution.compute_input_end_ns = execution.compute_input_end_ns or failed_ns
            execution.compute_output_start_ns = execution.compute_output_start_ns or failed_ns
        execution.compute_end_ns = _now_ns()
        return results

    def _failure(self, error: Exception) -> BiremeError:
        if isinstance(error, BiremeError):
            return error
        log.error("model '%s' version %d failed", self.name, self.version, exc_info=error)
        return BackendFailed(f"model '{self.name}' version {self.version} failed: {str(error).strip()}")

    def _answer(self, execution: Execution, results: Results) -> None:
        """Answer the requests of a batch in order, and count it."""
        self._inline.observe(
            execution.compute_output_start_ns - execution.compute_input_end_ns, execution.cpu_ns
        )
        # Taken out of the execution, which its requests refer to: a cycle would keep their tensors until a collection.
        requests, execution.requests = execution.requests, []
        if server_log.verbose_enabled:
            self._log(execution, len(requests))
        end_ns = execution.compute_end_ns
        statistics = self.statistics
        num_failed = 0
        for request, result in zip(requests, results, strict=True):
            request.execution = execution
            if isinstance(result, BiremeError):
                num_failed += 1
                statistics.fail(result.reason, end_ns - request.start_ns, was_pending=False)
                response = InferenceResponse(self.name, self.version, request.id, error=result)
            else:
                statistics.succeed(request, end_ns)
                response = InferenceResponse(self.name, self.version, request.id, result)
            self._respond(request, response)
        # Source: Triton's backends report a batch unless all of its requests failed.
        if num_failed < len(requests):
            statistics.finish_execution(execution)

    def _log(self, execution: Execution, num_requests: int) -> None:
        log.log(
            server_log.verbose_level(2),
            "model '%s' version %d: batch of %d from %d requests, closed by '%s', took %d us",
            self.name,
            self.version,
            execution.batch_size,
            num_requests,
            execution.close_reason,
            (execution.compute_end_ns - execution.compute_start_ns) // 1000,
        )

    def _refuse(self, request: InferenceRequest, error: BiremeError) -> None:
        """Answer a request that never ran."""
        self.statistics.fail(error.reason, _now_ns() - request.start_ns, was_pending=True)
        self._respond(request, InferenceResponse(self.name, self.version, request.id, error=error))

    def _respond(self, request: InferenceRequest, response: InferenceResponse) -> None:
        if self._order is None:
            self._send(request, response)
            return
        for ready, its_response in self._order.complete(request, response):
            self._send(ready, its_response)

    def _send(self, request: InferenceRequest, response: InferenceResponse) -> None:
        request.owner = None
        self._num_in_flight -= 1
        try:
            request.respond(request, response)
        except Exception:  # one caller's fault must not cost the batch's other requests their answers
            log.exception(
                "model '%s': the caller of request '%s' failed to take its response", self.name, request.id
            )
        if self._drained is not None and self._num_in_flight == 0 and not self._drained.done():
            self._drained.set_result(None)

    def __repr__(self) -> str:
        return (
            f"Model({self.name!r} v{self.version}, in flight {self._num_in_flight}, "
            f"instances {len(self._slots) - len(self._free)} of {len(self._slots)} busy, {self._scheduler!r})"
        )


def _may_run_inline(instance: Instance) -> bool:
    """Whether the instance says that it is native code that never blocks on anything but arithmetic."""
    return bool(getattr(instance, "may_run_inline", False))
