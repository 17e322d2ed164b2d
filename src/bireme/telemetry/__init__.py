"""Statistics, Prometheus metrics and logs: what a server tells about itself."""

from bireme.telemetry.metrics import CONTENT_TYPE, MetricsOptions, ServerMetrics
from bireme.telemetry.statistics import FAILURE_REASONS, PHASES, ModelStatistics

__all__ = [
    "CONTENT_TYPE",
    "FAILURE_REASONS",
    "PHASES",
    "MetricsOptions",
    "ModelStatistics",
    "ServerMetrics",
]
