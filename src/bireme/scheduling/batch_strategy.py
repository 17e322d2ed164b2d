"""Batching by a strategy of the model's own, which may end a batch before the dynamic batcher's rules do.

Source: Triton core ``dynamic_batch_scheduler.cc`` (CustomBatchIncl, CustomBatchInit, CustomBatchFini).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

from bireme.config.model_config import ModelDynamicBatching
from bireme.scheduling.dynamic_batch import DynamicBatcher
from bireme.scheduling.interface import CloseReason
from bireme.types import InferenceRequest


class BatchStrategy(Protocol):
    """Says which requests go together. It decides nothing but that, and it must not change a request."""

    def begin(self) -> Any:
        """Return what is to be remembered of a new batch."""

    def includes(self, request: InferenceRequest, batch: Any) -> bool:
        """Whether ``request`` may come next into ``batch``, which then takes note of it."""

    def end(self, batch: Any) -> None:
        """No more requests are asked about for ``batch``."""


class StrategicBatcher(DynamicBatcher):
    """A `DynamicBatcher` whose candidates end where its strategy says no.

    A batch that is held back for its delay begins anew when it is looked at again, and its requests are asked about again. One
    request may be asked about that then does not fit. The first request goes in any case: else nothing would ever be sent.
    """

    __slots__ = ("_has_refused", "_strategy")

    def __init__(
        self,
        model_name: str,
        batching: ModelDynamicBatching,
        max_batch_size: int,
        strategy: BatchStrategy,
        *,
        hold_until: int = 0,
    ) -> None:
        """As `DynamicBatcher`, with a strategy."""
        super().__init__(model_name, batching, max_batch_size, hold_until=hold_until)
        self._close_reasons[CloseReason.STRATEGY] = 0
        self._strategy = strategy
        self._has_refused = False

    def _choose(self, now_ns: int) -> tuple[int, int, CloseReason | None, int]:
        self._has_refused = False
        num_requests, num_rows, reason, send_at_ns = self._choose_among(now_ns)
        if reason is CloseReason.SHAPE and self._has_refused:
            reason = CloseReason.STRATEGY
        return num_requests, num_rows, reason, send_at_ns

    def _candidates(self) -> Iterator[tuple[InferenceRequest, int]]:
        strategy = self._strategy
        batch = strategy.begin()
        try:
            is_first = True
            for request, queued_ns in super()._candidates():
                if not strategy.includes(request, batch) and not is_first:
                    self._has_refused = True
                    return
                is_first = False
                yield request, queued_ns
        finally:
            strategy.end(batch)
