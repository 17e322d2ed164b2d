"""From a call that has ended to its line in the access log."""

from __future__ import annotations

import time
from collections.abc import Callable

from bireme.frontend.grpc.call import Call
from bireme.telemetry import AccessLog


def access_recorder(access_log: AccessLog | None) -> Callable[[Call], None] | None:
    """Return what a connection calls with each call that has ended; None without a log."""
    if access_log is None:
        return None

    def record(call: Call) -> None:
        access_log.record(
            "gRPC",
            call.route.path.decode("latin-1"),
            int(call.status),
            client=call.connection.peer,
            bytes_in=call.bytes_in,
            bytes_out=call.bytes_out,
            total_ns=time.monotonic_ns() - call.start_ns if call.start_ns else 0,
            request=call.request,
            model_version=None if call.model is None else call.model.version,
            error=call.error,
        )

    return record
