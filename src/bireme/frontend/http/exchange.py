"""Exchange: one request and its answer, between a connection and the handler of its route.

A handler gets an exchange whose body is complete and answers it exactly once, at once or later, with `Exchange.reply`,
`Exchange.fail` or `Exchange.send`; or with `Exchange.begin`, in parts. Order on the connection, backpressure and closing
are the connection's business.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from bireme.engine.model import Model
from bireme.frontend.http.errors import status_of
from bireme.frontend.http.head import RefusedRequest, RequestHead
from bireme.frontend.http.reply_stream import ReplyStream
from bireme.frontend.memory import allocate_body
from bireme.frontend.work import INTERNAL_ERROR
from bireme.telemetry import log as server_log
from bireme.types import BiremeError, Buffer, InferenceRequest, InferenceResponse, Unavailable
from bireme.wire.http import error_body

if TYPE_CHECKING:
    from bireme.frontend.http.connection import HttpConnection

log = server_log.get_logger(__name__)

JSON: Final = b"Content-Type: application/json\r\n"
STATUS_LINES: Final = {
    code: f"HTTP/1.1 {code} {reason}\r\n".encode()
    for code, reason in (
        (200, "OK"),
        (400, "Bad Request"),
        (403, "Forbidden"),
        (404, "Not Found"),
        (405, "Method Not Allowed"),
        (408, "Request Timeout"),
        (413, "Content Too Large"),
        (414, "URI Too Long"),
        (417, "Expectation Failed"),
        (431, "Request Header Fields Too Large"),
        (500, "Internal Server Error"),
        (501, "Not Implemented"),
        (503, "Service Unavailable"),
        (505, "HTTP Version Not Supported"),
    )
}
_CLOSE = b"Connection: close\r\n"
_KEEP_ALIVE = b"Connection: keep-alive\r\n"
RETRY_AFTER: Final = b"Retry-After: 1\r\n"


class Route:
    """What answers the requests of one head. One object per distinct head, made by the router."""

    __slots__ = ("max_body_size",)

    is_final: bool = False
    """Whether the answer is known from the head alone, so that a client that asks first need not send its body."""

    def __init__(self, max_body_size: int) -> None:
        self.max_body_size = max_body_size

    def handle(self, exchange: Exchange) -> None:
        """Answer ``exchange``, now or later. An exception is answered as an internal error."""
        raise NotImplementedError

    def answer(self, exchange: Exchange, request: InferenceRequest, response: InferenceResponse) -> None:
        """Send the response of the inference that `handle` asked for."""
        raise NotImplementedError

    def allocate(self, size: int) -> memoryview:
        """Return memory of ``size`` bytes for a body that is still arriving; it is received straight into it."""
        return allocate_body(size)

    def refuse_size(self, size: int) -> RefusedRequest:
        """Return the error for a body of ``size`` bytes, more than ``max_body_size``."""
        return RefusedRequest(
            400,
            f"request body of {size} bytes exceeds the maximum allowed input size of {self.max_body_size} bytes. "
            "Use --http-max-input-size to increase the limit.",
        )


class Exchange:
    """One request with its head and body, waiting for its answer."""

    __slots__ = (
        "body",
        "connection",
        "error",
        "head",
        "is_answered",
        "model",
        "on_room",
        "pieces",
        "request",
        "size",
        "start_ns",
        "status",
        "stream",
        "work",
    )

    def __init__(self, connection: HttpConnection, head: RequestHead, body: Buffer) -> None:
        self.connection = connection
        self.head = head
        self.body = body
        """Complete; borrowed by the tensors made from it."""
        self.request: InferenceRequest | None = None
        """The inference that this exchange waits for; cancelled when the client leaves."""
        self.model: Model
        """The model that the request went to."""
        self.work: asyncio.Task[None] | None = None
        """What is being done for this exchange alone; given up when the client leaves."""
        self.is_answered = False
        self.status = 200
        self.error = ""
        """The message of an error answer."""
        self.start_ns = 0
        """``time.monotonic_ns`` when the request had begun to arrive; 0 without an access log and without traces."""
        self.pieces: list[Buffer] | None = None
        """The answer, or parts of it, held back while an earlier request of the connection has none."""
        self.size = 0
        """Of what is held back."""
        self.on_room: Callable[[], None] | None = None
        """Is called when the client has taken parts of the answer."""
        self.stream: ReplyStream | None = None
        """The answer, if it comes in parts and has begun."""

    def respond(self, request: InferenceRequest, response: InferenceResponse) -> None:
        """Take the engine's response; the ``respond`` of this exchange's `InferenceRequest`."""
        self.head.route.answer(self, request, response)

    def send(self, start: bytes, pieces: Sequence[Buffer], size: int) -> None:
        """Answer with ``start`` (status line and headers) and a body of ``size`` bytes in ``pieces``.

        The pieces are borrowed until they are written; ``len`` of each is its size in bytes.
        """
        end = self.head.reply_end
        if self.connection.is_closing and self.head.keep_alive and self.connection.is_last(self):
            end = _closing(end)
        start = b"%sContent-Length: %d\r\n%s" % (start, size, end)
        if self.head.method == b"HEAD":
            pieces, size = [], 0
        if server_log.verbose_enabled:
            self._log(size)
        self.connection.complete(self, [start, *pieces], len(start) + size)

    # Answers in parts

    def begin(self, status: int, headers: bytes) -> None:
        """Begin an answer in parts; ``headers`` are lines that end in CR LF. They go out with the first part."""
        self.status = status
        connection, head = self.connection, self.head
        end = head.reply_end
        if head.takes_chunks:
            if connection.is_closing and head.keep_alive and connection.is_last(self):
                end = _closing(end)
            headers += b"Transfer-Encoding: chunked\r\n"
        else:  # its end is the connection's
            if head.keep_alive:
                end = _closing(end)
            connection.take_no_more()
        start = b"%s%s%s" % (STATUS_LINES[status], headers, end)
        self.stream = ReplyStream(start, is_chunked=head.takes_chunks)

    def send_part(self, pieces: Sequence[Buffer], size: int, *, is_last: bool = False) -> None:
        """Send ``size`` bytes of an answer that has begun; ``is_last`` ends it. The pieces are borrowed until written."""
        stream = self.stream
        assert stream is not None
        parts, num_bytes = stream.frame(pieces, size, is_last=is_last)
        self.connection.send_part(self, parts, num_bytes)
        if is_last:
            if server_log.verbose_enabled:
                self._log(stream.size)
            self.connection.end_parts(self, stream.size)

    @property
    def unsent_size(self) -> int:
        """Bytes of an answer in parts that the client has not taken: they wait for their turn, or for the network."""
        return 0 if self.stream is None else min(self.stream.size, self.connection.unsent_size(self))

    # Whole answers

    def reply(self, status: int, body: bytes = b"", headers: bytes = JSON) -> None:
        """Answer with a whole body; ``headers`` are lines that end in CR LF."""
        self.status = status
        self.send(STATUS_LINES[status] + headers, [body], len(body))

    def fail(self, error: BiremeError) -> None:
        """Answer with an error's status and message."""
        self.error = error.message
        headers = JSON + RETRY_AFTER if isinstance(error, Unavailable) else JSON
        self.reply(status_of(error), error_body(error.message), headers)

    def _log(self, size: int) -> None:
        log.debug(
            "HTTP request: %s %s answered %d, %d bytes%s",
            self.head.method.decode("latin-1") or "-",
            self.head.path.decode("latin-1"),
            self.status,
            size,
            f": {self.error}" if self.error else "",
        )

    def take_error(self, error: Exception) -> None:
        """Answer ``error``, foreseen or not."""
        if isinstance(error, BiremeError):
            self.fail(error)
        else:
            self.crash(error)

    def crash(self, error: BaseException) -> None:
        """Answer an unforeseen exception: logged with its traceback, of which the client learns nothing."""
        log.error("%r failed", self.head, exc_info=error)
        if self.stream is not None:
            self.connection.cut(self)  # an answer that lacks its end cannot be taken for a whole one
        elif not self.is_answered:
            self.reply(500, error_body(INTERNAL_ERROR))


def _closing(end: bytes) -> bytes:
    """Return the last headers of an answer to which the connection's end is added."""
    return _CLOSE + end.replace(_KEEP_ALIVE, b"")
