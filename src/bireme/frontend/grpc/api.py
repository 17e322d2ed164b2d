"""GrpcApi: what the handlers of the gRPC front end share — the server, the options, and work that takes its time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from bireme.engine.server import Server
from bireme.frontend.grpc.health import HealthWatch
from bireme.frontend.grpc.options import GrpcOptions
from bireme.frontend.work import Work, compile_header_pattern

_UNKNOWN_SIZE: Final = 4 << 20
"""Bytes that the first answer of a model is taken to have: what gRPC's clients receive unless told otherwise."""
_FORGETTING: Final = 3
"""Each smaller answer takes an eighth from what is expected of the next."""


class GrpcApi(Work):
    """Shared by all handlers. Loop thread only."""

    __slots__ = ("_largest_answers", "header_pattern", "health_watch", "is_accepting", "options", "server")

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
        self._largest_answers: dict[str, int] = {}

    def expected_size(self, answer_sizes: Mapping[str, int], model_name: str) -> int:
        """Return how many bytes a model's next answer may have on a connection that has had answers of ``answer_sizes``.

        As many as its last ones; before its first one, as many as the largest that anyone has had.
        """
        return answer_sizes.get(model_name) or self._largest_answers.get(model_name, _UNKNOWN_SIZE)

    def note_answer(self, answer_sizes: dict[str, int], model_name: str, size: int) -> None:
        """Remember how large an answer of a model is; a rare large one is forgotten behind some dozens of others."""
        last = answer_sizes.get(model_name, 0)
        answer_sizes[model_name] = max(size, last - (last >> _FORGETTING))
        if size > self._largest_answers.get(model_name, 0):
            self._largest_answers[model_name] = size
