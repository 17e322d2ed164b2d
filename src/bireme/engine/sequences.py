"""Sequences: what a model with ``sequence_batching`` has beside others, between its `SequenceBatcher` and its instances.

Loop thread only. To the model it is a scheduler like others, except that it says which instance runs a batch, and is told when
requests and executions have ended.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final

from bireme.config import ModelConfig
from bireme.engine.control_inputs import ControlInputs
from bireme.engine.instance_pool import InstancePool
from bireme.engine.instances import Slot
from bireme.scheduling import Decision
from bireme.scheduling.sequence_batcher import Dropped, SequenceBatcher, SequenceDecision
from bireme.scheduling.sequence_slots import DropReason
from bireme.telemetry import ModelStatistics
from bireme.telemetry.statistics import SequenceCounts
from bireme.types import Execution, InferenceRequest, Unavailable

log = logging.getLogger("bireme.engine")

_now_ns = time.monotonic_ns

_TOLD: Final = frozenset({DropReason.IDLE, DropReason.CANCELLED})
"""Models are told of these; a restarted sequence says so by its START, and a lost one has nobody to be told."""


class Sequences:
    """The sequences of one model version."""

    def __init__(
        self,
        batcher: SequenceBatcher,
        config: ModelConfig,
        version: int,
        *,
        dispatch_soon: Callable[[], None],
        set_deadline: Callable[[int | None], None],
    ) -> None:
        """``dispatch_soon`` has the model look for something to run; ``set_deadline`` has it do so at a time."""
        self._batcher = batcher
        self._controls = ControlInputs(config)
        self._label = f"model '{config.name}' version {version}"
        self._dispatch_soon = dispatch_soon
        self._set_deadline = set_deadline
        self._pool: InstancePool
        self._slots: list[Slot] = []
        self._counts: SequenceCounts
        self._idle_text = "nothing came for longer than max_sequence_idle_microseconds"
        self._count_live: Callable[[], int] = lambda: batcher.num_live
        self.drain = batcher.drain
        self.statistics = batcher.statistics

    def use(self, pool: InstancePool) -> None:
        """Run what comes on the instances of ``pool``; before the first request."""
        self._pool = pool
        self._slots = pool.slots[:]

    def count_in(self, statistics: ModelStatistics) -> None:
        """Count in ``statistics`` from now on; those of a model that this one replaces go on."""
        if statistics.sequences is None:
            statistics.sequences = SequenceCounts()
        self._counts = statistics.sequences
        self._counts.count_live = self._count_live

    def close(self) -> None:
        """Let go of the model."""
        self._dispatch_soon = _do_nothing
        self._set_deadline = _set_nothing
        if self._counts.count_live is self._count_live:
            self._counts.count_live = int  # none
        self._slots.clear()

    def stop_starts(self, grace_ns: int) -> None:
        """See `SequenceBatcher.stop_starts`."""
        self._idle_text = "nothing came for as long as the server waits for it while it stops"
        self._batcher.stop_starts(grace_ns, _now_ns())
        self._set_deadline(self._batcher.next_expiry_ns())

    # What a scheduler has.

    def enqueue(self, request: InferenceRequest, now_ns: int) -> None:
        """See `SequenceBatcher.enqueue`."""
        self._batcher.enqueue(request, now_ns)

    def cancel(self, request: InferenceRequest) -> bool:
        """See `SequenceBatcher.cancel`; what is refused with it is dispatched soon."""
        was_waiting = self._batcher.cancel(request, _now_ns())
        if was_waiting:
            self._dispatch_soon()
        return was_waiting

    @property
    def num_waiting(self) -> int:
        """See `SequenceBatcher.num_waiting`."""
        return self._batcher.num_waiting

    @property
    def num_live(self) -> int:
        """See `SequenceBatcher.num_live`."""
        return self._batcher.num_live

    def schedule(self, now_ns: int, *, instance_free: bool) -> Decision:
        """See `Scheduler.schedule`: not for sequences, whose instances are not all the same. See `next_batch`."""
        raise NotImplementedError

    # Executions.

    def next_batch(self) -> tuple[SequenceDecision, Execution | None]:
        """Return what is to be refused and when to look again, and what runs now, on an instance that is occupied."""
        reserved: dict[int, Slot] = {}

        def reserve(instance: int) -> bool:
            slot = self._slots[instance]
            if self._pool.take(slot):
                reserved[instance] = slot
                return True
            return False

        self._pool.withdraw()
        decision = self._batcher.schedule(_now_ns(), reserve)
        for dropped in decision.dropped:
            self._note_drop(dropped)
        execution = None
        if decision.batch is not None:
            execution = self._make_execution(decision)
            self._pool.occupy(reserved.pop(decision.instance), execution)
        for slot in reserved.values():
            self._pool.give_back(slot)
        self._pool.pass_on()
        return decision, execution

    def _make_execution(self, decision: SequenceDecision) -> Execution:
        assert decision.batch is not None
        real = [request for request in decision.batch if request is not None]
        for request in real:
            self._controls.add(request)
        requests = [request or self._controls.make_null(real[0]) for request in decision.batch]
        execution = Execution(requests, len(requests), decision.close_reason)
        execution.sequence_slots = list(decision.slots)
        return execution

    def end_execution(self, execution: Execution) -> list[InferenceRequest]:
        """The instance is done with ``execution``; return its requests without null requests."""
        slots = execution.sequence_slots
        assert slots is not None
        real = []
        instance = 0
        for request, slot in zip(execution.requests, slots, strict=True):
            if slot is not None:
                real.append(request)
                instance = slot.instance
        execution.batch_size = len(real)  # null requests are not counted
        self._batcher.end_execution(instance, real, _now_ns())
        self._look_again()
        return real

    def end_request(self, request: InferenceRequest) -> None:
        """``request`` has had its final response."""
        self._batcher.end_request(request, _now_ns())
        self._look_again()

    def _look_again(self) -> None:
        # Soon only if there is something: it would come between the next requests of those that are answered now, and split
        # their batch.
        if self._batcher.has_news:
            self._dispatch_soon()
        else:
            self._set_deadline(self._batcher.next_expiry_ns())

    def run_again(self, request: InferenceRequest, statistics: ModelStatistics) -> bool:
        """Let ``request`` run again when its execution ends; False: its model is not iterative."""
        if request.owner is None:  # it has had its final response: there is nothing to go on with
            return True
        if not self._batcher.reschedule(request):
            return False
        statistics.wait_again()
        request.instance = None
        if not request.cancelled:
            request.execution = None
        return True

    # Ends that no request asks for.

    def _note_drop(self, dropped: Dropped) -> None:
        self._counts.dropped[dropped.reason] += 1
        log.log(
            logging.WARNING if dropped.reason in (DropReason.RESTARTED, DropReason.LOST) else logging.INFO,
            "%s: sequence %r is over without its END: %s",
            self._label,
            dropped.sequence_id,
            _REASONS.get(dropped.reason, self._idle_text),
        )
        if dropped.has_run and dropped.reason in _TOLD:
            slot = self._slots[dropped.instance]
            drop = getattr(slot.instance, "drop_sequence", None)
            if drop is not None and slot.unavailable is None:
                drop(dropped.sequence_id)

    def refresh(self) -> None:
        """See which instances are away or back; what those knew that are away is gone."""
        now_ns = _now_ns()
        for instance, slot in enumerate(self._slots):
            if slot.unavailable is None:
                self._batcher.recover(instance, now_ns)
            else:
                error = Unavailable(f"the sequence is lost with its instance: {slot.unavailable}")
                self._batcher.lose(instance, error, now_ns)
        self._dispatch_soon()

    def __repr__(self) -> str:
        return f"Sequences({self._batcher!r})"


def _do_nothing() -> None:
    pass


def _set_nothing(_when_ns: int | None) -> None:
    pass


_REASONS: Final = {
    DropReason.CANCELLED: "one of its requests was cancelled while it waited",
    DropReason.RESTARTED: "its id was used to start another one",
    DropReason.LOST: "the process of its instance ended",
}
"""For the log; of those that are idle each model has its own."""
