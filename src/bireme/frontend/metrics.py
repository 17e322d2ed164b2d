"""MetricsFrontend: the Prometheus page on a port of its own.

Source: Triton ``http_server.cc`` (``HTTPMetricsServer::Handle``): any other path is an empty page, any other verb 405.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from bireme.frontend.frontend import FrontEnd
from bireme.frontend.http.exchange import JSON, Exchange, Route
from bireme.frontend.http.head import RequestHead
from bireme.frontend.http.listener import HttpListener
from bireme.frontend.options import ListenOptions
from bireme.telemetry import CONTENT_TYPE, ServerMetrics
from bireme.wire.http import error_body

_PAGES = (b"/metrics", b"/metrics/")
_TEXT = f"Content-Type: {CONTENT_TYPE}\r\n".encode()
_MAX_BODY_SIZE = 64 << 10


class HasMetrics(Protocol):
    """What the page is made from: a `bireme.engine.Server`."""

    metrics: ServerMetrics


class MetricsFrontend(FrontEnd):
    """Serves the metrics of ``server``."""

    def __init__(self, server: HasMetrics, options: ListenOptions | None = None) -> None:
        """Prepare; nothing is bound before `start`. Without options: port 8002 on all interfaces."""
        self.options = options or ListenOptions(port=8002)
        self._server = server
        super().__init__(HttpListener(self._resolve, self.options))

    def _resolve(self, head: RequestHead) -> Route:
        if head.method != b"GET":
            return _Page(_refuse)
        return _Page(self._expose if head.path in _PAGES else _answer_empty)

    def _expose(self, exchange: Exchange) -> None:
        exchange.reply(200, self._server.metrics.expose(), _TEXT)


class _Page(Route):
    __slots__ = ("_answer",)

    def __init__(self, answer: Callable[[Exchange], None]) -> None:
        super().__init__(_MAX_BODY_SIZE)
        self._answer = answer

    def handle(self, exchange: Exchange) -> None:
        self._answer(exchange)


def _answer_empty(exchange: Exchange) -> None:
    exchange.reply(200, b"", _TEXT)


def _refuse(exchange: Exchange) -> None:
    exchange.reply(405, error_body("Method Not Allowed: expecting GET"), JSON + b"Allow: GET\r\n")
