"""Quantiles of the recent past, in bounded memory.

Values are counted in buckets whose width grows with the value (an HDR histogram: exact below 256, then 128 buckets per
power of two), in slices of time. A quantile is therefore off by at most 0.4 % of its value, at any rate of
requests, where a buffer of all values of a minute would hold millions. prometheus-cpp, which Triton uses, keeps samples
and bounds the error of the *rank* instead.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Sequence
from itertools import accumulate
from typing import Final

WINDOW_NS: Final = 60_000_000_000
"""A value is forgotten when it is between 4/5 of the window and the whole window old. Source: prometheus-cpp."""

_NUM_SLICES: Final = 5
_SLICE_NS: Final = WINDOW_NS // _NUM_SLICES
_EXACT_BITS: Final = 8


class SlidingQuantiles:
    """Quantiles over the last minute, and count and sum since the start, of non-negative integers."""

    __slots__ = ("_current", "_epoch", "_slices", "count", "total")

    def __init__(self) -> None:
        self.count = 0
        self.total = 0
        self._epoch = -1
        self._current: dict[int, int] = {}
        self._slices: deque[tuple[int, dict[int, int]]] = deque(maxlen=_NUM_SLICES)

    def observe(self, value: int, now_ns: int) -> None:
        """Count ``value`` at ``now_ns``, which never goes back."""
        epoch = now_ns // _SLICE_NS
        if epoch != self._epoch:
            self._epoch = epoch
            self._current = {}
            self._slices.append((epoch, self._current))
        self.count += 1
        self.total += value
        shift = value.bit_length() - _EXACT_BITS
        bucket = value if shift <= 0 else (value >> shift) << shift
        self._current[bucket] = self._current.get(bucket, 0) + 1

    def quantiles(self, wanted: Sequence[float], now_ns: int) -> list[float]:
        """Return the value at each of ``wanted`` (0 to 1, in any order); all NaN when the window is empty."""
        oldest = now_ns // _SLICE_NS - _NUM_SLICES
        recent: Counter[int] = Counter()
        for epoch, buckets in self._slices:
            if epoch > oldest:
                recent.update(buckets)
        num_values = recent.total()
        if not num_values:
            return [float("nan")] * len(wanted)
        ordered = sorted(recent.items())
        return [_value_at(ordered, wanted_one * num_values) for wanted_one in wanted]


def _value_at(ordered: list[tuple[int, int]], rank: float) -> float:
    """Return the middle of the bucket that holds the value of ``rank`` (1-based, rounded up)."""
    cumulative = list(accumulate(count for _, count in ordered))
    bucket = ordered[min(bisect_left(cumulative, rank), len(ordered) - 1)][0]
    width: int = 1 << max(bucket.bit_length() - _EXACT_BITS, 0)
    return bucket + (width - 1) // 2
