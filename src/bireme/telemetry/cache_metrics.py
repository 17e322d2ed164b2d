"""The response cache on the metrics page and in the statistics: per model version, and of the whole server.

Source: Triton ``metrics.cc`` (EnableCacheMetrics), ``metric_model_reporter.cc`` and the local cache's own gauges.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

from bireme.telemetry.exposition import format_value, header
from bireme.telemetry.quantiles import SlidingQuantiles

if TYPE_CHECKING:
    from bireme.telemetry.families import Family, ModelSeries


class CacheStatistics(NamedTuple):
    """What a response cache has done, and what it holds now."""

    num_hits: int = 0
    num_misses: int = 0
    num_insertions: int = 0
    num_evictions: int = 0
    """Entries that had to go for others."""
    num_rejected: int = 0
    """Responses too large to be kept."""
    num_errors: int = 0
    """Calls that failed; each was a miss."""
    lookup_ns: int = 0
    insertion_ns: int = 0
    num_entries: int | None = None
    """None here and below: the cache does not know."""
    nbytes: int | None = None
    max_nbytes: int | None = None


class CacheCounts:
    """What the cache has done for one model version. Loop thread only."""

    __slots__ = ("hit_ns", "hit_summary", "miss_ns", "miss_summary", "num_hits", "num_misses")

    def __init__(self, *, summaries: bool = False) -> None:
        """Start at zero; with ``summaries``, quantiles of the last minute (µs) are kept, too."""
        self.num_hits = 0
        self.hit_ns = 0
        """Of look-ups that found something."""
        self.num_misses = 0
        self.miss_ns = 0
        """Of look-ups that found nothing, and of keeping what the model answered then."""
        self.hit_summary = SlidingQuantiles() if summaries else None
        self.miss_summary = SlidingQuantiles() if summaries else None

    def hit(self, duration_ns: int, end_ns: int) -> None:
        """Count a look-up that found a response."""
        self.num_hits += 1
        self.hit_ns += duration_ns
        if self.hit_summary is not None:
            self.hit_summary.observe(duration_ns // 1000, end_ns)

    def miss(self, duration_ns: int, end_ns: int) -> None:
        """Count a look-up that found none."""
        self.num_misses += 1
        self.miss_ns += duration_ns
        if self.miss_summary is not None:
            self.miss_summary.observe(duration_ns // 1000, end_ns)


class _Count:
    """One number per model with a cache."""

    def __init__(self, name: str, attribute: str, unit_ns: int, description: str) -> None:
        self.header = header(name, "counter", description)
        self._name = name
        self._attribute = attribute
        self._unit_ns = unit_ns

    def lines(self, model: ModelSeries) -> Iterable[str]:
        counts = model.statistics.cache
        if counts is None:
            return ()
        return (f"{self._name}{{{model.labels}}} {getattr(counts, self._attribute) // self._unit_ns}",)


class _Summary:
    """Quantiles over the last minute, in microseconds, per model with a cache; off by default."""

    def __init__(self, name: str, attribute: str, description: str, quantiles: Sequence[float]) -> None:
        self.header = header(name, "summary", description)
        self._name = name
        self._attribute = attribute
        self._quantiles = quantiles

    def lines(self, model: ModelSeries) -> Iterable[str]:
        statistics = model.statistics
        summary: SlidingQuantiles | None = getattr(statistics.cache, self._attribute, None)
        if summary is None or statistics.observer is None:
            return
        name, labels = self._name, model.labels
        yield f"{name}_count{{{labels}}} {summary.count}"
        yield f"{name}_sum{{{labels}}} {summary.total}"
        values = summary.quantiles(self._quantiles, statistics.observer.clock_ns())
        for quantile, value in zip(self._quantiles, values, strict=True):
            yield f'{name}{{{labels},quantile="{format_value(quantile)}"}} {format_value(value)}'


def cache_families(quantiles: Sequence[float]) -> tuple[Family, ...]:
    """Return the families per model; they belong on the page of a server that has a cache."""
    return (
        _Count("nv_cache_num_hits_per_model", "num_hits", 1, "Requests that the response cache answered"),
        _Count(
            "nv_cache_num_misses_per_model",
            "num_misses",
            1,
            "Requests that the response cache had nothing for",
        ),
        _Count(
            "nv_cache_hit_duration_per_model",
            "hit_ns",
            1000,
            "Microseconds of look-ups that found a response",
        ),
        _Count(
            "nv_cache_miss_duration_per_model",
            "miss_ns",
            1000,
            "Microseconds of look-ups that found none, and of keeping the responses that came then",
        ),
        _Summary(
            "nv_cache_hit_summary_per_model",
            "hit_summary",
            "Microseconds of look-ups that found a response, over the last minute",
            quantiles,
        ),
        _Summary(
            "nv_cache_miss_summary_per_model",
            "miss_summary",
            "Microseconds of look-ups that found none, over the last minute",
            quantiles,
        ),
    )


class CacheMeter(Protocol):
    """What can be asked for its counts."""

    def statistics(self) -> CacheStatistics:
        """Return them, at once."""


def cache_lines(found: CacheStatistics) -> Iterator[str]:
    """Yield the families of the whole server; what the cache does not know is left out."""
    for name, kind, description, value in _server_values(found):
        if value is not None:
            yield header(name, kind, description)
            yield f"{name} {format_value(value)}"


def _server_values(found: CacheStatistics) -> Iterator[tuple[str, str, str, float | None]]:
    num_lookups = found.num_hits + found.num_misses
    util = None if found.nbytes is None or not found.max_nbytes else found.nbytes / found.max_nbytes
    yield "nv_cache_util", "gauge", "Part of the response cache that is in use, 0.0 to 1.0", util
    yield "nv_cache_num_entries", "gauge", "Responses in the cache", found.num_entries
    yield "nv_cache_num_lookups", "gauge", "Look-ups in the response cache", num_lookups
    yield "nv_cache_num_hits", "gauge", "Look-ups that found a response", found.num_hits
    yield "nv_cache_num_misses", "gauge", "Look-ups that found none", found.num_misses
    yield "nv_cache_num_evictions", "gauge", "Responses that had to go for others", found.num_evictions
    yield "nv_cache_lookup_duration", "gauge", "Microseconds of all look-ups", found.lookup_ns // 1000
    yield "nv_cache_insertion_duration", "gauge", "Microseconds of all insertions", found.insertion_ns // 1000
    yield "bireme_cache_entries", "gauge", "Responses in the cache", found.num_entries
    yield "bireme_cache_bytes", "gauge", "Memory that they take", found.nbytes
    yield "bireme_cache_limit_bytes", "gauge", "Memory that they may take", found.max_nbytes
    for name, description, value in (
        ("hits", "Look-ups that found a response", found.num_hits),
        ("misses", "Look-ups that found none", found.num_misses),
        ("insertions", "Responses that were kept", found.num_insertions),
        ("evictions", "Responses that had to go for others", found.num_evictions),
        ("rejections", "Responses that were too large to be kept", found.num_rejected),
        ("errors", "Calls of the cache that failed", found.num_errors),
    ):
        yield f"bireme_cache_{name}_total", "counter", description, value
