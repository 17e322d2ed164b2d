"""Histogram: durations counted into buckets, cheap enough to be always on.

Values and bounds are integer nanoseconds; the unit of the exposed family is the exposition's business.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from typing import Final

from bireme.types import InvalidArgument

DEFAULT_BOUNDS_SECONDS: Final = (
    0.000025, 0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01,
    0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0,
)  # fmt: skip
"""Upper bounds of the phase histograms, in seconds: an inline one-op model is at the lower end."""

FIRST_RESPONSE_BOUNDS_MS: Final = (100.0, 500.0, 2000.0, 5000.0)
"""Upper bounds of ``nv_inference_first_response_histogram_ms``. Source: Triton ``metric_model_reporter.h``."""

NS_PER_SECOND: Final = 1_000_000_000
NS_PER_MS: Final = 1_000_000


class Histogram:
    """Counts of durations per bucket, and their sum.

    ``counts`` has one element more than ``bounds_ns``: the last one counts what lies above every bound. A value that
    equals a bound belongs below it, as in Prometheus (``le``).
    """

    __slots__ = ("bounds_ns", "counts", "total_ns")

    def __init__(self, bounds_ns: Iterable[int]) -> None:
        """Start at zero. ``bounds_ns`` must ascend (see `bounds_in_ns`)."""
        self.bounds_ns = tuple(bounds_ns)
        self.counts = [0] * (len(self.bounds_ns) + 1)
        self.total_ns = 0

    def observe(self, duration_ns: int) -> None:
        """Count one duration. Measured: 0.13 µs, of which the call itself is 0.025 µs."""
        self.total_ns += duration_ns
        self.counts[bisect_left(self.bounds_ns, duration_ns)] += 1

    @property
    def count(self) -> int:
        """Number of durations observed."""
        return sum(self.counts)


def bounds_in_ns(bounds: Iterable[float], unit_ns: int, *, where: str) -> tuple[int, ...]:
    """Convert bounds from a unit of ``unit_ns`` nanoseconds; ``where`` names their origin in errors.

    Raises:
        InvalidArgument: a bound is not positive and finite, or they do not ascend.
    """
    converted: list[int] = []
    for bound in bounds:
        if not 0 < bound < float("inf"):
            raise InvalidArgument(f"{where}: a bucket bound must be positive and finite, found {bound:g}")
        bound_ns = round(bound * unit_ns)
        if converted and bound_ns <= converted[-1]:
            raise InvalidArgument(
                f"{where}: bucket bounds must ascend, but {bound:g} follows {converted[-1] / unit_ns:g}"
            )
        converted.append(bound_ns)
    return tuple(converted)
