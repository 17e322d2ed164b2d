"""Deadlines: when the next of many waiting things expires.

Most things that wait leave long before their deadline, so leaving must be cheap: a binary heap with lazy deletion.
What stays behind in the heap is two integers, never the thing itself, and the heap is rebuilt once more than half of
it is stale; a queue that runs for months neither grows nor keeps a request's tensors alive.
"""

from __future__ import annotations

from collections.abc import Hashable
from heapq import heapify, heappop, heappush
from typing import Final, Generic, TypeVar

T = TypeVar("T", bound=Hashable)

_NUM_STALE_TOLERATED: Final = 64
"""Below this a rebuild costs more than the memory it gives back."""


class Deadlines(Generic[T]):
    """A set of items, each with one deadline. All operations are amortised O(log n) or better."""

    __slots__ = ("_heap", "_items", "_num_added", "_tickets")

    def __init__(self) -> None:
        self._heap: list[
            tuple[int, int]
        ] = []  # (deadline, ticket); equal deadlines expire in the order added
        self._items: dict[int, T] = {}  # by ticket
        self._tickets: dict[T, int] = {}
        self._num_added = 0

    def add(self, item: T, at_ns: int) -> None:
        """Let ``item`` expire at ``at_ns``; this replaces a deadline that it has already."""
        self.discard(item)
        self._num_added = ticket = self._num_added + 1
        self._tickets[item] = ticket
        self._items[ticket] = item
        heappush(self._heap, (at_ns, ticket))

    def discard(self, item: T) -> None:
        """Forget ``item``; nothing happens when it has no deadline."""
        ticket = self._tickets.pop(item, None)
        if ticket is None:
            return
        del self._items[ticket]
        if len(self._heap) > 2 * len(self._items) + _NUM_STALE_TOLERATED:
            self._heap = [node for node in self._heap if node[1] in self._items]
            heapify(self._heap)

    def nearest_ns(self) -> int | None:
        """Return the earliest deadline, None when nothing can expire."""
        heap = self._heap
        while heap and heap[0][1] not in self._items:
            heappop(heap)
        return heap[0][0] if heap else None

    def pop_expired(self, now_ns: int) -> list[tuple[T, int]]:
        """Take out everything whose deadline is not after ``now_ns``: (item, deadline) pairs, earliest first."""
        expired: list[tuple[T, int]] = []
        heap = self._heap
        while heap and heap[0][0] <= now_ns:
            at_ns, ticket = heappop(heap)
            item = self._items.pop(ticket, None)
            if item is not None:
                del self._tickets[item]
                expired.append((item, at_ns))
        return expired

    def clear(self) -> None:
        """Forget everything."""
        self._heap.clear()
        self._items.clear()
        self._tickets.clear()

    def __len__(self) -> int:
        return len(self._items)

    def __repr__(self) -> str:
        return f"Deadlines({len(self)}, nearest_ns={self.nearest_ns()})"
