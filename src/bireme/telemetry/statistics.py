"""ModelStatistics: what one loaded model version has done, counted on the loop thread with plain ints.

A request passes through these calls, in this order, each exactly once:

    accept → start → succeed            (`finish_execution` once per batch)
    accept → start → fail(was_pending=False)
    accept → fail(was_pending=True)     (refused or cancelled while waiting)
    accept → hit                        (answered by the response cache)

(a request of an iterative sequence may go back by `wait_again` and start anew, any number of times)
so that ``num_accepted == num_succeeded + num_failed + num_pending + num_executing`` holds after every call.

The statistics route, the metrics page and the tests all read this one record. Counting a request through its whole
life costs 1.5 µs, 1.1 µs in a batch of 8 (`benchmarks/telemetry.py`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

from bireme.scheduling.interface import CloseReason
from bireme.scheduling.sequence_slots import DropReason
from bireme.telemetry.cache_metrics import CacheCounts
from bireme.telemetry.histogram import (
    DEFAULT_BOUNDS_SECONDS,
    NS_PER_SECOND,
    Histogram,
    bounds_in_ns,
)
from bireme.telemetry.observer import RequestObserver
from bireme.types import Execution, InferenceRequest

FAILURE_REASONS: Final = ("REJECTED", "CANCELED", "BACKEND", "OTHER")
"""Why an accepted request failed, as in ``nv_inference_request_failure{reason}``."""

PHASES: Final = ("request", "queue", "compute_input", "compute_infer", "compute_output")
"""The measured phases; "request" is the whole time from acceptance to the response."""

_DEFAULT_BOUNDS_NS: Final = bounds_in_ns(DEFAULT_BOUNDS_SECONDS, NS_PER_SECOND, where="default buckets")
_NO_CACHE: Final = CacheCounts()
_NO_BOUNDS: Final[Mapping[str, Sequence[int]]] = MappingProxyType({})


class SequenceCounts:
    """What is counted of the sequences of a model version."""

    __slots__ = ("count_live", "dropped")

    def __init__(self) -> None:
        self.count_live: Callable[[], int] = int
        """Returns the number of sequences that have begun and are not over."""
        self.dropped = {reason.value: 0 for reason in DropReason}
        """Sequences that were over without their END, by reason."""


class ModelStatistics:
    """Counters, phase durations and histograms of one loaded model version. Loop thread only.

    All durations are nanoseconds of ``time.monotonic_ns``. Attributes are read freely; only the methods change them.
    """

    __slots__ = (
        "_batches",
        "_closed",
        "_failures",
        "_last_compute_end_ns",
        "cache",
        "compute_infer",
        "compute_input",
        "compute_output",
        "execution_count",
        "failure_ns",
        "inference_count",
        "labels",
        "load_duration_ns",
        "max_batch_size",
        "name",
        "num_accepted",
        "num_executing",
        "num_pending",
        "num_restarts",
        "num_succeeded",
        "observer",
        "queue",
        "request",
        "sequences",
        "version",
    )

    def __init__(
        self,
        name: str,
        version: int,
        *,
        labels: Mapping[str, str] = MappingProxyType({}),
        max_batch_size: int = 0,
        bounds_ns: Mapping[str, Sequence[int]] = _NO_BOUNDS,
        observer: RequestObserver | None = None,
        cache: CacheCounts | None = None,
    ) -> None:
        """Start at zero.

        ``labels`` are metric labels beside ``model`` and ``version``; ``bounds_ns`` overrides the histogram bounds of
        a phase (of `PHASES`); `bireme.telemetry.ServerMetrics.new_statistics` derives all of them from a config.
        """
        self.name = name
        self.version = version
        self.labels = labels
        self.max_batch_size = max_batch_size
        self.load_duration_ns = 0
        """How long the last successful load took; set by whoever loaded the model."""

        self.num_accepted = 0
        self.num_pending = 0
        """Accepted and waiting in the scheduler."""
        self.num_executing = 0
        """Handed to an instance, not yet answered."""
        self.num_succeeded = 0
        self.num_restarts = 0
        """How often the process of an instance died and came back."""
        self.failure_ns = 0
        self.inference_count = 0
        """Rows of successful requests. Source: Triton ``infer_stats.cc`` (UpdateSuccess)."""
        self.execution_count = 0

        self.request, self.queue, self.compute_input, self.compute_infer, self.compute_output = (
            Histogram(bounds_ns.get(phase, _DEFAULT_BOUNDS_NS)) for phase in PHASES
        )
        self._failures = dict.fromkeys(FAILURE_REASONS, 0)
        self._closed = {reason.value: 0 for reason in CloseReason}
        self._batches: dict[int, list[int]] = {}  # rows → [executions, input ns, infer ns, output ns]
        self._last_compute_end_ns = 0
        self.observer = observer
        """Measurements that are off by default; None: all of them are off."""
        self.cache = cache
        """None: the model has no response cache."""
        self.sequences: SequenceCounts | None = None
        """None: the model has no sequences."""

    def accept(self) -> None:
        """Count a request that passed validation; it is pending now."""
        self.num_accepted += 1
        self.num_pending += 1

    def start(self, num_requests: int) -> None:
        """Count ``num_requests`` pending requests as executing."""
        self.num_pending -= num_requests
        self.num_executing += num_requests

    def wait_again(self) -> None:
        """Count an executing request as pending: its model wants it in a later batch."""
        self.num_pending += 1
        self.num_executing -= 1

    def finish_execution(self, execution: Execution) -> None:
        """Count a batch that ran, before its requests; its time stamps are complete.

        A batch of which every request failed is not to be counted. Source: Triton's backends (ProcessRequests).
        """
        self.execution_count += 1
        self._closed[execution.close_reason] += 1
        input_end_ns = execution.compute_input_end_ns
        output_start_ns = execution.compute_output_start_ns
        end_ns = execution.compute_end_ns
        self._last_compute_end_ns = end_ns
        batch = self._batches.get(execution.batch_size)
        if batch is None:
            batch = self._batches[execution.batch_size] = [0, 0, 0, 0]
        batch[0] += 1
        batch[1] += input_end_ns - execution.compute_start_ns
        batch[2] += output_start_ns - input_end_ns
        batch[3] += end_ns - output_start_ns

    def succeed(self, request: InferenceRequest, end_ns: int) -> None:
        """Count an executing request (``start_ns``, ``queue_ns`` and ``execution`` are set) as answered well."""
        execution = request.execution
        assert execution is not None
        start_ns = execution.compute_start_ns
        input_end_ns = execution.compute_input_end_ns
        output_start_ns = execution.compute_output_start_ns
        request_ns = end_ns - request.start_ns
        queue_ns = start_ns - request.queue_ns
        input_ns = input_end_ns - start_ns
        infer_ns = output_start_ns - input_end_ns
        output_ns = execution.compute_end_ns - output_start_ns
        self.num_executing -= 1
        self.num_succeeded += 1
        self.inference_count += request.batch_size
        self.request.observe(request_ns)
        self.queue.observe(queue_ns)
        self.compute_input.observe(input_ns)
        self.compute_infer.observe(infer_ns)
        self.compute_output.observe(output_ns)
        if self.observer is not None:
            is_first = request.num_responses == 0
            self.observer.on_success(
                end_ns, request_ns, queue_ns, input_ns, infer_ns, output_ns, is_first=is_first
            )

    def hit(self, request: InferenceRequest, lookup_ns: int, end_ns: int) -> None:
        """Count a pending request as answered well by the response cache, after a look-up of ``lookup_ns``."""
        assert self.cache is not None
        self.num_pending -= 1
        self.num_succeeded += 1
        request_ns = end_ns - request.start_ns
        self.request.observe(request_ns)
        self.queue.observe(0)
        self.cache.hit(lookup_ns, end_ns)
        if self.observer is not None:
            self.observer.on_first_response(request_ns)

    def fail(self, reason: str, duration_ns: int, *, was_pending: bool) -> None:
        """Count a request as failed for ``reason`` (of `FAILURE_REASONS`) ``duration_ns`` after its start.

        ``was_pending`` tells where it was: still waiting, or already executing.
        """
        if was_pending:
            self.num_pending -= 1
        else:
            self.num_executing -= 1
        self._failures[reason] += 1
        self.failure_ns += duration_ns
        if self.observer is not None:
            self.observer.on_failure(duration_ns)

    @property
    def num_failed(self) -> int:
        """Accepted requests that were answered with an error, for whatever reason."""
        return sum(self._failures.values())

    @property
    def failures(self) -> dict[str, int]:
        """Failed requests by reason; every reason is present."""
        return dict(self._failures)

    @property
    def close_reasons(self) -> dict[str, int]:
        """Executed batches by the reason why they were closed; every `CloseReason` is present."""
        return dict(self._closed)

    @property
    def batch_sizes(self) -> dict[int, int]:
        """Executed batches by their number of rows, ascending."""
        return {rows: batch[0] for rows, batch in sorted(self._batches.items())}

    @property
    def last_inference_ms(self) -> int:
        """When the last batch ended, in milliseconds since the epoch; 0 if there was none."""
        if not self._last_compute_end_ns:
            return 0
        # The wall clock is read here, not once per batch: the monotonic stamp is enough until someone asks.
        return (time.time_ns() - time.monotonic_ns() + self._last_compute_end_ns) // 1_000_000

    def to_json(self) -> dict[str, Any]:
        """Return this version's element of ``model_stats``. Source: Triton's statistics extension."""
        succeeded = self.num_succeeded
        cache = self.cache or _NO_CACHE
        executed = succeeded - cache.num_hits
        return {
            "name": self.name,
            "version": str(self.version),
            "last_inference": self.last_inference_ms,
            "inference_count": self.inference_count,
            "execution_count": self.execution_count,
            "inference_stats": {
                "success": _duration(succeeded, self.request.total_ns),
                "fail": _duration(self.num_failed, self.failure_ns),
                "queue": _duration(succeeded, self.queue.total_ns),
                "compute_input": _duration(executed, self.compute_input.total_ns),
                "compute_infer": _duration(executed, self.compute_infer.total_ns),
                "compute_output": _duration(executed, self.compute_output.total_ns),
                "cache_hit": _duration(cache.num_hits, cache.hit_ns),
                "cache_miss": _duration(cache.num_misses, cache.miss_ns),
            },
            "response_stats": {},
            "batch_stats": [
                {
                    "batch_size": rows,
                    "compute_input": _duration(count, input_ns),
                    "compute_infer": _duration(count, infer_ns),
                    "compute_output": _duration(count, output_ns),
                }
                for rows, (count, input_ns, infer_ns, output_ns) in sorted(self._batches.items())
            ],
            "memory_usage": [],
        }

    def __repr__(self) -> str:
        return (
            f"ModelStatistics({self.name!r} v{self.version}: accepted={self.num_accepted}, "
            f"succeeded={self.num_succeeded}, failed={self.num_failed}, pending={self.num_pending}, "
            f"executing={self.num_executing})"
        )


def _duration(count: int, total_ns: int) -> dict[str, int]:
    return {"count": count, "ns": total_ns}
