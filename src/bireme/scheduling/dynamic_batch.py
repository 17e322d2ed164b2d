"""DynamicBatcher: merges requests that wait at the same time into one execution.

A batch is formed only when an instance is free to run it, and until then the queue keeps growing it; Triton forms
batches ahead of time, which is why its batches come out smaller than what waits. Beyond that the rules are Triton's.

With D = ``max_queue_delay_microseconds`` and the *pending* requests = the queue's candidates, as many as fit into
``max_batch_size`` rows:

1. The oldest pending request is younger than D (always so with D = 0), and the pending rows pass through a preferred
   size on the way: send up to the largest such size. If they pass beyond the largest preferred size without meeting
   any exactly, send what comes before that.
2. The pending requests can't grow: they fill the batch, the next one does not fit, a request of another shape waits
   behind them, or they are beyond the largest preferred size: send them.
3. D = 0, or the oldest pending request has waited for D: send them.
4. Otherwise wait until then; whatever arrives meanwhile is looked at anew.

Source: Triton core ``dynamic_batch_scheduler.cc`` (GetDynamicBatch).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from bireme.config.model_config import ModelDynamicBatching
from bireme.scheduling.interface import NOTHING_TO_DO, CloseReason, Decision
from bireme.scheduling.request_queue import Refused, RequestQueue
from bireme.types import InferenceRequest

# An enum's member costs 0.1 us to look up on Python 3.11, a module's constant nothing.
_FULL: Final = CloseReason.FULL
_PREFERRED: Final = CloseReason.PREFERRED
_DELAY: Final = CloseReason.DELAY
_SHAPE: Final = CloseReason.SHAPE
_INSTANCE_FREE: Final = CloseReason.INSTANCE_FREE
_REASONS: Final[tuple[CloseReason, ...]] = (_FULL, _PREFERRED, _DELAY, _SHAPE, _INSTANCE_FREE)

_Choice = tuple[int, int, CloseReason | None, int]
"""Requests and rows to send and why; with no reason: send nothing until the time (ns) that is the last element."""


class DynamicBatcher:
    """The scheduler of a model with ``dynamic_batching``. Forming a batch costs O(batch), whatever waits."""

    __slots__ = (
        "_close_reasons",
        "_delay_ns",
        "_hold_until",
        "_largest_preferred",
        "_max_batch_size",
        "_model_name",
        "_num_cancelled",
        "_num_expired",
        "_preferred",
        "_queue",
        "_smallest_preferred",
    )

    def __init__(
        self, model_name: str, batching: ModelDynamicBatching, max_batch_size: int, *, hold_until: int = 0
    ) -> None:
        """Make an empty scheduler.

        Args:
            model_name: for messages.
            batching: valid settings; no preferred sizes means ``max_batch_size``.
            max_batch_size: rows that a batch may have; 0 (the model does not batch) is as 1.
            hold_until: hold back everything until this many requests wait, once: Triton's
                ``TRITONSERVER_DELAY_SCHEDULER``, for tests that need a filled queue.
        """
        self._model_name = model_name
        self._max_batch_size = max(1, max_batch_size)
        self._preferred = frozenset(batching.preferred_batch_size or (self._max_batch_size,))
        self._smallest_preferred = min(self._preferred)
        self._largest_preferred = max(self._preferred)
        self._delay_ns = batching.max_queue_delay_microseconds * 1000
        self._hold_until = hold_until
        self._queue = RequestQueue(
            model_name,
            default_policy=batching.default_queue_policy,
            priority_levels=batching.priority_levels,
            default_priority_level=batching.default_priority_level,
            policies=batching.priority_queue_policy,
        )
        self._close_reasons: dict[CloseReason, int] = dict.fromkeys(_REASONS, 0)
        self._num_cancelled = 0
        self._num_expired = 0

    def enqueue(self, request: InferenceRequest, now_ns: int) -> None:
        """See `Scheduler.enqueue`."""
        self._queue.push(request, now_ns)

    def schedule(self, now_ns: int, *, instance_free: bool) -> Decision:
        """See `Scheduler.schedule`."""
        queue = self._queue
        refused: Sequence[Refused] = ()
        if queue.has_timeouts:
            refused = queue.expire(now_ns)
            self._num_expired += len(refused)
        if not queue.num_waiting:
            return Decision(refused=refused) if refused else NOTHING_TO_DO
        if not instance_free or queue.num_waiting < self._hold_until:
            return Decision(refused=refused, wake_at_ns=queue.next_rejection_ns())
        self._hold_until = 0
        num_requests, num_rows, reason, send_at_ns = self._choose(now_ns)
        if reason is None:
            # A delayed request changes the order, and so perhaps what a preferred size is made of.
            deadline_ns = queue.next_deadline_ns() if queue.has_timeouts else None
            wake_at_ns = send_at_ns if deadline_ns is None else min(send_at_ns, deadline_ns)
            return Decision(refused=refused, wake_at_ns=wake_at_ns)
        batch = queue.take(num_requests)
        self._close_reasons[reason] += 1
        rejection_ns = queue.next_rejection_ns() if queue.has_timeouts else None
        return Decision(batch, num_rows, reason, refused, rejection_ns)

    def _choose(self, now_ns: int) -> _Choice:
        """Decide how many of the candidates to send; the queue is not empty."""
        queue = self._queue
        if queue.num_rows < self._smallest_preferred:
            # All that waits may go together and no preferred size is in reach, so single requests need no look.
            # This keeps each arrival during a delay O(1).
            oldest_ns = queue.oldest_if_uniform_ns()
            if oldest_ns is not None:
                return self._choose_all(queue.num_waiting, queue.num_rows, now_ns, oldest_ns)
        return self._choose_among(now_ns)

    def _choose_all(self, num_requests: int, num_rows: int, now_ns: int, oldest_ns: int) -> _Choice:
        """Apply rules 3 and 4 to pending requests that may still grow."""
        if not self._delay_ns:
            return num_requests, num_rows, _INSTANCE_FREE, now_ns
        send_at_ns = oldest_ns + self._delay_ns
        return num_requests, num_rows, _DELAY if now_ns >= send_at_ns else None, send_at_ns

    def _choose_among(self, now_ns: int) -> _Choice:
        """Walk over the candidates and apply rules 1 to 4."""
        max_rows, largest, preferred = self._max_batch_size, self._largest_preferred, self._preferred
        num_requests = num_rows = 0
        num_preferred = preferred_rows = 0  # of the best point to cut
        oldest_ns = now_ns
        has_next = False  # whether the walk ended at a candidate that does not fit
        for request, queued_ns in self._candidates():
            total = num_rows + request.batch_size
            if num_requests and total > largest:
                if not num_preferred:
                    num_preferred, preferred_rows = num_requests, num_rows
                has_next = total > max_rows
                # Without a delay rule 1 applies, and finds nothing better from here on.
                if has_next or not self._delay_ns:
                    break
            num_requests += 1
            num_rows = total
            if queued_ns < oldest_ns:  # noqa: PLR1730 — min() costs four times as much
                oldest_ns = queued_ns
            if total in preferred:
                num_preferred, preferred_rows = num_requests, num_rows
        is_due = 0 < self._delay_ns <= now_ns - oldest_ns
        if num_preferred and not is_due:
            is_full = preferred_rows >= max_rows or (has_next and num_preferred == num_requests)
            reason = _FULL if is_full else _PREFERRED
            return num_preferred, preferred_rows, reason, now_ns
        if has_next or num_rows >= max_rows:
            return num_requests, num_rows, _FULL, now_ns
        if num_requests < self._queue.num_waiting:
            return num_requests, num_rows, _SHAPE, now_ns
        if num_rows > largest and not is_due:
            return num_requests, num_rows, _PREFERRED, now_ns
        return self._choose_all(num_requests, num_rows, now_ns, oldest_ns)

    def _candidates(self) -> Iterator[tuple[InferenceRequest, int]]:
        """Yield what the next batch may consist of, each request with its time of queueing."""
        return self._queue.candidates()

    def cancel(self, request: InferenceRequest) -> bool:
        """See `Scheduler.cancel`."""
        was_waiting = self._queue.discard(request)
        self._num_cancelled += was_waiting
        return was_waiting

    def drain(self) -> list[InferenceRequest]:
        """See `Scheduler.drain`."""
        return self._queue.drain()

    @property
    def num_waiting(self) -> int:
        """See `Scheduler.num_waiting`."""
        return self._queue.num_waiting

    def statistics(self) -> dict[str, Any]:
        """Return the queue's state, what was sent, by close reason, and what left without being sent."""
        return {
            "scheduler": "dynamic_batching",
            **self._queue.statistics(),
            "batches": sum(self._close_reasons.values()),
            "close_reasons": {reason.value: count for reason, count in self._close_reasons.items()},
            "expired": self._num_expired,
            "cancelled": self._num_cancelled,
        }

    def __repr__(self) -> str:
        closed = ", ".join(f"{reason}: {count}" for reason, count in self._close_reasons.items() if count)
        return (
            f"DynamicBatcher({self._model_name!r}, waiting={self._queue.num_waiting}, rows={self._queue.num_rows}, "
            f"max_batch_size={self._max_batch_size}, delay_us={self._delay_ns // 1000}, closed={{{closed}}})"
        )
