"""Dispatch: the part of a `bireme.engine.model.Model` that has batches run.

It asks the scheduler what runs next, hands the batch to a free instance, takes the results back, and looks again when the
scheduler said so. Loop thread only.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING

from bireme.engine.instances import Results, Slot, TensorSlot
from bireme.telemetry import log as server_log
from bireme.types import Execution

if TYPE_CHECKING:
    from bireme.engine.answers import Answers
    from bireme.engine.instance_pool import InstancePool
    from bireme.engine.tensor_runs import TensorRuns
    from bireme.engine.timer import Deadline, DeadlineTimer
    from bireme.scheduling import InlinePolicy, Scheduler
    from bireme.telemetry import ModelStatistics

log = logging.getLogger("bireme.engine")

_now_ns = time.monotonic_ns


class Dispatch:
    """What a model does with its scheduler and its instances; the model itself sets the attributes."""

    name: str
    version: int
    pool: InstancePool
    runs: TensorRuns
    statistics: ModelStatistics
    _answers: Answers
    _deadline: Deadline | None
    _dispatch_is_due: bool
    _inline: InlinePolicy
    _is_dispatching: bool
    _loop: asyncio.AbstractEventLoop
    _may_run_inline: bool
    _scheduler: Scheduler
    _timer: DeadlineTimer

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
        slot = self.pool.reserve()
        decision = self._scheduler.schedule(_now_ns(), instance_free=slot is not None)
        for request, error in decision.refused:
            self._answers.refuse(request, error)
        if decision.batch is None or slot is None:
            if slot is not None:
                self.pool.give_back(slot)
            self._set_deadline(decision.wake_at_ns)
            return None
        execution = Execution(decision.batch, decision.batch_size, decision.close_reason)
        self.pool.occupy(slot, execution)
        return execution

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
        slot: Slot = execution.holder
        self.statistics.start(len(execution.requests))
        if self._may_run_inline and self._inline.inline:
            assert isinstance(slot, TensorSlot)
            results = self.runs.run(slot, execution)
            self.pool.leave(execution)
            self._answer(execution, results)
        else:
            slot.submit(execution)

    def _finish(self, _slot: TensorSlot, execution: Execution, results: Results) -> None:
        """Take a batch back from its slot's thread; on the loop thread."""
        self.pool.leave(execution)
        # The instance gets its next batch before this one's answers are encoded, so that it does not wait for them.
        if self._scheduler.num_waiting and not self._is_dispatching:
            self._dispatch()
        self._answer(execution, results)

    def _answer(self, execution: Execution, results: Results) -> None:
        """Answer the requests of a batch in order, and count it."""
        self._inline.observe(
            execution.compute_output_start_ns - execution.compute_input_end_ns, execution.cpu_ns
        )
        # Taken out of the execution, which its requests refer to: a cycle would keep their tensors until a collection.
        requests, execution.requests = execution.requests, []
        if server_log.verbose_enabled:
            self._log(execution, len(requests))
        self._answers.answer_batch(execution, requests, results)

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
