"""GrpcFrontend: the v2 protocol over gRPC, for one server."""

from __future__ import annotations

from bireme.engine.server import Server
from bireme.frontend.frontend import FrontEnd
from bireme.frontend.grpc.access import access_recorder
from bireme.frontend.grpc.api import GrpcApi
from bireme.frontend.grpc.listener import GrpcListener
from bireme.frontend.grpc.options import GrpcOptions
from bireme.frontend.grpc.routes import Router
from bireme.telemetry import open_access_log


class GrpcFrontend(FrontEnd):
    """Serves ``server`` on a port."""

    def __init__(self, server: Server, options: GrpcOptions | None = None) -> None:
        """Prepare; nothing is bound before `start`.

        Raises:
            InvalidArgument: an option is wrong, or the access log or a certificate cannot be opened.
        """
        self.options = options or GrpcOptions()
        self._api = GrpcApi(server, self.options)
        router = Router(self._api)
        access_log = open_access_log(self.options.access_log, json=self.options.access_log_json)
        listener = GrpcListener(
            router.resolve,
            self.options,
            log_access=access_recorder(access_log),
            statuses=server.metrics.responses("grpc"),
        )
        super().__init__(listener, self._api, access_log)

    async def retire(self, timeout_s: float) -> None:
        """As `FrontEnd.retire`; new inferences are refused from then on."""
        self._api.health_watch.refresh()
        await super().retire(timeout_s)
        self._api.is_accepting = False

    def _ask_to_leave(self) -> None:
        # A client that is asked takes its next calls to a new connection, where it is asked again before it can make any: a
        # sequence that has begun here could not go on.
        if not self._api.server.has_sequences:
            super()._ask_to_leave()

    async def stop(self, grace_s: float = 0.0) -> None:
        """As `FrontEnd.stop`."""
        self._api.is_accepting = False
        await super().stop(grace_s)
