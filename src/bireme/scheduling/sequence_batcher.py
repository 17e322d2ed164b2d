"""SequenceBatcher: keeps each sequence in one slot of one instance, and its requests in order and apart.

Admission, in this order (Triton's): one row per request; an id; no START once the server is stopping; no request of an
unknown sequence without START; then, ours, room in the queue. A new sequence takes the free slot with the lowest number over all
instances, or waits in the backlog, first come first served. END lets the id be forgotten at once; START on an active id
starts anew in the same slot, behind what waits there.

A sequence is over when its END is done, when nothing came for ``max_sequence_idle_microseconds``, when one of its waiting
requests was cancelled (those behind it are answered so, too), or when its instance's process died. Its slot is then given to
the next one: in `SequenceTable.release`, and nowhere else.

Source: Triton core ``sequence_batch_scheduler.cc``. Unlike there, a sequence is not idle while a request of it runs, and a slot
is refilled when the END request is done rather than when it begins.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from bireme.config.model_config import ModelConfig, StrategyDirect
from bireme.scheduling.interface import CloseReason
from bireme.scheduling.sequence_slots import DirectLane, DropReason, Lane, LiveSequence, OldestLane
from bireme.scheduling.sequence_table import SequenceTable
from bireme.types import (
    BiremeError,
    Cancelled,
    InferenceRequest,
    InvalidArgument,
    QueueFull,
    RequestTimedOut,
    SequenceSlot,
    Unavailable,
)

Refused = tuple[InferenceRequest, BiremeError]

_STOPPING: Final = "Server is stopping, scheduler for model has stopped accepting new inference requests"


class Dropped(NamedTuple):
    """A sequence that is over without its END."""

    sequence_id: int | str
    reason: DropReason
    instance: int
    """The number of the instance that it ran on."""
    has_run: bool
    """Whether the instance has seen something of it and may keep something for it."""


@dataclass(slots=True)
class SequenceDecision:
    """As `Decision`, for one instance. To be read, never changed."""

    batch: list[InferenceRequest | None] | None = None
    """Requests to execute together; None in it: a null request. None: nothing can start now."""
    slots: Sequence[SequenceSlot | None] = ()
    """For each of them the place of its sequence."""
    instance: int = 0
    """The number of the instance that runs the batch."""
    close_reason: CloseReason = CloseReason.SINGLE
    refused: Sequence[Refused] = ()
    dropped: Sequence[Dropped] = ()
    """Sequences to tell their instances about, before ``batch`` runs."""
    wake_at_ns: int | None = None


class SequenceBatcher:
    """The scheduler of a model with ``sequence_batching``."""

    __slots__ = (
        "_close_reasons",
        "_dropped",
        "_drops",
        "_hold_until",
        "_idle",
        "_idle_ns",
        "_is_iterative",
        "_is_stopping",
        "_last_id",
        "_max_waiting",
        "_model_name",
        "_num_cancelled",
        "_num_expired",
        "_refused",
        "_running",
        "_table",
        "_waiting",
    )

    def __init__(
        self, config: ModelConfig, num_instances: int, *, max_waiting: int = 0, hold_until: int = 0
    ) -> None:
        """Make an empty scheduler.

        Args:
            config: valid, with ``sequence_batching``.
            num_instances: how many instances the model has.
            max_waiting: how many requests may wait, in slots and in the backlog; 0: any number.
            hold_until: as for `DynamicBatcher`.
        """
        batching = config.sequence_batching
        assert batching is not None
        self._model_name = config.name
        num_rows = max(1, config.max_batch_size)
        oldest = batching.oldest
        lanes: list[Lane]
        if oldest is None:
            direct = batching.direct or StrategyDirect()
            lanes = [DirectLane(index, num_rows, direct) for index in range(num_instances)]
        else:
            num_slots = oldest.max_candidate_sequences or num_rows
            lanes = [
                OldestLane(index, num_slots, oldest, config.name, num_rows) for index in range(num_instances)
            ]
        self._table = SequenceTable(lanes)
        self._waiting: dict[InferenceRequest, LiveSequence] = {}
        self._running: dict[InferenceRequest, LiveSequence] = {}
        self._idle: OrderedDict[LiveSequence, int] = OrderedDict()
        """Sequences that nothing waits or runs of, the longest silent first, with the time since when."""
        self._idle_ns = batching.max_sequence_idle_microseconds * 1000
        self._is_iterative = batching.iterative_sequence
        self._is_stopping = False
        self._last_id = 0
        self._max_waiting = max_waiting
        self._hold_until = hold_until
        self._refused: dict[InferenceRequest, BiremeError] = {}
        """To be told with the next decision, as are the dropped."""
        self._dropped: list[Dropped] = []
        self._drops = dict.fromkeys(DropReason, 0)
        self._close_reasons = dict.fromkeys(CloseReason, 0)
        self._num_cancelled = self._num_expired = 0

    # What comes in.

    def enqueue(self, request: InferenceRequest, now_ns: int) -> None:
        """Take ``request``, whose ``queue_ns`` is set, in; where the model is iterative and it has no sequence, one begins.

        Raises:
            InvalidArgument: it has several rows, no id, or continues a sequence that is not known.
            Unavailable: it starts a sequence, and no more are started.
            QueueFull: too many requests wait.
        """
        sequence = self._find(request)
        if self._max_waiting and len(self._waiting) >= self._max_waiting:
            raise QueueFull(
                f"{request.id_prefix}Exceeds maximum queue size: {len(self._waiting)} requests wait for model "
                f"'{self._model_name}'"
            )
        if sequence is None:
            sequence = self._begin(request)
        elif request.sequence_start:
            self._note_drop(sequence, DropReason.RESTARTED)
        self._idle.pop(sequence, None)
        self._waiting[request] = sequence
        sequence.requests.append(request)
        if request.sequence_end:
            self._table.forget(sequence)
        if sequence.lane is None:
            self._table.note_timeout(sequence, request)
        elif sequence.current is None:
            self._table.offer(sequence, now_ns)

    def _find(self, request: InferenceRequest) -> LiveSequence | None:
        """Return the sequence that ``request`` continues; None: it starts one. Raises what `enqueue` does."""
        if request.batch_size > 1:
            raise InvalidArgument(
                f"inference request to model '{self._model_name}' must specify batch-size 1 due to "
                "requirements of sequence batcher"
            )
        sequence_id = request.sequence_id
        if not sequence_id and not self._is_iterative:
            raise InvalidArgument(
                f"inference request to model '{self._model_name}' must specify a non-zero or "
                "non-empty correlation ID"
            )
        if self._is_stopping and (request.sequence_start or not sequence_id):
            raise Unavailable(_STOPPING)
        sequence = self._table.known.get(sequence_id) if sequence_id else None
        if sequence is None and sequence_id and not request.sequence_start:
            raise InvalidArgument(
                f"inference request for sequence {sequence_id} to model '{self._model_name}' must "
                "specify the START flag on the first request of the sequence"
            )
        return sequence

    def _begin(self, request: InferenceRequest) -> LiveSequence:
        """Make a sequence for its first request."""
        if not request.sequence_id:
            self._last_id += 1
            while self._last_id in self._table.known:
                self._last_id += 1
            request.sequence_id = self._last_id
            request.sequence_start = True
        return self._table.begin(request.sequence_id)

    # What goes out.

    def schedule(self, now_ns: int, is_free: Callable[[int], bool]) -> SequenceDecision:
        """Decide what happens next. Call again until ``batch`` is None: each call yields one batch at most.

        ``is_free`` tells by its number whether an instance can run something now; asked only about those that have something.
        """
        self._expire(now_ns)
        wake_at_ns = self.next_expiry_ns()
        choice, lane = None, None
        if self._waiting and len(self._waiting) >= self._hold_until:
            self._hold_until = 0
            for lane in self._table.lanes:
                if not lane.has_offers or not is_free(lane.instance):
                    continue
                choice = lane.choose(now_ns)
                if choice.batch is not None:
                    break
                if choice.wake_at_ns is not None and (wake_at_ns is None or choice.wake_at_ns < wake_at_ns):
                    wake_at_ns = choice.wake_at_ns
        slots: Sequence[SequenceSlot | None] = ()
        reason = CloseReason.SINGLE
        batch = None
        if choice is not None and choice.batch is not None:
            batch, reason = choice.batch, choice.close_reason
            slots = [None if request is None else self._start(request) for request in batch]
            self._close_reasons[reason] += 1
        refused, dropped = self._refused, self._dropped
        if refused:
            self._refused = {}
        if dropped:
            self._dropped = []
        instance = lane.instance if lane is not None else 0
        return SequenceDecision(
            batch, slots, instance, reason, list(refused.items()) if refused else (), dropped, wake_at_ns
        )

    def _start(self, request: InferenceRequest) -> SequenceSlot:
        sequence = self._waiting.pop(request)
        self._running[request] = sequence
        sequence.is_executing = True
        sequence.is_answered = sequence.is_again = False
        place = sequence.place
        if place is None or request.sequence_start:
            lane = sequence.lane
            assert lane is not None
            sequence.place = place = SequenceSlot(sequence.id, lane.instance, sequence.number)
        else:
            place.is_start = False
        return place

    def end_execution(self, instance: int, requests: Iterable[InferenceRequest], now_ns: int) -> None:
        """The instance is done with the execution of ``requests``; null requests among them are ignored."""
        self._table.lanes[instance].end()
        for request in requests:
            sequence = self._running.get(request)
            if sequence is None:
                continue
            sequence.is_executing = False
            if sequence.is_again and not sequence.is_answered:
                self._run_again(sequence, request, now_ns)
            elif sequence.is_answered:
                self._complete(sequence, request, now_ns)

    def end_request(self, request: InferenceRequest, now_ns: int) -> None:
        """``request`` has had its final response; one that does not run is ignored."""
        sequence = self._running.get(request)
        if sequence is not None:
            sequence.is_answered = True
            if not sequence.is_executing:
                self._complete(sequence, request, now_ns)

    def reschedule(self, request: InferenceRequest) -> bool:
        """Let ``request``, which runs, run again when its execution ends; False: its model is not iterative."""
        sequence = self._running.get(request)
        if not self._is_iterative or sequence is None or not sequence.is_executing:
            return False
        sequence.is_again = True
        return True

    def _run_again(self, sequence: LiveSequence, request: InferenceRequest, now_ns: int) -> None:
        del self._running[request]
        request.sequence_start = request.sequence_end = False
        sequence.current = None
        sequence.requests.appendleft(request)
        self._waiting[request] = sequence
        if request.cancelled:
            self._cut(sequence, 0, now_ns)
        else:
            self._table.offer(sequence, now_ns)

    def _complete(self, sequence: LiveSequence, request: InferenceRequest, now_ns: int) -> None:
        """``request`` is done: go on with the sequence's next one, wait for it, or end the sequence."""
        del self._running[request]
        sequence.current = None
        if self._is_iterative and not sequence.requests:
            self._table.forget(sequence)
        self._go_on(sequence, now_ns)

    def _go_on(self, sequence: LiveSequence, now_ns: int) -> None:
        """Do what is due for a sequence that has no current request."""
        lane = sequence.lane
        if sequence.is_over:
            self._release(sequence, now_ns)
        elif lane is not None:
            if sequence.requests:
                self._table.offer(sequence, now_ns)
            else:
                self._idle[sequence] = now_ns

    def _release(self, sequence: LiveSequence, now_ns: int) -> None:
        """End a sequence that is over."""
        if sequence.drop_reason is not None:
            self._note_drop(sequence, sequence.drop_reason)
        self._table.release(sequence, now_ns)

    def _note_drop(self, sequence: LiveSequence, reason: DropReason) -> None:
        self._drops[reason] += 1
        instance = sequence.lane.instance if sequence.lane is not None else -1
        self._dropped.append(Dropped(sequence.id, reason, instance, sequence.place is not None))

    # Ends that no request asks for.

    def _expire(self, now_ns: int) -> None:
        """End sequences that are idle, and those in the backlog whose time is over."""
        while self._idle:
            sequence, since_ns = next(iter(self._idle.items()))
            if now_ns < since_ns + self._idle_ns:
                break
            del self._idle[sequence]
            self._table.forget(sequence)
            sequence.drop_reason = DropReason.IDLE
            self._release(sequence, now_ns)
        for sequence, _ in self._table.deadlines.pop_expired(now_ns):
            sequence.deadline_ns = 0
            for request in sequence.requests:
                self._num_expired += 1
                self._refuse(
                    request,
                    RequestTimedOut("timeout of the corresponding sequence has been expired"),
                )
            sequence.requests.clear()
            self._table.forget(sequence)
            self._release(sequence, now_ns)

    def next_expiry_ns(self) -> int | None:
        """Return when the next sequence is over if nothing happens until then; None: none is."""
        deadline_ns = self._table.deadlines.nearest_ns()
        if not self._idle:
            return deadline_ns
        idle_ns = next(iter(self._idle.values())) + self._idle_ns
        return idle_ns if deadline_ns is None or idle_ns < deadline_ns else deadline_ns

    def _refuse(self, request: InferenceRequest, error: BiremeError) -> None:
        del self._waiting[request]
        self._refused[request] = error

    def cancel(self, request: InferenceRequest, now_ns: int) -> bool:
        """Take ``request`` out of the queue; False when it is not waiting here.

        What waits behind it in its sequence is refused with the next decision, and the sequence is over when what is before it
        is done.
        """
        if self._refused.pop(request, None) is not None:
            return True
        sequence = self._waiting.get(request)
        if sequence is None:
            return False
        if sequence.current is request:
            assert sequence.lane is not None
            sequence.requests.appendleft(sequence.lane.withdraw(sequence))
        self._cut(sequence, sequence.requests.index(request), now_ns)
        del self._refused[request]
        return True

    def _cut(self, sequence: LiveSequence, index: int, now_ns: int) -> None:
        """Refuse what waits from the cancelled request at ``index`` on, up to the next start of a sequence."""
        waiting = list(sequence.requests)
        end = index + 1
        while end < len(waiting) and not waiting[end].sequence_start:
            end += 1
        what = "the request was cancelled"
        for request in waiting[index:end]:
            self._num_cancelled += 1
            self._refuse(request, Cancelled(request.id_prefix + what))
            what = "an earlier request of its sequence was cancelled"
        sequence.requests.clear()
        sequence.requests.extend(waiting[:index] + waiting[end:])
        if end == len(waiting):
            self._table.forget(sequence)
            sequence.drop_reason = DropReason.CANCELLED
        self._table.renew_timeout(sequence)
        if sequence.current is None:
            self._go_on(sequence, now_ns)

    def drain(self) -> list[InferenceRequest]:
        """Forget all sequences and return what was waiting; what runs is still to end."""
        drained = [*self._refused, *self._waiting]
        self._refused = {}
        self._idle.clear()
        self._table.clear_backlog()
        sequences = self._table.in_slots
        for sequence in sequences:
            self._empty(sequence)
            self._table.forget(sequence)
            sequence.drop_reason = None
        self._waiting.clear()
        for sequence in sequences:
            if sequence.is_over:
                self._table.release(sequence, 0)
        return drained

    def _empty(self, sequence: LiveSequence) -> None:
        """Take all that waits out of a sequence, which stays where it is."""
        sequence.requests.clear()
        if sequence.current is not None and not sequence.is_executing and sequence.current in self._waiting:
            assert sequence.lane is not None
            sequence.lane.withdraw(sequence)

    # Instances that go and come back.

    def lose(self, instance: int, error: BiremeError, now_ns: int) -> None:
        """The instance is away, and what its process knew is gone: so are its sequences. ``error`` answers what waits of them."""
        lane = self._table.lanes[instance]
        if lane.is_away:
            return
        self._table.leave(instance)
        for sequence in lane.slots:
            if sequence is None:
                continue
            waiting = [request for request, owner in self._waiting.items() if owner is sequence]
            self._empty(sequence)
            for request in waiting:
                self._refuse(request, error)
            self._idle.pop(sequence, None)
            self._table.forget(sequence)
            sequence.drop_reason = DropReason.LOST
            if sequence.is_over:
                self._release(sequence, now_ns)

    def recover(self, instance: int, now_ns: int) -> None:
        """The instance is back; one that was not away is no error."""
        self._table.come_back(instance, now_ns)

    def stop_starts(self, grace_ns: int, now_ns: int) -> None:
        """Let what has begun go on, and nothing begin; who is silent for ``grace_ns`` from now on is idle."""
        self._is_stopping = True
        saved_ns = self._idle_ns - grace_ns
        if saved_ns > 0:
            self._idle_ns = grace_ns
            for sequence, since_ns in self._idle.items():  # nobody gets longer than before
                self._idle[sequence] = min(since_ns + saved_ns, now_ns)

    # What others want to know.

    @property
    def num_waiting(self) -> int:
        """Number of requests that wait, in slots and in the backlog, or whose refusal waits to be told."""
        return len(self._waiting) + len(self._refused)

    @property
    def has_news(self) -> bool:
        """Whether the next decision may hold anything."""
        return bool(self._waiting or self._dropped or self._refused)

    @property
    def num_live(self) -> int:
        """Number of sequences that have begun and are not over."""
        return self._table.num_live

    def statistics(self) -> dict[str, Any]:
        """Return the state of slots and backlog, what was sent, by close reason, and how sequences ended early."""
        return {
            "scheduler": "sequence_batching",
            "waiting": len(self._waiting),
            "waiting_rows": len(self._waiting),
            "sequences": self.num_live,
            "backlog": len(self._table.backlog),
            "slots": sum(len(lane.slots) for lane in self._table.lanes),
            "started": self._table.num_begun,
            "batches": sum(self._close_reasons.values()),
            "close_reasons": {reason.value: count for reason, count in self._close_reasons.items() if count},
            "dropped": {reason.value: count for reason, count in self._drops.items()},
            "expired": self._num_expired,
            "cancelled": self._num_cancelled,
        }

    def __repr__(self) -> str:
        return (
            f"SequenceBatcher({self._model_name!r}, waiting={len(self._waiting)}, sequences={self.num_live}, "
            f"backlog={len(self._table.backlog)})"
        )
