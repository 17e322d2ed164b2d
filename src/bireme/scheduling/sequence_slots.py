"""Slots of sequences: what is known of a live sequence, and how the slots of one instance yield batches.

Both strategies take from each sequence at most one request at a time: `offer` makes it ready, and the next one is
offered only when it is done. A sequence without a request here has none that could run.
"""

from __future__ import annotations

from collections import deque
from enum import StrEnum
from typing import Any, NamedTuple, Protocol

from bireme.config.model_config import ModelDynamicBatching, StrategyDirect, StrategyOldest
from bireme.scheduling.dynamic_batch import DynamicBatcher
from bireme.scheduling.interface import CloseReason
from bireme.types import InferenceRequest, SequenceSlot


class DropReason(StrEnum):
    """Why a sequence is over without its END."""

    IDLE = "idle"  # nothing came for as long as the config allows
    CANCELLED = "cancelled"  # one of its requests was cancelled while it waited
    RESTARTED = "restarted"  # its id was used to start another one
    LOST = "lost"  # the process of its instance died


class LiveSequence:
    """A sequence that has a slot, or waits for one in the backlog."""

    __slots__ = (
        "after",
        "current",
        "deadline_ns",
        "drop_reason",
        "id",
        "is_again",
        "is_answered",
        "is_executing",
        "is_known",
        "lane",
        "number",
        "place",
        "requests",
        "then",
    )

    def __init__(self, sequence_id: int | str) -> None:
        self.id = sequence_id
        self.requests: deque[InferenceRequest] = deque()
        """What waits behind ``current``, in order."""
        self.lane: Lane | None = None
        """The instance it belongs to; None: it is in the backlog."""
        self.number = -1
        self.current: InferenceRequest | None = None
        """The one request that is offered or runs."""
        self.is_executing = False
        self.is_answered = False
        self.is_again = False
        """Whether ``current`` is to run again, as its model says."""
        self.is_known = True
        """Whether requests with its id still belong to it."""
        self.place: SequenceSlot | None = None
        """What its instance knows; None: nothing of it has run."""
        self.deadline_ns = 0
        """In the backlog: the earliest deadline of its requests; 0: none."""
        self.drop_reason: DropReason | None = None
        self.after: LiveSequence | None = None
        """An earlier sequence with the same id that is not over: this one begins behind it, as models may tell them apart by
        the id alone."""
        self.then: LiveSequence | None = None
        """The later sequence with the same id."""

    def take_next(self) -> InferenceRequest:
        """Make the next request the current one."""
        self.current = request = self.requests.popleft()
        if self.place is not None and self.place.batch_key is not None:
            request.batch_key = (request.batch_key, self.place.batch_key)
        return request

    @property
    def is_over(self) -> bool:
        """Whether nothing waits or runs, and nothing can come."""
        return not self.is_known and self.current is None and not self.requests

    def __repr__(self) -> str:
        where = "backlog" if self.lane is None else f"instance {self.lane.instance}, slot {self.number}"
        return f"LiveSequence({self.id!r}, {where}, {len(self.requests)} waiting, current={self.current is not None})"


class Choice(NamedTuple):
    """What one instance is to run, or when to look again."""

    batch: list[InferenceRequest | None] | None
    """None in it: a null request, for a slot that has nothing to run."""
    close_reason: CloseReason = CloseReason.INSTANCE_FREE
    wake_at_ns: int | None = None


class Lane(Protocol):
    """The slots of one instance."""

    instance: int
    """Its number."""
    slots: list[LiveSequence | None]
    is_away: bool
    """Whether the instance cannot run anything now, and may not for long."""

    def offer(self, sequence: LiveSequence, now_ns: int) -> None:
        """The next request of ``sequence``, which is in a slot here and has no current one, may run."""

    def withdraw(self, sequence: LiveSequence) -> InferenceRequest:
        """Take back what was offered and does not run."""

    @property
    def has_offers(self) -> bool:
        """Whether there is something that a free instance could run."""

    def choose(self, now_ns: int) -> Choice:
        """Return a batch for the instance, which is free and has offers. What is in it is not offered any more."""

    def end(self) -> None:
        """An execution of the instance has ended."""


class DirectLane:
    """Each slot is a row of the batch; one execution at a time. Source: Triton ``DirectSequenceBatch``."""

    __slots__ = (
        "_delay_ns",
        "_is_running",
        "_num_needed",
        "_ready",
        "instance",
        "is_away",
        "slots",
    )

    def __init__(self, instance: int, num_slots: int, strategy: StrategyDirect) -> None:
        self.instance = instance
        self.is_away = False
        self.slots: list[LiveSequence | None] = [None] * num_slots
        utilization = strategy.minimum_slot_utilization
        self._delay_ns = strategy.max_queue_delay_microseconds * 1000 if utilization > 0 else 0
        self._num_needed = utilization * num_slots
        self._ready: dict[int, tuple[LiveSequence, int]] = {}
        """What is offered: by slot, with the time since when."""
        self._is_running = False

    def offer(self, sequence: LiveSequence, now_ns: int) -> None:
        """See `Lane.offer`."""
        sequence.take_next()
        self._ready[sequence.number] = (sequence, now_ns)

    def withdraw(self, sequence: LiveSequence) -> InferenceRequest:
        """See `Lane.withdraw`."""
        del self._ready[sequence.number]
        request = sequence.current
        assert request is not None
        sequence.current = None
        return request

    @property
    def has_offers(self) -> bool:
        """See `Lane.has_offers`."""
        return bool(self._ready) and not self._is_running

    def choose(self, now_ns: int) -> Choice:
        """See `Lane.choose`; the rows of slots that have nothing to run are null requests."""
        ready = self._ready
        reason = CloseReason.FULL if len(ready) == len(self.slots) else CloseReason.INSTANCE_FREE
        if self._delay_ns and len(ready) < self._num_needed:
            send_at_ns = min(since_ns for _, since_ns in ready.values()) + self._delay_ns
            if now_ns < send_at_ns:
                return Choice(None, wake_at_ns=send_at_ns)
            reason = CloseReason.DELAY
        # The lowest slot says which inputs the batch has; others with different ones have to wait for the next.
        first = ready[min(ready)][0].current
        assert first is not None
        batch: list[InferenceRequest | None] = []
        for number in sorted(ready):
            request = ready[number][0].current
            assert request is not None
            if request.batch_key == first.batch_key:
                batch += [None] * (number - len(batch))
                batch.append(request)
                del ready[number]
        self._is_running = True
        return Choice(batch, reason)

    def end(self) -> None:
        """See `Lane.end`."""
        self._is_running = False


class OldestLane:
    """A dynamic batcher over the oldest request of each sequence. Source: Triton ``OldestSequenceBatch``."""

    __slots__ = ("_batcher", "instance", "is_away", "slots")

    def __init__(
        self, instance: int, num_slots: int, strategy: StrategyOldest, model_name: str, max_batch_size: int
    ) -> None:
        self.instance = instance
        self.is_away = False
        self.slots: list[LiveSequence | None] = [None] * num_slots
        batching = ModelDynamicBatching(
            preferred_batch_size=strategy.preferred_batch_size,
            max_queue_delay_microseconds=strategy.max_queue_delay_microseconds,
        )
        self._batcher = DynamicBatcher(model_name, batching, max_batch_size)

    def offer(self, sequence: LiveSequence, now_ns: int) -> None:
        """See `Lane.offer`."""
        self._batcher.enqueue(sequence.take_next(), now_ns)

    def withdraw(self, sequence: LiveSequence) -> InferenceRequest:
        """See `Lane.withdraw`."""
        request = sequence.current
        assert request is not None
        self._batcher.cancel(request)
        sequence.current = None
        return request

    @property
    def has_offers(self) -> bool:
        """See `Lane.has_offers`."""
        return self._batcher.num_waiting > 0

    def choose(self, now_ns: int) -> Choice:
        """See `Lane.choose`; rows are in no order that means anything."""
        decision = self._batcher.schedule(now_ns, instance_free=True)
        batch: list[Any] | None = decision.batch
        return Choice(batch, decision.close_reason, decision.wake_at_ns)

    def end(self) -> None:
        """See `Lane.end`; an instance that takes several executions may have them."""
