"""GrpcListener: what all connections of the gRPC front end share."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

from bireme.frontend.grpc.call import Call, Route
from bireme.frontend.grpc.connection import GrpcConnection
from bireme.frontend.grpc.options import GrpcOptions
from bireme.frontend.grpc.receive_memory import ReceiveMemory
from bireme.frontend.listener import Listener
from bireme.wire.http2 import RequestHead

_SCRATCH_SIZE = 64 << 10
"""Bytes received at once while no large message is under way; the most of one that is copied."""


class GrpcListener(Listener):
    """Routes the calls of its connections through ``resolve``."""

    scheme = "grpc"
    alpn = ("h2",)

    def __init__(
        self,
        resolve: Callable[[RequestHead], Route],
        options: GrpcOptions,
        *,
        log_access: Callable[[Call], None] | None = None,
        statuses: defaultdict[int, int] | None = None,
    ) -> None:
        """``log_access`` is told of every call that has ended; ``statuses`` counts them by status."""
        super().__init__(options, sweep_interval_s=options.sweep_interval_s)
        self.grpc_options = options
        self.resolve = resolve
        self.log_access = log_access
        self.statuses: defaultdict[int, int] = defaultdict(int) if statuses is None else statuses
        self.memory = ReceiveMemory(options.max_receive_bytes)
        self.scratch = memoryview(bytearray(_SCRATCH_SIZE))

    def make_connection(self) -> GrpcConnection:
        """Return the protocol of a new client."""
        return GrpcConnection(self)
