"""Statistics, Prometheus metrics and logs: what a server tells about itself."""

from bireme.telemetry import log
from bireme.telemetry.access import AccessLog, open_access_log
from bireme.telemetry.metrics import CONTENT_TYPE, ServerMetrics
from bireme.telemetry.metrics_options import MetricsOptions
from bireme.telemetry.statistics import FAILURE_REASONS, PHASES, ModelStatistics

__all__ = [
    "CONTENT_TYPE",
    "FAILURE_REASONS",
    "PHASES",
    "AccessLog",
    "MetricsOptions",
    "ModelStatistics",
    "ServerMetrics",
    "log",
    "open_access_log",
]
