"""RequestObserver: the latency measurements that are off unless asked for.

A model without them has no observer, and then they cost one comparison per request.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from bireme.telemetry.histogram import Histogram
from bireme.telemetry.quantiles import SlidingQuantiles

SUMMARY_PHASES: Final = ("request", "queue", "compute_input", "compute_infer", "compute_output")


class RequestObserver:
    """Sees every answered request of one model version. Loop thread only.

    ``first_response`` is None without ``histogram_latencies``; ``summaries`` (µs, by phase) is empty without
    ``summary_latencies``, and lacks "request" for a model with a response cache.
    Source: Triton ``metric_model_reporter.cc`` (InitializeSummaries), ``infer_response.cc`` (UpdateResponseMetrics).
    """

    __slots__ = ("clock_ns", "first_response", "summaries")

    def __init__(
        self,
        first_response: Histogram | None,
        *,
        summaries: bool,
        has_cache: bool = False,
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        """Start at zero. ``clock_ns`` says which minute is the last one; only a reader of the summaries asks it."""
        self.clock_ns = clock_ns
        self.first_response = first_response
        self.summaries: dict[str, SlidingQuantiles] = {}
        if summaries:
            phases = SUMMARY_PHASES[1:] if has_cache else SUMMARY_PHASES
            self.summaries = {phase: SlidingQuantiles() for phase in phases}

    def on_success(
        self,
        end_ns: int,
        request_ns: int,
        queue_ns: int,
        compute_input_ns: int,
        compute_infer_ns: int,
        compute_output_ns: int,
        *,
        is_first: bool = True,
    ) -> None:
        """See the phases of a request that was answered well at ``end_ns``; ``is_first``: by its first response."""
        if is_first:
            self.on_first_response(request_ns)
        if self.summaries:
            durations_ns = (request_ns, queue_ns, compute_input_ns, compute_infer_ns, compute_output_ns)
            for phase, duration_ns in zip(SUMMARY_PHASES, durations_ns, strict=True):
                if phase in self.summaries:
                    self.summaries[phase].observe(duration_ns // 1000, end_ns)

    def on_first_response(self, request_ns: int) -> None:
        """See a request get the first of its responses."""
        if self.first_response is not None:
            self.first_response.observe(request_ns)

    def on_failure(self, request_ns: int) -> None:
        """See a request that was answered with an error: that too is its first response."""
        if self.first_response is not None:
            self.first_response.observe(request_ns)
