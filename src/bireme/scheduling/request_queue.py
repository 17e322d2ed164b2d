"""RequestQueue: what waits for a batch, by priority level, under each level's queue policy.

Service order: levels strictly from 1 down, and inside a level first the requests on time, then the delayed ones
(``timeout_action: DELAY``). A batch is offered as *candidates*: the request first in service order and every other
that can join it. A later request of the same queue may overtake an earlier one only by joining a batch that the
earlier one cannot be part of; none overtakes across levels.

Counts and limits are exact at every moment: what was cancelled is gone at once, what has expired never counts.

Source: Triton core ``scheduler_utils.cc`` (PriorityQueue); see `RequestQueue.expire` for where we are stricter.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any, Final

from bireme.config.model_config import ModelQueuePolicy
from bireme.scheduling.deadlines import Deadlines
from bireme.scheduling.lane_queue import LaneQueue
from bireme.types import BiremeError, InferenceRequest, QueueFull, RequestTimedOut

Refused = tuple[InferenceRequest, BiremeError]

_NUM_IDLE_LEVELS_KEPT: Final = 32
"""Levels beyond this are dropped when they run empty: clients choose the level, and there may be 2**64 of them."""

_UNKNOWN: Final = object()

_level_number = attrgetter("number")


class _Level:
    """One priority level: its policy, ready to use, and its two queues."""

    __slots__ = (
        "delayed",
        "delays_expired",
        "max_queue_size",
        "may_override",
        "number",
        "on_time",
        "timeout_us",
    )

    def __init__(self, number: int, policy: ModelQueuePolicy) -> None:
        self.number = number
        self.max_queue_size = policy.max_queue_size
        self.timeout_us = policy.default_timeout_microseconds
        self.may_override = policy.allow_timeout_override
        self.delays_expired = policy.timeout_action == "DELAY"
        self.on_time = LaneQueue()
        self.delayed = LaneQueue()

    @property
    def num_waiting(self) -> int:
        return len(self.on_time) + len(self.delayed)


class RequestQueue:
    """The waiting requests of one model version.

    Its methods trust what was checked before: a request is pushed once, its ``batch_size`` is at least 1 and its
    ``batch_key`` is hashable; neither these nor its ``priority`` change while it waits.
    """

    __slots__ = (
        "_default_level",
        "_default_policy",
        "_delays",
        "_expired",
        "_levels",
        "_model_name",
        "_num_levels",
        "_policies",
        "_rejections",
        "_sorted_levels",
        "has_timeouts",
        "num_rows",
        "num_waiting",
    )

    def __init__(
        self,
        model_name: str,
        *,
        default_policy: ModelQueuePolicy | None = None,
        priority_levels: int = 0,
        default_priority_level: int = 0,
        policies: Mapping[int, ModelQueuePolicy] | None = None,
    ) -> None:
        """Make an empty queue. Without ``priority_levels`` there is one level, number 0, under ``default_policy``."""
        self._model_name = model_name
        self._num_levels = priority_levels
        self._default_level = default_priority_level if priority_levels else 0
        self._default_policy = default_policy or ModelQueuePolicy()
        self._policies = policies if policies and priority_levels else {}
        self.has_timeouts = any(
            policy.default_timeout_microseconds for policy in (self._default_policy, *self._policies.values())
        )
        """Whether anything here can ever expire."""
        self._levels: dict[int, _Level] = {}
        self._sorted_levels: list[_Level] = []
        self._rejections: Deadlines[InferenceRequest] = Deadlines()
        self._delays: Deadlines[InferenceRequest] = Deadlines()
        self._expired: list[Refused] = []  # seen by `push`, not yet handed out by `expire`
        self.num_waiting = 0
        """Number of requests that wait, delayed ones included."""
        self.num_rows = 0
        """Their rows together."""

    # In and out

    def push(self, request: InferenceRequest, now_ns: int) -> None:
        """Append ``request`` to its level; priority 0 or above the number of levels means the default level.

        Raises:
            QueueFull: as many requests as the level's policy allows wait already.
        """
        number = request.priority
        if not 0 < number <= self._num_levels:
            number = self._default_level
        level = self._levels.get(number)
        if level is None:
            level = self._open_level(number)
        elif level.max_queue_size and level.num_waiting >= level.max_queue_size:
            level = self._make_room(number, request, now_ns)
        level.on_time.add(request, now_ns)
        self.num_waiting += 1
        self.num_rows += request.batch_size
        if level.timeout_us:
            self._set_deadline(level, request, now_ns)

    def take(self, num_requests: int) -> list[InferenceRequest]:
        """Take out the first ``num_requests`` candidates, in order, or all of them if there are fewer."""
        uniform = self._uniform_queue()
        taken = self._collect(num_requests) if uniform is None else uniform.take_first(num_requests)
        self._forget(taken)
        return taken

    def _collect(self, num_requests: int) -> list[InferenceRequest]:
        taken: list[InferenceRequest] = []
        visited: list[_Level] = []
        for level, queue, key in self._candidate_queues():
            taken += queue.take(key, num_requests - len(taken))
            visited.append(level)
            if len(taken) == num_requests:
                break
        for level in visited:
            self._drop_if_idle(level)
        return taken

    def discard(self, request: InferenceRequest) -> bool:
        """Take ``request`` out, in constant time; False when it does not wait here."""
        level = self._level_of(request)
        if level is None:
            return False
        if level.on_time.discard(request) is None and level.delayed.discard(request) is None:
            return False
        self._drop_if_idle(level)
        self._forget([request])
        return True

    def drain(self) -> list[InferenceRequest]:
        """Take everything out, in service order, what has expired unnoticed first."""
        drained = [request for request, _ in self._expired]
        drained += (
            request
            for level in self._sorted_levels
            for queue in (level.on_time, level.delayed)
            for request in queue
        )
        self._expired.clear()
        self._levels.clear()
        self._sorted_levels.clear()
        self._rejections.clear()
        self._delays.clear()
        self.num_waiting = self.num_rows = 0
        return drained

    # Candidates

    def candidates(self) -> Iterator[tuple[InferenceRequest, int]]:
        """Yield, in service order, the requests that the next batch may consist of, each with its time of queueing.

        When this ends with requests left over, those wait that cannot share a batch with the yielded ones. The queue
        must not change meanwhile.
        """
        for _, queue, key in self._candidate_queues():
            yield from queue.lane(key).items()

    def oldest_if_uniform_ns(self) -> int | None:
        """Return when the oldest request was queued if all that waits is one queue of one batch key; None if not.

        Then the candidates are everything, and nobody needs to look at them one by one. Something must be waiting.
        """
        queue = self._uniform_queue()
        return None if queue is None else queue.head_queued_ns

    def _uniform_queue(self) -> LaneQueue | None:
        """Return the queue that holds all that waits, with equal keys; None when there is no such.

        Models without priorities and of one input shape have no other state.
        """
        if len(self._sorted_levels) != 1:
            return None
        level = self._sorted_levels[0]
        return level.on_time if not level.delayed and level.on_time.is_uniform else None

    def _candidate_queues(self) -> Iterator[tuple[_Level, LaneQueue, object]]:
        """Yield, in service order, each queue that has requests for the next batch, and the batch's key."""
        key: object = _UNKNOWN
        for level in self._sorted_levels:
            for queue in (level.on_time, level.delayed):
                if not queue:
                    continue
                if key is _UNKNOWN:
                    key = queue.head.batch_key
                has_candidates = bool(queue.lane(key))
                is_exhausted = has_candidates and queue.is_uniform
                if has_candidates:
                    yield level, queue, key
                if not is_exhausted:
                    return  # somebody stays behind here, whom nobody of a later queue may overtake

    # Time

    def expire(self, now_ns: int) -> Sequence[Refused]:
        """Apply the timeouts: move what is to be delayed, take out and return what is to be refused.

        A request expires at its deadline, not at the next sweep: Triton looks every 500 ms at worst, and only at
        requests that the batcher reaches.
        """
        for request, _ in self._delays.pop_expired(now_ns):
            self._delay(request)
        self._reject_expired(now_ns)
        if not self._expired:
            return ()
        expired, self._expired = self._expired, []
        return expired

    def next_rejection_ns(self) -> int | None:
        """Return when the next request must be refused, None when none has a deadline."""
        return self._rejections.nearest_ns()

    def next_deadline_ns(self) -> int | None:
        """Return when the next request is refused or delayed, None when neither can happen."""
        nearest = self.next_rejection_ns()
        delay = self._delays.nearest_ns()
        if nearest is None or delay is None:
            return delay if nearest is None else nearest
        return min(nearest, delay)

    def _set_deadline(self, level: _Level, request: InferenceRequest, now_ns: int) -> None:
        timeout_us = level.timeout_us
        # An override can only shorten, and only what has a limit: without a default, clients cannot set one.
        if level.may_override and 0 < request.timeout_us < timeout_us:
            timeout_us = request.timeout_us
        deadlines = self._delays if level.delays_expired else self._rejections
        deadlines.add(request, now_ns + timeout_us * 1000)

    def _delay(self, request: InferenceRequest) -> None:
        level = self._level_of(request)
        assert level is not None
        queued_ns = level.on_time.discard(request)
        assert queued_ns is not None
        level.delayed.add(request, queued_ns)

    def _reject_expired(self, now_ns: int) -> None:
        for request, deadline_ns in self._rejections.pop_expired(now_ns):
            level = self._level_of(request)
            assert level is not None
            queued_ns = level.on_time.discard(request)
            assert queued_ns is not None
            self.num_waiting -= 1
            self.num_rows -= request.batch_size
            self._drop_if_idle(level)
            error = RequestTimedOut(
                f"{request.id_prefix}Request timeout expired: it waited in the queue of model "
                f"'{self._model_name}' for {(now_ns - queued_ns) // 1000} us, its limit is "
                f"{(deadline_ns - queued_ns) // 1000} us"
            )
            self._expired.append((request, error))

    # Levels

    def _make_room(self, number: int, request: InferenceRequest, now_ns: int) -> _Level:
        """Return the level once it has a place for ``request``: what is overdue holds none."""
        self._reject_expired(now_ns)
        level = self._levels.get(number) or self._open_level(number)
        if level.num_waiting < level.max_queue_size:
            return level
        where = f" at priority level {number}" if self._num_levels else ""
        raise QueueFull(
            f"{request.id_prefix}Exceeds maximum queue size: {level.num_waiting} requests wait for model "
            f"'{self._model_name}'{where}, its max_queue_size is {level.max_queue_size}"
        )

    def _level_of(self, request: InferenceRequest) -> _Level | None:
        number = request.priority
        return self._levels.get(number if 0 < number <= self._num_levels else self._default_level)

    def _open_level(self, number: int) -> _Level:
        level = self._levels[number] = _Level(number, self._policies.get(number, self._default_policy))
        insort(self._sorted_levels, level, key=_level_number)
        return level

    def _drop_if_idle(self, level: _Level) -> None:
        if len(self._sorted_levels) > _NUM_IDLE_LEVELS_KEPT and not level.num_waiting:
            del self._levels[level.number]
            del self._sorted_levels[bisect_left(self._sorted_levels, level.number, key=_level_number)]

    def _forget(self, requests: list[InferenceRequest]) -> None:
        """Update the counts and deadlines after ``requests`` left their queues."""
        self.num_waiting -= len(requests)
        num_rows = self.num_rows
        for request in requests:
            num_rows -= request.batch_size
        self.num_rows = num_rows
        if self.has_timeouts:
            for request in requests:
                self._rejections.discard(request)
                self._delays.discard(request)

    # For people

    def statistics(self) -> dict[str, Any]:
        """Return what waits: requests, rows and, by level, requests on time and delayed."""
        return {
            "waiting": self.num_waiting,
            "waiting_rows": self.num_rows,
            "levels": {
                str(level.number): {"waiting": len(level.on_time), "delayed": len(level.delayed)}
                for level in self._sorted_levels
                if level.num_waiting
            },
        }

    def __repr__(self) -> str:
        levels = ", ".join(
            f"{level.number}: {len(level.on_time)}+{len(level.delayed)} delayed"
            for level in self._sorted_levels
            if level.num_waiting
        )
        return f"RequestQueue({self._model_name!r}, {self.num_waiting} waiting, {self.num_rows} rows, {{{levels}}})"
