"""What an engine may ask of any scheduler. Pure: no clock, no sockets, no asyncio; time is an argument."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, Protocol

from bireme.types import BiremeError, InferenceRequest


class CloseReason(StrEnum):
    """Why a batch was closed and sent."""

    FULL = "full"  # it holds max_batch_size rows, or the next request would not fit
    PREFERRED = "preferred"  # it reached a preferred size
    DELAY = "delay"  # its oldest request has waited for the maximum queue delay
    SHAPE = "shape"  # the next request's inputs cannot share a batch with it
    STRATEGY = "strategy"  # the model's own batching strategy says that the next request must wait
    INSTANCE_FREE = "instance_free"  # nothing more was waiting when an instance was free
    SINGLE = "single"  # the scheduler does not batch


@dataclass(slots=True)
class Decision:
    """One step's result: what to run, what to refuse and when to look again.

    To be read, never changed: a scheduler may return the same object whenever there is nothing to do.
    """

    batch: list[InferenceRequest] | None = None
    """Requests to execute together, in order; None when nothing can start now."""
    batch_size: int = 0
    """Rows in ``batch``."""
    close_reason: CloseReason = CloseReason.SINGLE
    refused: Sequence[tuple[InferenceRequest, BiremeError]] = ()
    """Requests that left the queue unexecuted (expired), each with the error to answer. Cancelled ones left by
    `Scheduler.cancel` already."""
    wake_at_ns: int | None = None
    """When `schedule` must be called again even if nothing else happens; None: only on an event."""


NOTHING_TO_DO: Final = Decision()
"""The decision that is made most often, so it is made once."""


class Scheduler(Protocol):
    """Holds the waiting requests of one model version and decides what runs next."""

    def enqueue(self, request: InferenceRequest, now_ns: int) -> None:
        """Take ``request`` into the queue (its ``batch_size`` and ``batch_key`` are set).

        Raises:
            QueueFull: the queue policy of its priority level admits no more.
        """

    def schedule(self, now_ns: int, *, instance_free: bool) -> Decision:
        """Decide what happens next. Call again until ``batch`` is None: each call yields one batch at most.

        With ``instance_free`` False nothing is batched; expired requests are still refused.
        """

    def cancel(self, request: InferenceRequest) -> bool:
        """Take ``request`` out of the queue; False when it is not waiting here."""

    def drain(self) -> list[InferenceRequest]:
        """Empty the queue and return what was waiting, in order."""

    @property
    def num_waiting(self) -> int:
        """Number of requests (not rows) that wait."""

    def statistics(self) -> dict[str, Any]:
        """Return the queue's state for metrics, tests and people: plain JSON values."""
