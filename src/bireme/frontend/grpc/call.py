"""Call: one RPC, from its head to its status; and Route, what its head says.

A call is the receiver of its stream's DATA: a `MessageReader` whose messages it takes itself. It ends exactly once: well,
by `answer` or `succeed`; with a status that its method has decided on, by `fail`; by an error on the way, which `take_error`
tells the client; or because the client has left (`cancel`). The last two also give up what is under way for it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from bireme.engine.model import Model
from bireme.frontend.grpc.api import GrpcApi
from bireme.frontend.grpc.errors import status_of
from bireme.frontend.inference import INLINE_INFLATE_SIZE
from bireme.frontend.memory import allocate_body
from bireme.frontend.work import INTERNAL_ERROR
from bireme.telemetry import log as server_log
from bireme.telemetry.tracing import TraceContext
from bireme.types import BiremeError, Buffer, InferenceRequest, Parameter
from bireme.wire.grpc.compression import Encoding, decompress
from bireme.wire.grpc.message_reader import SMALL_SIZE, MessageReader, message_prefix
from bireme.wire.grpc.request_parts import raw_offset
from bireme.wire.grpc.status import (
    DEFLATE_RESPONSE_HEADERS,
    GZIP_RESPONSE_HEADERS,
    OK_TRAILERS,
    RESPONSE_HEADERS,
    Refusal,
    Status,
    trailers,
    trailers_only,
)
from bireme.wire.http2 import Receiver, Stream

if TYPE_CHECKING:
    from bireme.frontend.grpc.connection import GrpcConnection

log = server_log.get_logger(__name__)

_HEADERS: Final[dict[Encoding | None, bytes]] = {
    None: RESPONSE_HEADERS,
    "gzip": GZIP_RESPONSE_HEADERS,
    "deflate": DEFLATE_RESPONSE_HEADERS,
}
DEADLINE_EXCEEDED: Final = "Deadline Exceeded"


class Route:
    """What a request head says. Shared between the calls of one connection that sent the same head."""

    __slots__ = ("accepted", "caller", "encoding", "forwarded", "max_message_size", "path", "timeout_s")

    def __init__(self, path: bytes, max_message_size: int) -> None:
        self.path = path
        self.max_message_size = max_message_size
        self.timeout_s = -1.0
        """How long the client waits; negative: for ever."""
        self.encoding: Encoding | None = None
        """Of the messages that are flagged as compressed."""
        self.accepted: Encoding | None = None
        """By what to compress responses."""
        self.forwarded: dict[str, Parameter] | None = None
        """Metadata that become request parameters."""
        self.caller: TraceContext | None = None
        """Who the requests belong to, by their trace context."""

    def open(self, connection: GrpcConnection, stream: Stream) -> Receiver:
        """Begin the call of ``stream``."""
        raise NotImplementedError


class Call(MessageReader):
    """One RPC. Loop thread only."""

    __slots__ = (
        "_has_headers",
        "_num_expected",
        "_num_held",
        "_swept",
        "_timer",
        "api",
        "bytes_in",
        "bytes_out",
        "connection",
        "error",
        "is_done",
        "is_waiting",
        "model",
        "request",
        "route",
        "start_ns",
        "status",
        "stream",
        "work",
    )

    def __init__(self, api: GrpcApi, connection: GrpcConnection, stream: Stream, route: Route) -> None:
        super().__init__(route.max_message_size)
        self.api = api
        self.connection = connection
        self.stream = stream
        self.route = route
        self.is_done = False
        """Whether its status has been decided; whatever is said to it afterwards has no effect."""
        self.status = Status.OK
        self.error = ""
        """The message of a status that is not OK."""
        self.request: InferenceRequest | None = None
        """The inference that it waits for."""
        self.model: Model | None = None
        self.work: asyncio.Task[None] | None = None
        """What is being done for this call alone; given up when it is cancelled."""
        self.bytes_in = 0
        self.bytes_out = 0
        self.is_waiting = False
        """Whether `GrpcConnection.wait` has it."""
        self._has_headers = False
        self._num_expected = 0
        """Bytes of the answer that the connection expects of it."""
        self._num_held = 0
        """Bytes counted in the listener's `ReceiveMemory`."""
        self._swept: tuple[int, int] = (-1, 0)
        self._timer: asyncio.TimerHandle | None = None
        is_timed = connection.log_access is not None or api.server.tracing.is_on
        self.start_ns = time.monotonic_ns() if is_timed else 0
        if route.timeout_s >= 0:
            self._timer = connection.loop.call_later(route.timeout_s, self._expire)

    # Messages in

    def allocate(self, size: int, start: memoryview) -> memoryview:
        """Return memory for a message, laid out for its first tensor to be aligned."""
        self._count(len(start))
        return allocate_body(size, tensors_at=raw_offset(start), arena=self.api.server.arena)

    def advance(self, num_bytes: int) -> None:
        """Count what has arrived, too."""
        if self.hold(num_bytes):
            super().advance(num_bytes)

    def hold(self, num_bytes: int) -> bool:
        """Count bytes of a message until the call ends; False: there is no room for them, and the call has ended."""
        try:
            self._count(num_bytes)
        except Refusal as refusal:
            self.take_error(refusal)
            return False
        return True

    def _count(self, num_bytes: int) -> None:
        self.connection.memory.take(num_bytes)
        self._num_held += num_bytes

    def refuse(self, status: Status, text: str) -> None:
        """End the call, for what came is no message, or too large a one."""
        self.take_error(Refusal(status, text))

    def inflate(self, message: Buffer) -> Buffer:
        """Return the plain form of a compressed message; on any thread. It counts only as long as this takes.

        Raises:
            Refusal: it cannot be inflated, or is too large; or nobody waits for it any more.
        """
        memory = self.connection.memory
        num_taken = 0

        def take(num_bytes: int) -> None:
            nonlocal num_taken
            if self.is_done:
                raise Refusal(Status.CANCELLED, "the client has left")
            memory.take(num_bytes)
            num_taken += num_bytes

        try:
            return decompress(message, self.route.encoding, self._max_message_size, take)
        finally:
            memory.give_back(num_taken)

    # Answers out

    def answer(
        self, pieces: Sequence[Buffer], size: int, encoding: Encoding | None = None, *, is_plain: bool = False
    ) -> None:
        """End the call well, with one message of ``size`` bytes. The pieces are borrowed until they are written.

        ``encoding`` is that of the pieces; ``is_plain``: they are as they were, since compressing them was no gain.
        """
        if self.is_done:
            return
        self.bytes_out = size
        prefix = message_prefix(size, encoding is not None and not is_plain)
        self._settle()
        connection = self.connection
        connection.h2.answer(
            self.stream,
            _HEADERS[encoding],
            (prefix, *pieces),
            size + 5,
            OK_TRAILERS,
        )
        connection.flush(self.stream)

    def send(self, pieces: Sequence[Buffer], size: int, *, is_compressed: bool = False) -> None:
        """Send one of several messages."""
        if self.is_done:
            return
        self.bytes_out += size
        h2 = self.connection.h2
        if not self._has_headers:
            self._has_headers = True
            h2.send_headers(self.stream, _HEADERS[self.route.accepted])
        h2.send_data(self.stream, (message_prefix(size, is_compressed), *pieces), size + 5)
        self.connection.flush(self.stream)

    def succeed(self) -> None:
        """End the call well, behind all messages that were sent."""
        self.fail(Status.OK, "")

    def fail(self, status: Status, text: str) -> None:
        """End the call with ``status``, behind all messages that were sent."""
        if not self.is_done:
            self._conclude(status, text)

    def take_error(self, error: BaseException) -> None:
        """End the call with ``error``, and give up what is under way for it.

        What was not foreseen is logged, even if nobody waits any more, and the client learns nothing of it.
        """
        status, text = self._describe(error)
        if self.is_done:
            return
        self.is_done = True  # what the engine answers from now on has no effect
        self.give_up()
        self._conclude(status, text)

    def refuse_head(self, block: bytes, status: Status, text: str) -> None:
        """End a call that its head rules out, by a ``block`` of headers that says so."""
        self._conclude(status, text, block)

    def _conclude(self, status: Status, text: str, block: bytes = b"") -> None:
        self.status = status
        self.error = text
        self._settle()
        connection = self.connection
        if block:
            connection.h2.finish(self.stream, block)
        elif self._has_headers:
            connection.h2.finish(self.stream, trailers(status, text))
        elif status is Status.OK:
            connection.h2.send_headers(self.stream, RESPONSE_HEADERS)
            connection.h2.finish(self.stream, OK_TRAILERS)
        else:
            connection.h2.finish(self.stream, trailers_only(status, text))
        connection.flush(self.stream)

    def _describe(self, error: BaseException) -> tuple[Status, str]:
        if isinstance(error, BiremeError):
            return status_of(error), error.message
        if isinstance(error, Refusal):
            return error.status, error.text
        log.error("%r failed", self, exc_info=error)
        return Status.INTERNAL, INTERNAL_ERROR

    # The end

    def cancel(self) -> None:
        """The client has left."""
        if self.is_done:
            return
        self.is_done = True
        self.give_up()
        self.status = Status.CANCELLED
        self._settle()

    def _expire(self) -> None:
        self._timer = None
        self.take_error(Refusal(Status.DEADLINE_EXCEEDED, DEADLINE_EXCEEDED))

    def give_up(self) -> None:
        """Let go of what is under way for a client that waits no longer."""
        self.connection.forget(self)
        if self.work is not None:
            self.work.cancel()
        if self.request is not None:
            self.api.server.cancel(self.request)

    def drain(self) -> None:
        """The server takes no more calls: end this one as soon as nothing is under way for it."""

    def note_taken(self) -> None:
        """The client has taken all that was sent on the stream."""

    def _settle(self) -> None:
        """Note that the call is over; its client is told by the caller."""
        self.is_done = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        connection = self.connection
        if self._num_held:
            connection.memory.give_back(self._num_held)
            self._num_held = 0
        if self._num_expected:
            connection.release(self._num_expected)
            self._num_expected = 0
        connection.statuses[self.status] += 1
        if connection.log_access is not None:
            connection.log_access(self)
        if server_log.verbose_enabled:
            self._log()
        self.stop()
        # Breaks the cycles of call, stream, request and task: the collector has nothing to find.
        self.stream.receiver = ENDED
        self.request = None
        self.work = None

    def _log(self) -> None:
        log.debug(
            "gRPC call: %s ended with %s, %d bytes%s",
            self.route.path.decode("latin-1"),
            self.status.name,
            self.bytes_out,
            f": {self.error}" if self.error else "",
        )

    def sweep(self, most: int) -> None:
        """Count one sweep; end the call when a message has not come further for ``most`` of them."""
        progress = len(self._held) + len(self._target) if self.is_receiving else -1
        if progress < 0 or self._swept[0] != progress:
            self._swept = (progress, 0)
            return
        num_sweeps = self._swept[1] + 1
        self._swept = (progress, num_sweeps)
        if num_sweeps >= most:
            self.take_error(Refusal(Status.UNAVAILABLE, "the rest of a message did not arrive in time"))

    @property
    def is_receiving(self) -> bool:
        """Whether a message has begun and is not complete."""
        return not self._is_whole and not self._is_stopped

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.route.path.decode('latin-1')}, stream {self.stream.id})"


class _Ended:
    """Stands for a call that is over, where only a stream is left."""

    def receive(self, data: memoryview) -> None:
        """Throw the bytes away."""

    def get_target(self, size: int) -> memoryview | None:  # noqa: ARG002
        """Ask for no memory."""
        return None

    def advance(self, num_bytes: int) -> None:
        """Never called: there is no target."""

    def end(self) -> None:
        """Ignore the end."""

    def cancel(self) -> None:
        """Do nothing: the status has been decided."""

    def drain(self) -> None:
        """Do nothing."""

    def note_taken(self) -> None:
        """Do nothing."""

    def sweep(self, most: int) -> None:
        """Do nothing."""


ENDED: Final[Any] = _Ended()


class UnaryCall(Call):
    """A call that takes one message and gives one. A method derives from it and runs `begin`."""

    __slots__ = ("_is_compressed", "_message")

    def __init__(self, api: GrpcApi, connection: GrpcConnection, stream: Stream, route: Route) -> None:
        super().__init__(api, connection, stream, route)
        self._message: Buffer | None = None
        self._is_compressed = False

    def begin(self, message: Buffer) -> None:
        """Answer ``message``, now or later. What it raises ends the call."""
        raise NotImplementedError

    def take_message(self, message: Buffer, is_compressed: bool) -> None:  # noqa: FBT001
        """Keep the message until it is known to be the only one."""
        if self._message is not None:
            self.fail(Status.INTERNAL, "expected one request message, got more")
            return
        size = len(message)
        if size > SMALL_SIZE and not self._num_held and not self.hold(size):
            return
        self._message = message
        self._is_compressed = is_compressed
        self.bytes_in = size

    def take_end(self) -> None:
        """Begin, unless the client has to take earlier answers first."""
        if self._message is None:
            self.fail(Status.INTERNAL, "expected one request message, got none")
        elif not self.connection.may_begin():
            self.connection.wait(self, 0)
        else:
            self.resume()

    def resume(self) -> None:
        """Begin."""
        message, self._message = self._message, None  # so that no more than the request keeps it
        assert message is not None
        try:
            if not self._is_compressed:
                self.begin(message)
            elif len(message) <= INLINE_INFLATE_SIZE:
                self._begin_plain(self.inflate(message))
            else:
                self.work = self.api.spawn_preparation(self, self._inflate(message))
        except Exception as error:  # noqa: BLE001 (answered, and logged if it was not foreseen)
            self.take_error(error)

    async def _inflate(self, message: Buffer) -> None:
        self._begin_plain(await self.api.in_thread(self.inflate, message))

    def _begin_plain(self, message: Buffer) -> None:
        self._count(len(message))
        self.begin(message)
