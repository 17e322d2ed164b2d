"""GrpcApi: what the handlers of the gRPC front end share — the server, the options, and work that takes its time."""

from __future__ import annotations

from typing import Final

from bireme.engine.server import Server
from bireme.frontend.grpc.health import HealthWatch
from bireme.frontend.grpc.options import GrpcOptions
from bireme.frontend.work import Work, compile_header_pattern

_UNKNOWN_SIZE: Final = 4 << 20
"""Bytes that the first answer of a model is taken to have: what gRPC's clients receive unless told otherwise."""


class GrpcApi(Work):
    """Shared by all handlers. Loop thread only."""

    __slots__ = ("_answer_sizes", "header_pattern", "health_watch", "is_accepting", "options", "server")

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
        self._answer_sizes: dict[str, int] = {}

    def expected_size(self, model_name: str) -> int:
        """Return how many bytes an answer of a model may have: as many as the largest so far."""
        return self._answer_sizes.get(model_name, _UNKNOWN_SIZE)

    def note_answer(self, model_name: str, size: int) -> None:
        """Remember how large an answer of a model is."""
        if size > self._answer_sizes.get(model_name, 0):
            self._answer_sizes[model_name] = size
