"""ServerMetrics: the Prometheus page of one server.

The page has four parts: the families per model (`bireme.telemetry.families`), those of the whole server (here), those
that models make themselves (`bireme.telemetry.custom_metrics`), and whatever collectors others put into
`ServerMetrics.registry`, such as the process collector.
Everything is read when the page is asked for; nothing runs in between.
"""

from __future__ import annotations

import platform
import re
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from itertools import chain
from typing import TYPE_CHECKING, Final

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest

from bireme import __version__
from bireme.telemetry import log
from bireme.telemetry.cache_metrics import CacheCounts, CacheMeter, cache_families, cache_lines
from bireme.telemetry.custom_metrics import CustomMetrics
from bireme.telemetry.exposition import (
    format_labels,
    format_value,
    header,
    is_label_name,
    sample_suffixes,
    without_decimals,
)
from bireme.telemetry.families import (
    BIREME_FAMILIES,
    FIRST_RESPONSE_FAMILY,
    GAUGES,
    PHASE_FAMILIES,
    TRITON_COUNTERS,
    Family,
    FirstResponseHistogram,
    ModelSeries,
    summaries,
)
from bireme.telemetry.histogram import (
    FIRST_RESPONSE_BOUNDS_MS,
    NS_PER_MS,
    NS_PER_SECOND,
    Histogram,
    bounds_in_ns,
)
from bireme.telemetry.host import HostSampler
from bireme.telemetry.metrics_options import MetricsOptions
from bireme.telemetry.observer import RequestObserver
from bireme.telemetry.statistics import ModelStatistics
from bireme.types import InvalidArgument

if TYPE_CHECKING:
    from bireme.config import ModelConfig
    from bireme.config.model_config import MetricControl

CONTENT_TYPE: Final = "text/plain; charset=utf-8"
"""Content type of the page, as Triton sends it."""

_logger = log.get_logger(__name__)


class ServerMetrics:
    """All metrics of one server. Loop thread only."""

    def __init__(
        self,
        options: MetricsOptions | None = None,
        *,
        host: HostSampler | None = None,
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        """Show what ``options`` ask for; ``host`` and ``clock_ns`` are for tests."""
        self._options = options = options or MetricsOptions()
        self._clock_ns = clock_ns
        self._host = host
        if host is None and options.cpu_metrics:
            self._host = HostSampler(round(options.interval_ms * NS_PER_MS / 2))
        self._models: dict[str, ModelSeries] = {}  # by the text of their labels
        self._families: tuple[Family, ...] = (
            *(TRITON_COUNTERS if options.counter_latencies else ()),
            *GAUGES,
            FirstResponseHistogram(),
            *summaries([quantile for quantile, _ in options.summary_quantiles]),
            *BIREME_FAMILIES,
        )
        self._phase_bounds_ns = bounds_in_ns(
            options.phase_buckets_seconds, NS_PER_SECOND, where="phase_buckets_seconds"
        )
        self.registry = CollectorRegistry()
        """A private prometheus-client registry whose collectors appear on the page after our own families.

        The process's own metrics (``process_*``) are in it from the start.
        """
        ProcessCollector(registry=self.registry)
        self.custom = CustomMetrics(self._taken_names)
        """The families that models make themselves; they appear after our own."""
        self._responses: dict[str, defaultdict[int, int]] = {}
        self._cache: CacheMeter | None = None
        self._build_info = format_labels({"version": __version__, "python": platform.python_version()})

    def show_cache(self, cache: CacheMeter) -> None:
        """Show the response cache of the server, and of each model that uses it; before the first model."""
        if self._cache is None:
            self._families += cache_families([quantile for quantile, _ in self._options.summary_quantiles])
        self._cache = cache

    def new_statistics(
        self, name: str, version: int, config: ModelConfig, *, namespace: str = ""
    ) -> ModelStatistics:
        """Return fresh statistics for a model version, with the labels and buckets that its config asks for.

        They appear on the page once they are given to `add_model`.

        Raises:
            InvalidArgument: a metric tag or a bucket list of the config is invalid.
        """
        bounds_ns = dict.fromkeys(PHASE_FAMILIES, self._phase_bounds_ns)
        first_response = bounds_in_ns(FIRST_RESPONSE_BOUNDS_MS, NS_PER_MS, where=FIRST_RESPONSE_FAMILY)
        for family, buckets, where in _bucket_overrides(name, config):
            if family == FIRST_RESPONSE_FAMILY:
                first_response = bounds_in_ns(buckets, NS_PER_MS, where=where)
            else:
                phase = _PHASE_OF_FAMILY[family]
                bounds_ns[phase] = bounds_in_ns(buckets, NS_PER_SECOND, where=where)
        return ModelStatistics(
            name,
            version,
            labels=_tag_labels(name, config) | ({"namespace": namespace} if namespace else {}),
            max_batch_size=config.max_batch_size,
            bounds_ns=bounds_ns,
            observer=self._new_observer(first_response, config),
            cache=(
                CacheCounts(summaries=self._options.summary_latencies) if self._uses_cache(config) else None
            ),
        )

    def _uses_cache(self, config: ModelConfig) -> bool:
        return self._cache is not None and config.response_cache is not None and config.response_cache.enable

    def _new_observer(self, bounds_ns: tuple[int, ...], config: ModelConfig) -> RequestObserver | None:
        options = self._options
        if not options.histogram_latencies and not options.summary_latencies:
            return None
        return RequestObserver(
            Histogram(bounds_ns) if options.histogram_latencies else None,
            summaries=options.summary_latencies,
            has_cache=self._uses_cache(config),
            clock_ns=self._clock_ns,
        )

    def add_model(self, statistics: ModelStatistics) -> None:
        """Show a model version from now on, in place of an older load of the same version."""
        series = ModelSeries(statistics)
        self._models[series.labels] = series

    def remove_model(self, statistics: ModelStatistics) -> None:
        """Stop showing a model version; does nothing if it is not shown, or replaced already."""
        labels = ModelSeries(statistics).labels
        shown = self._models.get(labels)
        if shown is not None and shown.statistics is statistics:
            del self._models[labels]

    def responses(self, protocol: str) -> defaultdict[int, int]:
        """Return the counts of ``bireme_responses_total`` by status code, for a front end to increase.

        Unlike the model counters these see every answer, also to requests that were refused before a model was found.
        """
        return self._responses.setdefault(protocol, defaultdict(int))

    def expose(self) -> bytes:
        """Return the page in the Prometheus text format 0.0.4. Measured: 1.4 ms for 20 models (2,770 lines)."""
        models = self._models.values()
        lines = [
            line
            for family in self._families
            for line in chain((family.header,), *(family.lines(model) for model in models))
        ]
        lines.extend(self._server_lines())
        lines.extend(self.custom.lines())
        page = "\n".join(lines) + "\n"
        return (page + without_decimals(generate_latest(self.registry).decode())).encode()

    def _taken_names(self) -> set[str]:
        """Return the names of all families but the models' own, and those of their samples."""
        headers = "\n".join((*(family.header for family in self._families), *self._server_lines()))
        names = {
            name + suffix
            for name, kind in re.findall(r"(?m)^# TYPE (\S+) (\w+)", headers)
            for suffix in sample_suffixes(kind)
        }
        for family in self.registry.collect():
            names.update((family.name, *(sample.name for sample in family.samples)))
        return names

    def _server_lines(self) -> Iterator[str]:
        # There is no pinned pool on a CPU; dashboards expect the families.
        yield header("nv_pinned_memory_pool_total_bytes", "gauge", "Size of the pinned memory pool in bytes")
        yield "nv_pinned_memory_pool_total_bytes 0"
        yield header("nv_pinned_memory_pool_used_bytes", "gauge", "Used bytes of the pinned memory pool")
        yield "nv_pinned_memory_pool_used_bytes 0"
        if self._host is not None:
            yield from _host_lines(self._host)
        if self._cache is not None:
            yield from cache_lines(self._cache.statistics())
        yield header("bireme_responses_total", "counter", "Responses sent by front end and status code")
        for protocol, counts in self._responses.items():
            for code, count in sorted(counts.items()):
                labels = format_labels({"protocol": protocol, "code": str(code)})
                yield f"bireme_responses_total{{{labels}}} {count}"
        yield header("bireme_build_info", "gauge", "Versions of this server; the value is always 1")
        yield f"bireme_build_info{{{self._build_info}}} 1"


_PHASE_OF_FAMILY: Final = {family: phase for phase, family in PHASE_FAMILIES.items()}


def _host_lines(host: HostSampler) -> Iterator[str]:
    """Yield the machine's metrics; only the families where the machine does not tell."""
    usage = host.sample()
    values = (
        ("nv_cpu_utilization", "CPU utilization of the machine, 0.0 to 1.0"),
        ("nv_cpu_memory_total_bytes", "Memory of the machine in bytes"),
        ("nv_cpu_memory_used_bytes", "Memory of the machine that is not available, in bytes"),
    )
    readings = (usage.cpu_utilization, usage.memory_total_bytes, usage.memory_used_bytes) if usage else ()
    for index, (name, description) in enumerate(values):
        yield header(name, "gauge", description)
        if readings:
            yield f"{name} {format_value(readings[index])}"


def _tag_labels(name: str, config: ModelConfig) -> dict[str, str]:
    """Return the metric labels of a config's tags: each tag's name behind an underscore."""
    for tag in config.metric_tags:
        if not is_label_name(f"_{tag}"):
            raise InvalidArgument(
                f"model '{name}': metric_tags key '{tag}' cannot be part of a metric label; expected letters, digits "
                f"and underscores"
            )
    return {f"_{tag}": value for tag, value in config.metric_tags.items()}


def _bucket_overrides(name: str, config: ModelConfig) -> Iterator[tuple[str, tuple[float, ...], str]]:
    """Yield (family, bounds, where) of a config's ``model_metrics``; warn about families without settable buckets."""
    controls: tuple[MetricControl, ...] = config.model_metrics.metric_control if config.model_metrics else ()
    for control in controls:
        family = control.metric_identifier.family if control.metric_identifier else ""
        if family != FIRST_RESPONSE_FAMILY and family not in _PHASE_OF_FAMILY:
            _logger.warning("model '%s': metric family '%s' has no settable buckets; ignored", name, family)
        elif control.histogram_options is not None:
            yield family, control.histogram_options.buckets, f"model '{name}': model_metrics of '{family}'"
