"""The two sides of a streaming call beside inference: the stream that a handler is given, and the handler."""

from __future__ import annotations

from typing import Any, Protocol

from bireme.wire.grpc.status import Status


class MessageStream(Protocol):
    """One streaming call, as its handler sees it. Loop thread only."""

    def send(self, message: Any) -> None:
        """Send one message."""

    def finish(self) -> None:
        """End the call well, behind all messages that were sent."""

    def fail(self, status: Status, text: str) -> None:
        """End the call with an error, behind all messages that were sent."""


class StreamHandler(Protocol):
    """What answers one streaming call. None of its methods is called after `cancel` or the end of the call."""

    def take(self, message: Any) -> None:
        """Take one request message."""

    def end(self) -> None:
        """Hear that the client sends no more messages."""

    def cancel(self) -> None:
        """Let go of the stream: the client has left, or its deadline has passed."""
