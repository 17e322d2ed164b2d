"""MetricsOptions: what the metrics page shows, as ``--metrics-config`` says it."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

from bireme.telemetry.histogram import DEFAULT_BOUNDS_SECONDS, NS_PER_SECOND, bounds_in_ns
from bireme.types import InvalidArgument

DEFAULT_QUANTILES: Final = ((0.5, 0.05), (0.9, 0.01), (0.95, 0.001), (0.99, 0.001), (0.999, 0.001))
"""(quantile, allowed error) of the summaries. Source: Triton ``metric_model_reporter.h``."""


@dataclass(frozen=True, slots=True)
class MetricsOptions:
    """What the metrics page shows. Only ``summary_latencies`` costs something per request that counts: 1.8 µs."""

    histogram_latencies: bool = False
    """``nv_inference_first_response_histogram_ms``."""
    summary_latencies: bool = False
    """``nv_inference_*_summary_us``."""
    summary_quantiles: tuple[tuple[float, float], ...] = DEFAULT_QUANTILES
    """(quantile, error); the error is accepted for Triton's sake: ours is 0.4 % of the value, always."""
    phase_buckets_seconds: tuple[float, ...] = DEFAULT_BOUNDS_SECONDS
    """Bounds of the ``bireme_inference_*_seconds`` histograms."""
    counter_latencies: bool = True
    """False hides every per-model counter of Triton's, the request counts included, as in Triton."""
    cpu_metrics: bool = True
    interval_ms: float = 2000.0
    """Host and process readings are at least half of this apart."""

    @classmethod
    def parse(
        cls, settings: Iterable[str], *, cpu_metrics: bool = True, interval_ms: float = 2000.0
    ) -> MetricsOptions:
        """Return the options of ``--metrics-config`` values, each ``<setting>=<value>``; a later one wins.

        Source: Triton ``command_line_parser.cc`` (ParseMetricsConfigOption); unlike Triton, an unknown setting and an
        unreadable value are errors.

        Raises:
            InvalidArgument: a value has not that form, or names no setting, or its value cannot be read.
        """
        options: dict[str, Any] = {}
        for setting in settings:
            name, _, value = setting.partition("=")
            if not name or not value or "," in name:
                raise InvalidArgument(f"--metrics-config option format is <setting>=<value>. Got {setting}")
            read = _READERS.get(name)
            if read is None:
                raise InvalidArgument(f"--metrics-config: unknown setting '{name}'{_hint(name)}")
            options[name] = read(f"--metrics-config {name}", value)
        return cls(**options, cpu_metrics=cpu_metrics, interval_ms=interval_ms)


def _hint(name: str) -> str:
    close = difflib.get_close_matches(name, _READERS, n=1)
    return f"; did you mean '{close[0]}'?" if close else f", expected one of {', '.join(_READERS)}"


def _read_bool(where: str, value: str) -> bool:
    if value not in ("true", "false"):
        raise InvalidArgument(f"{where}: expected true or false, found '{value}'")
    return value == "true"


def _read_quantiles(where: str, value: str) -> tuple[tuple[float, float], ...]:
    quantiles = []
    for pair in value.split(","):
        quantile, _, error = pair.partition(":")
        try:
            quantiles.append((float(quantile), float(error)))
        except ValueError:
            raise InvalidArgument(f"{where}: expected <quantile>:<error>, found '{pair}'") from None
        if not all(0.0 <= number <= 1.0 for number in quantiles[-1]):
            raise InvalidArgument(f"{where}: a quantile and its error are from 0 to 1, found '{pair}'")
    return tuple(quantiles)


def _read_buckets(where: str, value: str) -> tuple[float, ...]:
    try:
        bounds = tuple(float(bound) for bound in value.split(","))
    except ValueError:
        raise InvalidArgument(f"{where}: expected seconds separated by commas, found '{value}'") from None
    bounds_in_ns(bounds, NS_PER_SECOND, where=where)
    return bounds


_READERS: Final[dict[str, Callable[[str, str], Any]]] = {
    "counter_latencies": _read_bool,
    "histogram_latencies": _read_bool,
    "summary_latencies": _read_bool,
    "summary_quantiles": _read_quantiles,
    "phase_buckets_seconds": _read_buckets,
}
