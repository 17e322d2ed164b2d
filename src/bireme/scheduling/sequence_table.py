"""SequenceTable: which sequences there are, and which slot each has.

A sequence is made by `begin` and ended by `release`, once each; its slot then goes to the first of the backlog.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from heapq import heapify, heappop, heappush

from bireme.scheduling.deadlines import Deadlines
from bireme.scheduling.sequence_slots import Lane, LiveSequence
from bireme.types import InferenceRequest


class SequenceTable:
    """The live sequences of a model."""

    __slots__ = ("_ending", "_free", "backlog", "deadlines", "known", "lanes", "num_begun")

    def __init__(self, lanes: Sequence[Lane]) -> None:
        self.lanes = lanes
        self._free = [(number, lane.instance) for lane in lanes for number in range(len(lane.slots))]
        """A heap of the free slots: the lowest number first, so that sequences spread over the instances."""
        heapify(self._free)
        self.backlog: OrderedDict[LiveSequence, None] = OrderedDict()
        self.deadlines: Deadlines[LiveSequence] = Deadlines()
        """Of sequences in the backlog."""
        self.known: dict[int | str, LiveSequence] = {}
        """By id, those that further requests belong to."""
        self._ending: dict[int | str, LiveSequence] = {}
        """By id, the latest of those that are not known any more and not over either."""
        self.num_begun = 0

    def begin(self, sequence_id: int | str) -> LiveSequence:
        """Make a sequence, in the best free slot or in the backlog; no other with its id is known."""
        sequence = LiveSequence(sequence_id)
        self.known[sequence_id] = sequence
        self.num_begun += 1
        before = self._ending.get(sequence_id)
        if before is not None:
            sequence.after, before.then = before, sequence
        if self._free:
            number, instance = heappop(self._free)
            self._place(sequence, self.lanes[instance], number)
        else:
            self.backlog[sequence] = None
        return sequence

    def forget(self, sequence: LiveSequence) -> None:
        """Requests with the sequence's id do not belong to it any more."""
        if sequence.is_known:
            sequence.is_known = False
            del self.known[sequence.id]
            self._ending[sequence.id] = sequence

    def offer(self, sequence: LiveSequence, now_ns: int) -> None:
        """Let the next request of a sequence that is in a slot run, unless an earlier one with its id is not over."""
        if sequence.after is None:
            assert sequence.lane is not None
            sequence.lane.offer(sequence, now_ns)

    def release(self, sequence: LiveSequence, now_ns: int) -> None:
        """End a sequence that is over; its slot goes to the next one."""
        self._unlink(sequence, now_ns)
        lane, number = sequence.lane, sequence.number
        if lane is None:
            self._leave_backlog(sequence)
            return
        sequence.lane = sequence.place = None
        lane.slots[number] = None
        if not lane.is_away:
            self._refill(lane, number, now_ns)

    def _unlink(self, sequence: LiveSequence, now_ns: int) -> None:
        """Let the sequence with the same id go on that waits for this one, or wait for what this one waited for."""
        before, then = sequence.after, sequence.then
        sequence.after = sequence.then = None
        if self._ending.get(sequence.id) is sequence:
            if before is None:
                del self._ending[sequence.id]
            else:
                self._ending[sequence.id] = before
        if before is not None:
            before.then = then
        if then is not None:
            then.after = before
            if before is None and then.lane is not None and then.requests:
                then.lane.offer(then, now_ns)

    def _place(self, sequence: LiveSequence, lane: Lane, number: int) -> None:
        lane.slots[number] = sequence
        sequence.lane, sequence.number = lane, number

    def _refill(self, lane: Lane, number: int, now_ns: int) -> None:
        if not self.backlog:
            heappush(self._free, (number, lane.instance))
            return
        sequence = next(iter(self.backlog))
        self._leave_backlog(sequence)
        self._place(sequence, lane, number)
        self.offer(sequence, now_ns)

    def _leave_backlog(self, sequence: LiveSequence) -> None:
        del self.backlog[sequence]
        if sequence.deadline_ns:
            self.deadlines.discard(sequence)
            sequence.deadline_ns = 0

    def note_timeout(self, sequence: LiveSequence, request: InferenceRequest) -> None:
        """In the backlog, the earliest deadline of its requests is that of the whole sequence."""
        if request.timeout_us > 0:
            at_ns = request.queue_ns + request.timeout_us * 1000
            if not sequence.deadline_ns or at_ns < sequence.deadline_ns:
                sequence.deadline_ns = at_ns
                self.deadlines.add(sequence, at_ns)

    def renew_timeout(self, sequence: LiveSequence) -> None:
        """Find the deadline anew, now that a sequence in the backlog has fewer requests."""
        if sequence.deadline_ns:
            self.deadlines.discard(sequence)
            sequence.deadline_ns = 0
            for request in sequence.requests:
                self.note_timeout(sequence, request)

    def leave(self, instance: int) -> None:
        """Give no slot of an instance to anyone, until `come_back`."""
        self.lanes[instance].is_away = True
        self._free = [slot for slot in self._free if slot[1] != instance]
        heapify(self._free)

    def come_back(self, instance: int, now_ns: int) -> None:
        """The slots of an instance may be used again; nothing happens if it was not away."""
        lane = self.lanes[instance]
        if lane.is_away:
            lane.is_away = False
            for number, sequence in enumerate(lane.slots):
                if sequence is None:
                    self._refill(lane, number, now_ns)

    def clear_backlog(self) -> None:
        """End all sequences that have no slot."""
        for sequence in list(self.backlog):
            self.forget(sequence)
            sequence.requests.clear()
            self.release(sequence, 0)

    @property
    def in_slots(self) -> list[LiveSequence]:
        """The sequences that have a slot."""
        return [sequence for lane in self.lanes for sequence in lane.slots if sequence is not None]

    @property
    def num_live(self) -> int:
        """Number of sequences that have begun and are not over."""
        return len(self.backlog) + sum(len(lane.slots) - lane.slots.count(None) for lane in self.lanes)

    def __repr__(self) -> str:
        return f"SequenceTable({self.num_live} live, {len(self.backlog)} in the backlog, {len(self._free)} slots free)"
