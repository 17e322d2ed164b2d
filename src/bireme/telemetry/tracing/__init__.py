"""Triton's trace extension: which requests are sampled, and where their traces go.

A sampled request is recorded by its `Span` (`bireme.telemetry.spans`), as are the steps of ensembles and the calls that it
is passed on to. When it is answered, the finished record goes to a thread that writes it to a file (mode ``triton``) or
hands it to OpenTelemetry's exporter (mode ``opentelemetry``).
"""

from bireme.telemetry.tracing.context import TraceContext
from bireme.telemetry.tracing.options import TraceMode, TraceOptions
from bireme.telemetry.tracing.sampled import GRPC, HTTP, SampledTrace
from bireme.telemetry.tracing.settings import TraceSetting, TraceSettings, read_changes
from bireme.telemetry.tracing.tracing import Tracing

__all__ = [
    "GRPC",
    "HTTP",
    "SampledTrace",
    "TraceContext",
    "TraceMode",
    "TraceOptions",
    "TraceSetting",
    "TraceSettings",
    "Tracing",
    "read_changes",
]
