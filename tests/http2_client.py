"""Both ends of an HTTP/2 connection in memory: `Http2Connection` with a recording handler, and `h2` as its client."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import h2.config
import h2.connection
import h2.events
from hyperframe.frame import Frame

from bireme.wire.http2 import ErrorCode, Http2Connection, Http2Limits, Stream, encode_block

REQUEST_HEADERS = (
    (b":method", b"POST"),
    (b":scheme", b"http"),
    (b":path", b"/inference.GRPCInferenceService/ModelInfer"),
    (b":authority", b"localhost:8001"),
    (b"te", b"trailers"),
    (b"content-type", b"application/grpc"),
)
RESPONSE_BLOCK = encode_block(((b":status", b"200"), (b"content-type", b"application/grpc")))
TRAILERS_BLOCK = encode_block(((b"grpc-status", b"0"),))


def parse_frames(data: bytes) -> list[Frame]:
    """Return the frames in what a server sent."""
    frames = []
    view = memoryview(data)
    while view:
        frame, length = Frame.parse_frame_header(view[:9])
        assert len(view) >= 9 + length
        frame.parse_body(view[9 : 9 + length])
        frames.append(frame)
        view = view[9 + length :]
    return frames


class Call:
    """Receives one request, by pieces or into memory of its own, as `Receiver`."""

    def __init__(self, handler: RecordingHandler, stream: Stream) -> None:
        self.handler = handler
        self.stream = stream
        self.body = bytearray()
        self.memory: memoryview | None = None
        self.num_direct = 0
        self.has_ended = False
        self.resets: list[int] = []
        self.num_drained = 0

    def receive(self, data: memoryview) -> None:
        self._check()
        assert len(data)
        self.body += data

    def get_target(self, size: int) -> memoryview | None:
        self._check()
        assert size > 0
        if not self.handler.wants_memory:
            return None
        self.memory = memoryview(bytearray(size))
        return self.memory

    def advance(self, num_bytes: int) -> None:
        self._check()
        assert self.memory is not None
        assert 0 < num_bytes <= len(self.memory)
        self.body += self.memory[:num_bytes]
        self.num_direct += num_bytes

    def end(self) -> None:
        self._check()
        self.has_ended = True
        self.handler.on_end(self)

    def _check(self) -> None:
        assert not self.has_ended, "something after the end"
        assert not self.resets, "something after a reset"


class RecordingHandler:
    """Keeps what the connection reports. ``on_open`` and ``on_end`` say what to do then."""

    def __init__(self) -> None:
        self.calls: dict[int, Call] = {}
        self.pings: list[bytes] = []
        self.num_pings_received = 0
        self.wants_memory = False
        self.answers_pings = True
        self.on_open: Callable[[Call], None] = lambda call: None
        self.on_end: Callable[[Call], None] = lambda call: None

    def open_stream(self, stream: Stream) -> Call:
        assert stream.id not in self.calls
        call = self.calls[stream.id] = Call(self, stream)
        self.on_open(call)
        return call

    def reset_stream(self, stream: Stream, code: int) -> None:
        assert not self.calls[stream.id].resets
        self.calls[stream.id].resets.append(code)

    def stream_drained(self, stream: Stream) -> None:
        self.calls[stream.id].num_drained += 1

    def ping_acknowledged(self, data: bytes) -> None:
        self.pings.append(data)

    def ping_received(self) -> bool:
        self.num_pings_received += 1
        return self.answers_pings


class Server:
    """A connection fed by hand."""

    def __init__(self, limits: Http2Limits | None = None, *, scratch_size: int = 64 << 10) -> None:
        self.handler = RecordingHandler()
        self.connection = Http2Connection(self.handler, limits or Http2Limits())
        self.scratch = memoryview(bytearray(scratch_size))

    def feed(self, data: bytes, chunk_size: int = 1 << 30) -> None:
        """Give the connection bytes as a transport does, at most ``chunk_size`` at a time."""
        position = 0
        while position < len(data):
            buffer = self.connection.get_buffer(self.scratch)
            assert len(buffer)
            piece = data[position : position + min(chunk_size, len(buffer))]
            buffer[: len(piece)] = piece
            self.connection.received(len(piece))
            position += len(piece)

    def take(self) -> bytes:
        """Return all that is to be written now."""
        written = []
        while output := self.connection.take_output():
            written += output
        return b"".join(written)

    def answer_all(self, body: bytes = b"hello") -> None:
        """Answer each request when it ends."""
        self.handler.on_end = lambda call: self.connection.answer(
            call.stream, RESPONSE_BLOCK, [body], len(body), TRAILERS_BLOCK
        )


class Client:
    """`h2` as the client of a `Server`."""

    def __init__(self, server: Server, chunk_size: int = 1 << 30) -> None:
        self.server = server
        self.chunk_size = chunk_size
        self.h2 = h2.connection.H2Connection(
            h2.config.H2Configuration(client_side=True, header_encoding=None)
        )
        self.events: list[h2.events.Event] = []
        self.h2.initiate_connection()
        self.exchange()

    def exchange(self) -> None:
        """Pass bytes to and fro until both are silent."""
        while True:
            sent = self.h2.data_to_send()
            self.server.feed(sent, self.chunk_size)
            answer = self.server.take()
            if not sent and not answer:
                return
            for event in self.h2.receive_data(answer):
                self.events.append(event)
                if isinstance(event, h2.events.DataReceived) and event.flow_controlled_length:
                    self.h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)

    def open(
        self, headers: Iterable[tuple[bytes, bytes]] = REQUEST_HEADERS, *, end_stream: bool = False
    ) -> int:
        stream_id: int = self.h2.get_next_available_stream_id()
        self.h2.send_headers(stream_id, list(headers), end_stream=end_stream)
        return stream_id

    def request(self, body: bytes = b"", headers: Iterable[tuple[bytes, bytes]] = REQUEST_HEADERS) -> int:
        """Send a whole request; its body must fit the windows."""
        stream_id = self.open(headers, end_stream=not body)
        frame_size = self.h2.max_outbound_frame_size
        for start in range(0, len(body), frame_size):
            piece = body[start : start + frame_size]
            self.h2.send_data(stream_id, piece, end_stream=start + frame_size >= len(body))
        return stream_id

    def body_of(self, stream_id: int) -> bytes:
        """Return the DATA received on a stream."""
        return b"".join(
            event.data
            for event in self.events
            if isinstance(event, h2.events.DataReceived) and event.stream_id == stream_id
        )

    def trailers_of(self, stream_id: int) -> list[tuple[bytes, bytes]] | None:
        for event in self.events:
            if isinstance(event, h2.events.TrailersReceived) and event.stream_id == stream_id:
                return [(bytes(name), bytes(value)) for name, value in event.headers]
        return None

    def resets(self) -> list[tuple[int, int]]:
        return [
            (event.stream_id, int(event.error_code))
            for event in self.events
            if isinstance(event, h2.events.StreamReset)
        ]

    def goaway(self) -> ErrorCode | None:
        for event in self.events:
            if isinstance(event, h2.events.ConnectionTerminated):
                return ErrorCode(int(event.error_code))
        return None
