"""SequenceModel: a `Model` with ``sequence_batching``; and which of the two a version is."""

from __future__ import annotations

import asyncio

from bireme.engine.instances import Results
from bireme.engine.limited_pool import Resources
from bireme.engine.loading import PreparedModel
from bireme.engine.model import Model
from bireme.engine.sequences import Sequences
from bireme.engine.timer import DeadlineTimer
from bireme.scheduling import Scheduler
from bireme.scheduling.sequence_batcher import SequenceBatcher
from bireme.telemetry import ModelStatistics
from bireme.types import BiremeError, Execution, InferenceRequest


def make_model(
    prepared: PreparedModel,
    *,
    loop: asyncio.AbstractEventLoop,
    timer: DeadlineTimer,
    statistics: ModelStatistics,
    resources: Resources | None = None,
) -> Model:
    """Return the model of a version that is prepared. On the loop thread."""
    kind = SequenceModel if isinstance(prepared.scheduler, SequenceBatcher) else Model
    return kind(prepared, loop=loop, timer=timer, statistics=statistics, resources=resources)


class SequenceModel(Model):
    """One version of a model with sequences: its scheduler says which instance runs a batch, and is told of every end."""

    def __init__(
        self,
        prepared: PreparedModel,
        *,
        loop: asyncio.AbstractEventLoop,
        timer: DeadlineTimer,
        statistics: ModelStatistics,
        resources: Resources | None = None,
    ) -> None:
        """See `Model`."""
        assert isinstance(prepared.scheduler, SequenceBatcher)
        self._sequences = Sequences(
            prepared.scheduler,
            prepared.config,
            prepared.version,
            dispatch_soon=self._dispatch_soon,
            set_deadline=self._set_deadline,
        )
        self._on_request_end = self._sequences.end_request
        super().__init__(prepared, loop=loop, timer=timer, statistics=statistics, resources=resources)
        self._sequences.use(self.pool)
        self._sequences.count_in(statistics)

    def _take_scheduler(self, prepared: PreparedModel) -> Scheduler:  # noqa: ARG002 (it has been taken)
        return self._sequences

    @property
    def num_sequences(self) -> int:
        """Sequences that have begun and are not over."""
        return self._sequences.num_live

    def adopt_statistics(self, statistics: ModelStatistics) -> None:
        """See `Model.adopt_statistics`."""
        super().adopt_statistics(statistics)
        self._sequences.count_in(statistics)

    def stop_starts(self, grace_ns: int) -> bool:
        """See `Model.stop_starts`."""
        self._sequences.stop_starts(grace_ns)
        return self._sequences.num_live > 0

    def _let_go(self) -> None:
        super()._let_go()
        self._sequences.close()

    def _next_batch(self) -> Execution | None:
        decision, execution = self._sequences.next_batch()
        for request, error in decision.refused:
            self._answers.refuse(request, error)
        if execution is None:
            self._set_deadline(decision.wake_at_ns)
        else:
            self._answers.start(execution.requests, decision.instance)
        return execution

    def _execute(self, execution: Execution) -> None:
        if execution.sequence_slots is not None:
            self.statistics.start(-execution.sequence_slots.count(None))  # null requests were never accepted
        super()._execute(execution)

    def _answer(self, execution: Execution, results: Results) -> None:
        slots = execution.sequence_slots
        assert slots is not None
        real = [result for result, slot in zip(results, slots, strict=True) if slot is not None]
        for request, slot in zip(execution.requests, slots, strict=True):
            if slot is not None and slot.next is not None:
                slot.advance(has_succeeded=request.failure is None)
        execution.requests = self._sequences.end_execution(execution)
        super()._answer(execution, real)

    # What instances that take whole requests say.

    def finish(self, execution: Execution, error: BiremeError | None = None) -> None:
        """See `Model.finish`."""
        execution.requests = self._sequences.end_execution(execution)
        super().finish(execution, error)

    def run_again(self, request: InferenceRequest) -> bool:
        """See `Model.run_again`."""
        return self._sequences.run_again(request, self.statistics)

    def change(self) -> None:
        """See `Model.change`. What an instance knew that is away is gone, and so are its sequences."""
        super().change()
        self._sequences.refresh()
