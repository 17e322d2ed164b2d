"""A collector of OpenTelemetry's traces in the test's process: OTLP over HTTP, as the official library sends it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


@dataclass
class Exported:
    """One span as it came."""

    name: str
    trace_id: str
    span_id: str
    parent_id: str
    start_ns: int
    end_ns: int
    kind: int
    attributes: dict[str, Any]
    events: list[str]
    event_times: list[int]
    state: str
    error: str | None
    resource: dict[str, Any] = field(repr=False, default_factory=dict)
    scope: str = ""


class Collector:
    """Takes what is sent to ``url``."""

    def __init__(self) -> None:
        self.spans: list[Exported] = []
        self._arrived = threading.Condition()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.url = f"http://127.0.0.1:{self._server.server_port}/v1/traces"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                collector.take(self.rfile.read(int(self.headers["Content-Length"])))
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *args: object) -> None:
                """Say nothing."""

        return Handler

    def take(self, body: bytes) -> None:
        message = ExportTraceServiceRequest.FromString(body)
        with self._arrived:
            for group in message.resource_spans:
                resource = _read(group.resource.attributes)
                for scoped in group.scope_spans:
                    self.spans += [_span(span, resource, scoped.scope.name) for span in scoped.spans]
            self._arrived.notify_all()

    def wait(self, is_enough: Callable[[list[Exported]], bool], timeout_s: float = 15.0) -> list[Exported]:
        """Return all spans as soon as they are enough."""
        end_s = time.monotonic() + timeout_s
        with self._arrived:
            while not is_enough(self.spans):
                assert self._arrived.wait(end_s - time.monotonic()), f"they did not come: {self.spans}"
            return list(self.spans)

    def close(self) -> None:
        """Take nothing more; twice is as once."""
        if not self._thread.is_alive():
            return
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@contextmanager
def collecting() -> Iterator[Collector]:
    """Give a collector for as long as the block lasts."""
    collector = Collector()
    try:
        yield collector
    finally:
        collector.close()


def _span(span: Any, resource: dict[str, Any], scope: str) -> Exported:
    return Exported(
        span.name,
        span.trace_id.hex(),
        span.span_id.hex(),
        span.parent_span_id.hex(),
        span.start_time_unix_nano,
        span.end_time_unix_nano,
        span.kind,
        _read(span.attributes),
        [event.name for event in span.events],
        [event.time_unix_nano for event in span.events],
        span.trace_state,
        span.status.message if span.status.code == 2 else None,
        resource,
        scope,
    )


def _read(attributes: Any) -> dict[str, Any]:
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in attributes}
