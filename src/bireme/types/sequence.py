"""SequenceSlot: a live sequence's place in an instance, as an execution tells it to the instance."""

from __future__ import annotations

from typing import Any


class SequenceSlot:
    """One sequence in its slot: made for the sequence's first request to run, gone with its last.

    Nothing keeps a list of slots with state: a ``state`` is freed when the scheduler and the execution let go of the object, so
    exactly once, whether the sequence ended, was idle for too long, was cancelled or was started anew. Requests of one
    sequence never run at the same time, so whoever executes one may read and write ``state`` without a lock.
    """

    __slots__ = ("batch_key", "instance", "is_start", "next", "number", "sequence_id", "state")

    def __init__(self, sequence_id: int | str, instance: int, number: int) -> None:
        self.sequence_id = sequence_id
        self.instance = instance
        """The number of the instance, among those of its model version."""
        self.number = number
        """The number of the slot in its instance: with the direct strategy, the row of the batch."""
        self.is_start = True
        """Whether the request that runs now is the sequence's first."""
        self.state: Any = None
        """Whatever the instance carries from one request to the next. None at the start, and after a first request that
        failed before it left any."""
        self.batch_key: object = None
        """The sequence's requests share a batch only with those of sequences whose keys are equal: a state may grow, and batches
        have one shape. Hashable; None: as at the start. Whoever writes ``state`` writes it."""

        self.next: tuple[Any, object] | None = None
        """What ``state`` and ``batch_key`` are to be if the caller of the request that runs hears of its success."""

    def advance(self, *, has_succeeded: bool) -> None:
        """The request that ran is over: go on with what it has left, or with what was before it."""
        if self.next is not None:
            if has_succeeded:
                self.state, self.batch_key = self.next
            self.next = None

    def __repr__(self) -> str:
        start = ", start" if self.is_start else ""
        return f"SequenceSlot({self.sequence_id!r}, instance {self.instance}, slot {self.number}{start})"
