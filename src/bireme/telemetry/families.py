"""The per-model families of the metrics page: their names, and how each is read from a model's statistics.

Source: Triton ``metrics.cc`` for the names beginning with ``nv_``; those beginning with ``bireme_`` are ours.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, Protocol

from bireme.telemetry.exposition import (
    bucket_prefixes,
    format_labels,
    format_value,
    header,
    histogram_lines,
)
from bireme.telemetry.histogram import NS_PER_MS, NS_PER_SECOND, Histogram
from bireme.telemetry.statistics import PHASES, ModelStatistics

FIRST_RESPONSE_FAMILY: Final = "nv_inference_first_response_histogram_ms"
PHASE_FAMILIES: Final = {phase: f"bireme_inference_{phase}_seconds" for phase in PHASES}
"""Names of the histograms that are always on, by phase."""


class ModelSeries:
    """One model version on the page, with the text of its labels made once."""

    __slots__ = ("label_map", "labels", "prefixes", "statistics")

    def __init__(self, statistics: ModelStatistics) -> None:
        self.statistics = statistics
        self.label_map = {**statistics.labels, "model": statistics.name, "version": str(statistics.version)}
        self.labels = format_labels(self.label_map)
        self.prefixes: dict[str, list[str]] = {}
        """What precedes the values of a histogram family, by the family's name."""

    def histogram(self, name: str, histogram: Histogram, unit_ns: int) -> list[str]:
        """Return the lines of a duration histogram, exposed in units of ``unit_ns``."""
        prefixes = self.prefixes.get(name)
        if prefixes is None:
            bounds = (bound_ns / unit_ns for bound_ns in histogram.bounds_ns)
            prefixes = self.prefixes[name] = bucket_prefixes(name, self.labels, bounds)
        return histogram_lines(prefixes, histogram.counts, histogram.total_ns / unit_ns)


class Family(Protocol):
    """One family of per-model series."""

    header: str

    def lines(self, model: ModelSeries) -> Iterable[str]:
        """Return the sample lines of ``model``, maybe none."""


class Scalar:
    """One number per model."""

    def __init__(
        self, name: str, kind: str, description: str, read: Callable[[ModelStatistics], float]
    ) -> None:
        self.header = header(name, kind, description)
        self._name = name
        self._read = read

    def lines(self, model: ModelSeries) -> Iterable[str]:
        """Return the one line."""
        return (f"{self._name}{{{model.labels}}} {format_value(self._read(model.statistics))}",)


class ByReason:
    """One counter per model and reason; every reason is always there."""

    def __init__(
        self, name: str, description: str, read: Callable[[ModelStatistics], Mapping[str, int]]
    ) -> None:
        self.header = header(name, "counter", description)
        self._name = name
        self._read = read

    def lines(self, model: ModelSeries) -> Iterable[str]:
        """Return a line per reason."""
        counts = self._read(model.statistics)
        prefixes = model.prefixes.get(self._name)
        if prefixes is None:
            labels = (format_labels({**model.label_map, "reason": reason}) for reason in counts)
            prefixes = model.prefixes[self._name] = [f"{self._name}{{{text}}} " for text in labels]
        return (prefix + str(count) for prefix, count in zip(prefixes, counts.values(), strict=True))


class LiveSequences:
    """How many sequences a model has now; nothing for a model without."""

    header = header("bireme_sequences", "gauge", "Sequences that have begun and are not over")

    def lines(self, model: ModelSeries) -> Iterable[str]:
        """Return the one line, if any."""
        counts = model.statistics.sequences
        return () if counts is None else (f"bireme_sequences{{{model.labels}}} {counts.count_live()}",)


class PhaseHistogram:
    """Durations of one phase, in seconds."""

    def __init__(self, phase: str, description: str) -> None:
        self._name = PHASE_FAMILIES[phase]
        self.header = header(self._name, "histogram", description)
        self._phase = phase

    def lines(self, model: ModelSeries) -> Iterable[str]:
        """Return the buckets, the count and the sum."""
        histogram: Histogram = getattr(model.statistics, self._phase)
        return model.histogram(self._name, histogram, NS_PER_SECOND)


class FirstResponseHistogram:
    """Time from a request to its first response, in milliseconds: Triton's own histogram, off by default."""

    header = header(
        FIRST_RESPONSE_FAMILY,
        "histogram",
        "Milliseconds from a request to its first response, errors included",
    )

    def lines(self, model: ModelSeries) -> Iterable[str]:
        """Return the buckets, the count and the sum; nothing while the histogram is off."""
        observer = model.statistics.observer
        if observer is None or observer.first_response is None:
            return ()
        return model.histogram(FIRST_RESPONSE_FAMILY, observer.first_response, NS_PER_MS)


class BatchSizes:
    """Rows per execution: bounds at the powers of two up to the model's maximum."""

    _NAME: Final = "bireme_batch_size"
    header = header(_NAME, "histogram", "Rows per model execution")

    def lines(self, model: ModelSeries) -> Iterable[str]:
        """Return the buckets, the count and the sum."""
        sizes = model.statistics.batch_sizes
        bounds = _powers_of_two(model.statistics.max_batch_size)
        prefixes = model.prefixes.get(self._NAME)
        if prefixes is None:
            prefixes = model.prefixes[self._NAME] = bucket_prefixes(self._NAME, model.labels, bounds)
        counts = [0] * (len(bounds) + 1)
        for rows, count in sizes.items():
            counts[sum(bound < rows for bound in bounds)] += count
        return histogram_lines(prefixes, counts, sum(rows * count for rows, count in sizes.items()))


class Summary:
    """Quantiles of one phase over the last minute, in microseconds: Triton's, off by default."""

    def __init__(self, phase: str, description: str, quantiles: Sequence[float]) -> None:
        self._name = f"nv_inference_{phase}_summary_us"
        self.header = header(self._name, "summary", description)
        self._phase = phase
        self._quantiles = quantiles

    def lines(self, model: ModelSeries) -> Iterable[str]:
        """Return the count, the sum and a line per quantile; nothing while summaries are off."""
        observer = model.statistics.observer
        if observer is None or self._phase not in observer.summaries:
            return ()
        summary = observer.summaries[self._phase]
        name, labels = self._name, model.labels
        values = summary.quantiles(self._quantiles, observer.clock_ns())
        return (
            f"{name}_count{{{labels}}} {summary.count}",
            f"{name}_sum{{{labels}}} {summary.total}",
            *(
                f'{name}{{{labels},quantile="{format_value(quantile)}"}} {format_value(value)}'
                for quantile, value in zip(self._quantiles, values, strict=True)
            ),
        )


def _powers_of_two(largest: int) -> list[int]:
    """Return 1, 2, 4, … below ``largest``, and ``largest``."""
    bounds = [1 << exponent for exponent in range(max(largest - 1, 0).bit_length())]
    return [*bounds, max(largest, 1)]


def _us(total_ns: int) -> int:
    """Cut once, on the sum; Triton cuts every request to whole microseconds and loses up to one each time."""
    return total_ns // 1000


TRITON_COUNTERS: Final[tuple[Family, ...]] = (
    Scalar(
        "nv_inference_request_success",
        "counter",
        "Requests that succeeded; a batched request counts once",
        lambda statistics: statistics.num_succeeded,
    ),
    ByReason(
        "nv_inference_request_failure",
        "Accepted requests that failed, by reason",
        lambda statistics: statistics.failures,
    ),
    Scalar(
        "nv_inference_count",
        "counter",
        "Inferences: the sum of the batch sizes of successful requests, cache hits excluded",
        lambda statistics: statistics.inference_count,
    ),
    Scalar(
        "nv_inference_exec_count",
        "counter",
        "Batches executed, cache hits excluded",
        lambda statistics: statistics.execution_count,
    ),
    Scalar(
        "nv_inference_request_duration_us",
        "counter",
        "Microseconds from acceptance to response, over all successful requests, cached ones included",
        lambda statistics: _us(statistics.request.total_ns),
    ),
    Scalar(
        "nv_inference_queue_duration_us",
        "counter",
        "Microseconds waited in the scheduler, over all successful requests, cached ones included",
        lambda statistics: _us(statistics.queue.total_ns),
    ),
    Scalar(
        "nv_inference_compute_input_duration_us",
        "counter",
        "Microseconds of input preparation, over all successful requests, cached ones excluded",
        lambda statistics: _us(statistics.compute_input.total_ns),
    ),
    Scalar(
        "nv_inference_compute_infer_duration_us",
        "counter",
        "Microseconds of model execution, over all successful requests, cached ones excluded",
        lambda statistics: _us(statistics.compute_infer.total_ns),
    ),
    Scalar(
        "nv_inference_compute_output_duration_us",
        "counter",
        "Microseconds of output handling, over all successful requests, cached ones excluded",
        lambda statistics: _us(statistics.compute_output.total_ns),
    ),
)

GAUGES: Final[tuple[Family, ...]] = (
    Scalar(
        "nv_inference_pending_request_count",
        "gauge",
        "Requests accepted and not yet executing",
        lambda statistics: statistics.num_pending,
    ),
    Scalar(
        "nv_model_load_duration_secs",
        "gauge",
        "Seconds that the last successful load took",
        lambda statistics: statistics.load_duration_ns / NS_PER_SECOND,
    ),
)

BIREME_FAMILIES: Final[tuple[Family, ...]] = (
    Scalar(
        "bireme_requests_accepted_total",
        "counter",
        "Requests that passed validation: those that succeeded, failed, are pending or are executing",
        lambda statistics: statistics.num_accepted,
    ),
    Scalar(
        "bireme_requests_executing",
        "gauge",
        "Requests handed to an instance and not yet answered",
        lambda statistics: statistics.num_executing,
    ),
    Scalar(
        "bireme_instance_restarts_total",
        "counter",
        "How often the process of an instance died and was started again",
        lambda statistics: statistics.num_restarts,
    ),
    ByReason(
        "bireme_batch_close_total",
        "Batches executed, by why each was closed",
        lambda statistics: statistics.close_reasons,
    ),
    BatchSizes(),
    LiveSequences(),
    ByReason(
        "bireme_sequences_dropped_total",
        "Sequences that were over without their END, by reason",
        lambda statistics: statistics.sequences.dropped if statistics.sequences is not None else {},
    ),
    PhaseHistogram("request", "Seconds from acceptance to response of successful requests"),
    PhaseHistogram("queue", "Seconds waited in the scheduler by successful requests"),
    PhaseHistogram("compute_input", "Seconds of input preparation of successful requests"),
    PhaseHistogram("compute_infer", "Seconds of model execution of successful requests"),
    PhaseHistogram("compute_output", "Seconds of output handling of successful requests"),
)

_SUMMARY_DESCRIPTIONS: Final = {
    "request": "Microseconds from acceptance to response, over the last minute",
    "queue": "Microseconds waited in the scheduler, over the last minute",
    "compute_input": "Microseconds of input preparation, over the last minute",
    "compute_infer": "Microseconds of model execution, over the last minute",
    "compute_output": "Microseconds of output handling, over the last minute",
}


def summaries(quantiles: Sequence[float]) -> list[Summary]:
    """Return the summary families, all with the same quantiles."""
    return [Summary(phase, text, quantiles) for phase, text in _SUMMARY_DESCRIPTIONS.items()]
