"""HttpListener: what all connections of the HTTP front end share."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

from bireme.frontend.http.connection import HttpConnection
from bireme.frontend.http.exchange import Exchange, Route
from bireme.frontend.http.head import HeadCache, RequestHead
from bireme.frontend.http.options import ConnectionLimits
from bireme.frontend.listener import Listener
from bireme.frontend.options import ListenOptions
from bireme.telemetry.tracing import Tracing
from bireme.types import InferenceRequest

_SCRATCH_SIZE = 64 << 10
"""Bytes received at once while no body is under way; the most of a large body that is copied."""


class HttpListener(Listener):
    """Routes the requests of its connections through ``resolve``."""

    scheme = "http"
    alpn = ("http/1.1",)

    def __init__(
        self,
        resolve: Callable[[RequestHead], Route],
        options: ListenOptions,
        *,
        limits: ConnectionLimits | None = None,
        cancel: Callable[[InferenceRequest], None] | None = None,
        log_access: Callable[[Exchange, int], None] | None = None,
        statuses: defaultdict[int, int] | None = None,
        tracing: Tracing | None = None,
    ) -> None:
        """``cancel`` takes back a request whose client has left; ``log_access`` is told of every answer and its size.

        ``statuses`` counts answers by status, `CLIENT_LEFT` among them. While ``tracing`` is on, requests tell when they came.
        """
        self.limits = limits or ConnectionLimits()
        super().__init__(options, sweep_interval_s=self.limits.sweep_interval_s)
        self.resolve = resolve
        self.cancel = cancel or _ignore
        self.log_access = log_access
        self.tracing = tracing
        self.statuses = defaultdict(int) if statuses is None else statuses
        self.heads = HeadCache()
        self.scratch = bytearray(_SCRATCH_SIZE)
        self.scratch_view = memoryview(self.scratch)
        self.timeouts_s = {
            "request": self.limits.keepalive_timeout_s,
            "head": self.limits.header_timeout_s,
            "body": self.limits.stall_timeout_s,
            "writing": self.limits.stall_timeout_s,
            "end": self.limits.linger_timeout_s,
            "model": 0.0,
        }
        """How long a connection may wait for what, without progress; 0: for ever."""

    def make_connection(self) -> HttpConnection:
        """Return the protocol of a new client."""
        return HttpConnection(self)


def _ignore(request: InferenceRequest) -> None:
    """Nothing to cancel."""
