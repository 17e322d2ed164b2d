"""GrpcApi: what the handlers of the gRPC front end share — the server, the options, and work that takes its time."""

from __future__ import annotations

from bireme.engine.server import Server
from bireme.frontend.grpc.health import HealthWatch
from bireme.frontend.grpc.options import GrpcOptions
from bireme.frontend.work import Work, compile_header_pattern


class GrpcApi(Work):
    """Shared by all handlers. Loop thread only."""

    __slots__ = ("header_pattern", "health_watch", "is_accepting", "options", "server")

    def __init__(self, server: Server, options: GrpcOptions) -> None:
        """Prepare.

        Raises:
            InvalidArgument: an option is wrong.
        """
        super().__init__("bireme-grpc")
        options.check()
        self.server = server
        self.options = options
        self.header_pattern = compile_header_pattern(options.header_forward_pattern)
        self.health_watch = HealthWatch(server)
        self.is_accepting = True
        """Whether new inferences are taken: not once the server is shutting down."""
