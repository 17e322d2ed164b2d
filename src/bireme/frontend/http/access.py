"""From an answered exchange to its line in the access log."""

from __future__ import annotations

import time
from collections.abc import Callable

from bireme.frontend.http.exchange import Exchange
from bireme.telemetry import AccessLog


def access_recorder(access_log: AccessLog | None) -> Callable[[Exchange, int], None] | None:
    """Return what a connection calls with each answered exchange and its size in bytes; None without a log."""
    if access_log is None:
        return None

    def record(exchange: Exchange, num_bytes: int) -> None:
        head = exchange.head
        request = exchange.request
        access_log.record(
            head.method.decode() or "-",
            head.path.decode("latin-1"),
            exchange.status,
            client=exchange.connection.peer,
            bytes_in=len(exchange.body),
            bytes_out=num_bytes,
            total_ns=time.monotonic_ns() - exchange.start_ns if exchange.start_ns else 0,
            request=request,
            model_version=None if request is None else exchange.model.version,
            error=exchange.error,
        )

    return record
