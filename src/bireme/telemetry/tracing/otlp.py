"""OtlpExporter: mode ``opentelemetry``. Finished traces become spans of OpenTelemetry's library, which sends them by OTLP.

The library makes no spans while requests run: it gets them whole, on the writing thread, and its batch processor has a
thread of its own for the network. It is imported here, and only in this mode.

Source: Triton ``tracer.cc`` (``InitTracer``, ``StartSpan``, ``AddEvent``): which spans there are, their names and attributes.
"""

from __future__ import annotations

import logging
import os
import random
from collections.abc import Iterable, Iterator
from typing import Any, Final

from bireme.telemetry import log as server_log
from bireme.telemetry.tracing.options import batch_settings
from bireme.telemetry.tracing.sampled import SampledTrace
from bireme.telemetry.tracing.triton_json import compute_events, span_events, walk
from bireme.types import InvalidArgument, Sample, Span

log = server_log.get_logger(__name__)

SERVICE: Final = "triton-inference-server"
_MISSING: Final = (
    "trace mode 'opentelemetry' needs packages that are not installed; install them with: pip install "
    "opentelemetry-sdk opentelemetry-exporter-otlp-proto-http"
)


class OtlpExporter:
    """Sends traces to a collector."""

    def __init__(self, settings: Iterable[tuple[str, str]]) -> None:
        """``settings``: `TraceOptions.opentelemetry`.

        Raises:
            InvalidArgument: the library is not installed, or does not take a setting.
        """
        settings = tuple(settings)
        try:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace.export import BatchSpanProcessor
            from opentelemetry.sdk.util.instrumentation import InstrumentationScope
        except ImportError as error:
            raise InvalidArgument(f"{_MISSING} ({error})") from None

        class OneResource(Resource):
            """Told apart by identity: the library looks it up for every span, and would write it as JSON each time (7 µs)."""

            def __hash__(self) -> int:
                return id(self)

            def __eq__(self, other: object) -> bool:
                return self is other

        batches = batch_settings(settings)
        try:
            # Without an address the library looks into the environment; http://localhost:4318/v1/traces is its default, too.
            self._processor = BatchSpanProcessor(
                OTLPSpanExporter(endpoint=dict(settings).get("url")),
                max_queue_size=batches["bsp_max_queue_size"],
                schedule_delay_millis=batches["bsp_schedule_delay"],
                max_export_batch_size=batches["bsp_max_export_batch_size"],
            )
        except ValueError as error:
            raise InvalidArgument(f"--trace-config opentelemetry: {error}") from None
        resource = Resource.create(_attributes(settings))
        self._resource = OneResource(resource.attributes, resource.schema_url)
        self._scope = InstrumentationScope("triton-server")
        library = logging.getLogger("opentelemetry")
        if not library.hasHandlers():  # a program that has any takes care of what libraries say
            library.addHandler(_Forwarder())

    def take(self, traces: list[SampledTrace]) -> None:
        """Hand over finished traces; what finds no room in the processor's queue is dropped, and the library says so."""
        for trace in traces:
            for span in self._make_spans(trace):
                self._processor.on_end(span)

    def close(self) -> None:
        """Send what is left; gives up after OpenTelemetry's own time."""
        self._processor.shutdown()  # type: ignore[no-untyped-call]

    def _make_spans(self, trace: SampledTrace) -> Iterator[Any]:
        root = _Shape("InferRequest", trace.root_span_id, trace.start_ns, trace.end_ns, trace.events)
        root.error = trace.root.error
        parent = 0 if trace.parent is None else trace.parent.span_id
        yield self._make(trace, root, parent, is_remote=trace.parent is not None)
        span_ids = {0: trace.root_span_id}
        for span, sample in walk(trace.root):
            span_ids[sample.number] = sample.span_id
            yield self._make(trace, _shape_of(span, sample, trace), span_ids[sample.parent_number])
            compute = list(compute_events(span))
            if compute:
                shape = _Shape("compute", random.getrandbits(64) or 1, compute[0][0], compute[-1][0], compute)
                yield self._make(trace, shape, sample.span_id)

    def _make(self, trace: SampledTrace, shape: _Shape, parent_id: int, *, is_remote: bool = False) -> Any:
        from opentelemetry.sdk.trace import Event, ReadableSpan
        from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags, TraceState

        offset_ns = trace.wall_offset_ns
        flags = TraceFlags(TraceFlags.SAMPLED)
        state = None
        if trace.parent is not None and trace.parent.state:
            state = TraceState.from_header([trace.parent.state])
        context = SpanContext(
            trace.trace_id, shape.span_id, is_remote=False, trace_flags=flags, trace_state=state
        )
        parent = SpanContext(trace.trace_id, parent_id, is_remote=is_remote, trace_flags=flags)
        return ReadableSpan(
            shape.name,
            context,
            parent if parent_id else None,
            resource=self._resource,
            attributes=shape.attributes,
            events=[Event(name, timestamp=time_ns + offset_ns) for time_ns, name in shape.events],
            kind=SpanKind.SERVER,
            status=Status(StatusCode.ERROR, shape.error) if shape.error is not None else Status(),
            start_time=shape.start_ns + offset_ns,
            end_time=shape.end_ns + offset_ns,
            instrumentation_scope=self._scope,
        )


class _Forwarder(logging.Handler):
    """Writes what the library says to the server's log."""

    def emit(self, record: logging.LogRecord) -> None:
        log.handle(record)


class _Shape:
    """What one span will be; times are of ``time.monotonic_ns``."""

    __slots__ = ("attributes", "end_ns", "error", "events", "name", "span_id", "start_ns")

    def __init__(
        self, name: str, span_id: int, start_ns: int, end_ns: int, events: Iterable[tuple[int, str]]
    ) -> None:
        self.name = name
        self.span_id = span_id
        self.start_ns = start_ns
        self.end_ns = end_ns
        self.events = events
        self.attributes: dict[str, str | int] = {}
        self.error: str | None = None


def _shape_of(span: Span, sample: Sample, trace: SampledTrace) -> _Shape:
    compute = set(compute_events(span))
    events = [event for event in span_events(span) if event not in compute]
    # A call that nobody waits for ends with its trace, as far as that can tell.
    shape = _Shape(span.model, sample.span_id, span.start_ns, span.end_ns or trace.end_ns, events)
    shape.attributes = {
        "triton.model_name": span.model,
        "triton.model_version": span.version,
        "triton.trace_id": sample.number,
        "triton.trace_parent_id": sample.parent_number,
    }
    if span.id:
        shape.attributes["triton.request_id"] = span.id
    shape.error = span.error
    return shape


def _attributes(settings: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return the resource's attributes that are not the environment's."""
    attributes: dict[str, str] = {}
    named = os.environ.get("OTEL_SERVICE_NAME") or "service.name=" in os.environ.get(
        "OTEL_RESOURCE_ATTRIBUTES", ""
    )
    if not named:
        attributes["service.name"] = SERVICE
    for key, value in settings:
        if key == "resource":
            name, _, text = value.partition("=")
            attributes[name] = text
    return attributes
