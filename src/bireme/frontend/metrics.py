"""MetricsFrontend: the Prometheus page on a port of its own.

Source: Triton ``http_server.cc`` (``HTTPMetricsServer::Handle``): any other path is an empty page, any other verb 405.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

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


class MetricsFrontend:
    """Serves the metrics of ``server``. Belongs to the loop that the server runs on."""

    def __init__(self, server: HasMetrics, options: ListenOptions | None = None) -> None:
        """Prepare; nothing is bound before `start`. Without options: port 8002 on all interfaces."""
        self.options = options or ListenOptions(port=8002)
        self._server = server
        self._listener = HttpListener(self._resolve, self.options)

    @property
    def port(self) -> int:
        """The port that is listened on."""
        return self._listener.port

    @property
    def url(self) -> str:
        """Where a client finds it."""
        return self._listener.url

    async def start(self) -> None:
        """Listen.

        Raises:
            Unavailable: the address cannot be bound.
        """
        await self._listener.start()

    def reopen(self) -> None:
        """Read the certificates again, soon."""
        self._listener.reload_certificates()

    async def retire(self, timeout_s: float) -> None:  # noqa: ARG002 (nothing is pending between two events)
        """Prepare for the end: every answer is its connection's last."""
        self._listener.retire()

    async def stop(self, grace_s: float = 0.0) -> None:
        """Accept nothing more, close idle connections, let requests in flight finish for ``grace_s``, then cut them."""
        await self._listener.stop(grace_s)

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
