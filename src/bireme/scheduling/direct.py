"""DirectScheduler: first come, first served, one request at a time. The scheduler of models that do not batch.

Every request of such a model passes here, so it does as little as possible: one ordered dict, because only that
gives a cancelled request back in constant time, and one small object per decision.

Source: Triton core, ``dynamic_batch_scheduler.cc`` without dynamic batching: no limit, no timeout, no merging even
when ``max_batch_size`` is above 1. Unlike there, a cancelled request does leave the queue.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

from bireme.scheduling.interface import NOTHING_TO_DO, Decision
from bireme.types import InferenceRequest


class DirectScheduler:
    """The scheduler of a model without any scheduling choice in its configuration."""

    __slots__ = ("_model_name", "_num_batches", "_num_cancelled", "_waiting")

    def __init__(self, model_name: str) -> None:
        """Make an empty scheduler; ``model_name`` is for people."""
        self._model_name = model_name
        self._waiting: OrderedDict[InferenceRequest, None] = OrderedDict()
        self._num_batches = 0
        self._num_cancelled = 0

    def enqueue(self, request: InferenceRequest, now_ns: int) -> None:  # noqa: ARG002 — the interface's
        """See `Scheduler.enqueue`; never refuses."""
        self._waiting[request] = None

    def schedule(self, now_ns: int, *, instance_free: bool) -> Decision:  # noqa: ARG002 — as above
        """See `Scheduler.schedule`; nothing expires, so it never asks to be woken."""
        if not instance_free or not self._waiting:
            return NOTHING_TO_DO
        request, _ = self._waiting.popitem(last=False)
        self._num_batches += 1
        return Decision([request], request.batch_size)

    def cancel(self, request: InferenceRequest) -> bool:
        """See `Scheduler.cancel`."""
        if request not in self._waiting:
            return False
        del self._waiting[request]
        self._num_cancelled += 1
        return True

    def drain(self) -> list[InferenceRequest]:
        """See `Scheduler.drain`."""
        drained = list(self._waiting)
        self._waiting.clear()
        return drained

    @property
    def num_waiting(self) -> int:
        """See `Scheduler.num_waiting`."""
        return len(self._waiting)

    def statistics(self) -> dict[str, Any]:
        """Return what waits, what was sent and what left without being sent."""
        return {
            "scheduler": "direct",
            "waiting": len(self._waiting),
            "waiting_rows": sum(request.batch_size for request in self._waiting),
            "batches": self._num_batches,
            "cancelled": self._num_cancelled,
        }

    def __repr__(self) -> str:
        return f"DirectScheduler({self._model_name!r}, waiting={len(self._waiting)}, batches={self._num_batches})"
