"""GrpcFrontend: the v2 protocol over gRPC, for one server."""

from __future__ import annotations

import time
from collections.abc import Callable

from bireme.engine.server import Server
from bireme.frontend.grpc.api import GrpcApi
from bireme.frontend.grpc.call import Call
from bireme.frontend.grpc.listener import GrpcListener
from bireme.frontend.grpc.options import GrpcOptions
from bireme.frontend.grpc.routes import Router
from bireme.telemetry import AccessLog, open_access_log


class GrpcFrontend:
    """Serves ``server`` on a port. Belongs to the loop that the server runs on."""

    def __init__(self, server: Server, options: GrpcOptions | None = None) -> None:
        """Prepare; nothing is bound before `start`.

        Raises:
            InvalidArgument: an option is wrong, or the access log cannot be opened.
        """
        self.options = options or GrpcOptions()
        self._api = GrpcApi(server, self.options)
        router = Router(self._api)
        self.access_log = open_access_log(self.options.access_log, json=self.options.access_log_json)
        """None: there is none."""
        self._listener = GrpcListener(
            router.resolve,
            self.options,
            log_access=_access_recorder(self.access_log),
            statuses=server.metrics.responses("grpc"),
        )

    @property
    def port(self) -> int:
        """The port that is listened on; 0 on a UNIX domain socket."""
        return self._listener.port

    @property
    def url(self) -> str:
        """Where it listens."""
        return self._listener.url

    @property
    def num_connections(self) -> int:
        """Open connections."""
        return len(self._listener.connections)

    async def start(self) -> None:
        """Listen.

        Raises:
            Unavailable: the address cannot be bound.
        """
        await self._listener.start()

    def reopen(self) -> None:
        """Open the access log again by its name, after a log rotation, and read the certificates again, soon."""
        if self.access_log is not None:
            self.access_log.reopen()
        self._listener.reload_certificates()

    async def retire(self, timeout_s: float) -> None:
        """Prepare for the end: clients are asked to go elsewhere, and what has been received goes to the engine.

        Returns when all messages that were complete have been inflated, parsed and submitted, after ``timeout_s`` at the
        latest. New inferences are refused from then on.
        """
        self._api.health_watch.refresh()
        self._listener.retire()
        await self._api.settle(timeout_s)
        self._api.is_accepting = False

    async def stop(self, grace_s: float = 0.0) -> None:
        """Accept nothing more, close idle connections, let calls in flight finish for ``grace_s``, then cut them."""
        self._api.is_accepting = False
        await self._listener.stop(grace_s)
        await self._api.stop()
        if self.access_log is not None:
            self.access_log.close()

    def __repr__(self) -> str:
        return f"GrpcFrontend({self._listener!r})"


def _access_recorder(access_log: AccessLog | None) -> Callable[[Call], None] | None:
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
