"""Stream: one request and its answer; and what the connection asks of the front end (`Handler`, `Receiver`)."""

from __future__ import annotations

from collections import deque
from typing import Final, Protocol

from bireme.wire.http2.headers import RequestHead


class Receiver(Protocol):
    """What takes the DATA of one stream. Nothing is called any more after the stream was answered or reset."""

    def receive(self, data: memoryview) -> None:
        """Take bytes that have arrived; they are borrowed for the call only."""
        ...

    def get_target(self, size: int) -> memoryview | None:
        """Return memory for up to ``size`` bytes of DATA that have not arrived yet; None: they shall go to `receive`.

        It may be asked again before anything has arrived.
        """
        ...

    def advance(self, num_bytes: int) -> None:
        """Note that so many bytes were put into the last target."""
        ...

    def end(self) -> None:
        """Take the end of the stream. Called once, after all data."""
        ...


class Handler(Protocol):
    """The front end's connection. Each method may call the connection's methods that answer, reset or end."""

    def open_stream(self, stream: Stream) -> Receiver:
        """Begin a request, whose head is complete. Its end, if it has no body, follows as ``receiver.end()``."""
        ...

    def reset_stream(self, stream: Stream, code: int) -> None:
        """End a request early: the peer reset it, or erred, or the connection ends.

        Not called after the server's own `finish`, `answer` or `reset`, even if some of the answer is still queued.
        """
        ...

    def stream_drained(self, stream: Stream) -> None:
        """Note that all that was queued for ``stream`` (after something had to wait) has gone out."""
        ...

    def ping_acknowledged(self, data: bytes) -> None:
        """Note that the peer has answered a PING, by its eight bytes."""
        ...

    def ping_received(self) -> bool:
        """Return whether to answer a PING: False if the handler has ended the connection."""
        ...


class _Discard:
    """Receives what still comes for a stream that nobody reads any more."""

    def receive(self, data: memoryview) -> None:
        """Throw the bytes away."""

    def get_target(self, size: int) -> memoryview | None:  # noqa: ARG002
        """Ask for no memory."""
        return None

    def advance(self, num_bytes: int) -> None:
        """Never called: there is no target."""

    def end(self) -> None:
        """Ignore the end."""


DISCARD: Final = _Discard()


class Stream:
    """One request and its answer, until both are complete."""

    __slots__ = (
        "content_left",
        "head",
        "id",
        "is_closed",
        "is_half_closed",
        "is_waiting",
        "queue",
        "receive_window",
        "receiver",
        "sink",
        "trailers",
        "unsent_size",
        "window",
    )

    def __init__(
        self, stream_id: int, head: RequestHead, window: int, receive_window: int, *, is_half_closed: bool
    ) -> None:
        self.id = stream_id
        self.head = head
        self.receiver: Receiver = DISCARD
        """What `Handler.open_stream` returned, until the stream is closed: so no cycle keeps a request's memory."""
        self.sink: Receiver = DISCARD
        """Takes the DATA: the receiver, until nobody reads it any more."""
        self.window = window
        """Bytes of DATA that the peer takes; negative after it lowered its initial window."""
        self.receive_window = receive_window
        self.content_left = head.content_length
        """Bytes that content-length still promises; -1: there was none."""
        self.is_half_closed = is_half_closed
        """Whether the peer has ended its side."""
        self.is_closed = False
        """Whether nothing can be sent any more."""
        self.unsent_size = 0
        """Bytes of DATA queued because of windows or a paused transport; the front end bounds it."""
        self.is_waiting = False
        """Whether the front end is to be told when the queue has drained."""
        self.queue: deque[memoryview | bytes] | None = None
        self.trailers: bytes | None = None
        """The block that follows the queued DATA and ends the stream."""

    def __repr__(self) -> str:
        state = "closed" if self.is_closed else "half-closed" if self.is_half_closed else "open"
        return (
            f"Stream({self.id}, {state}, {self.head.path!r}, window {self.window}, unsent {self.unsent_size})"
        )
