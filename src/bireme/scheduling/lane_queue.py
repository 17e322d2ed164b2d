"""LaneQueue: a FIFO from which requests that can share a batch are taken together.

While all waiting requests have equal batch keys, which is nearly always, the queue is one ordered dict and nothing
else. The first request with another key splits it into lanes, one per key; it becomes one again when it runs empty.
So a mix of shapes costs a second dict entry per request, and forming a batch never looks at a request that cannot
be in it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import Final

from bireme.types import InferenceRequest

Lane = OrderedDict[InferenceRequest, int]
"""Requests in arrival order, each with the time (ns) at which it was queued. The C linked list under OrderedDict
gives what neither deque nor dict has: O(1) removal from the middle and O(1) removal of the first."""

_EMPTY: Final = Lane()


class LaneQueue:
    """Waiting requests in arrival order. Keys must be hashable."""

    __slots__ = ("_key", "_lanes", "_order")

    def __init__(self) -> None:
        self._order = Lane()
        self._key: object = None  # of all requests, while there are no lanes
        self._lanes: dict[object, Lane] | None = None

    @property
    def is_uniform(self) -> bool:
        """Whether every waiting request can share a batch with every other."""
        return self._lanes is None or len(self._lanes) <= 1

    @property
    def head(self) -> InferenceRequest:
        """The request that has waited for longest. The queue must not be empty."""
        return next(iter(self._order))

    @property
    def head_queued_ns(self) -> int:
        """When the head was queued."""
        return next(iter(self._order.values()))

    def add(self, request: InferenceRequest, queued_ns: int) -> None:
        """Append ``request``."""
        order = self._order
        key = request.batch_key
        if self._lanes is None:
            if not order:
                self._key = key
            elif key != self._key:
                self._lanes = {self._key: order.copy()}
        order[request] = queued_ns
        if self._lanes is not None:
            lane = self._lanes.get(key)
            if lane is None:
                lane = self._lanes[key] = Lane()
            lane[request] = queued_ns

    def discard(self, request: InferenceRequest) -> int | None:
        """Take ``request`` out and return when it was queued; None when it is not here."""
        queued_ns = self._order.pop(request, None)
        if queued_ns is not None and self._lanes is not None:
            del self._lanes[request.batch_key][request]
            self._tidy(request.batch_key, self._lanes)
        return queued_ns

    def lane(self, key: object) -> Lane:
        """Return the requests with this key, to be read only."""
        if self._lanes is not None:
            return self._lanes.get(key, _EMPTY)
        return self._order if self._key == key else _EMPTY

    def take(self, key: object, max_requests: int) -> list[InferenceRequest]:
        """Take out the first ``max_requests`` requests with this key, or all of them if there are fewer."""
        lanes = self._lanes
        if lanes is None:
            return self.take_first(max_requests) if self._key == key else []
        lane = lanes.get(key)
        if lane is None:
            return []
        taken = _take_first(lane, max_requests)
        for request in taken:
            del self._order[request]
        self._tidy(key, lanes)
        return taken

    def take_first(self, max_requests: int) -> list[InferenceRequest]:
        """Take out the first ``max_requests`` requests, or all; the queue must be uniform."""
        if self._lanes is not None:
            (key,) = self._lanes
            return self.take(key, max_requests)
        return _take_first(self._order, max_requests)

    def _tidy(self, key: object, lanes: dict[object, Lane]) -> None:
        if not lanes[key]:
            del lanes[key]
        # Not already at one lane: the next split would copy the whole queue, and one stray shape in turn with many
        # equal ones would pay that each time. From empty to empty there is one split at most.
        if not lanes:
            self._lanes = None

    def __iter__(self) -> Iterator[InferenceRequest]:
        return iter(self._order)

    def __len__(self) -> int:
        return len(self._order)

    def __repr__(self) -> str:
        num_lanes = len(self._lanes) if self._lanes is not None else min(1, len(self._order))
        return f"LaneQueue({len(self)} requests, {num_lanes} lanes)"


def _take_first(lane: Lane, max_requests: int) -> list[InferenceRequest]:
    if max_requests >= len(lane):
        taken = list(lane)
        lane.clear()
        return taken
    return [lane.popitem(last=False)[0] for _ in range(max_requests)]
