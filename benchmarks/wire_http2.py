"""What HTTP/2 costs per request, without sockets: a table of microseconds.

Run: ``python -m benchmarks.wire_http2``. Each figure is the best of several rounds, so that a busy machine shows less.
The requests are those of a gRPC client: HEADERS and DATA that ends the stream, then HEADERS, DATA and trailers back.
"""

from __future__ import annotations

import os
import struct
import sys
import timeit
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from hpack import Encoder
from rich.console import Console
from rich.table import Table

from bireme.wire.http2 import Http2Connection, Stream

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from http2_client import REQUEST_HEADERS, RESPONSE_BLOCK, TRAILERS_BLOCK

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + struct.pack(">IBI", 4, 0, 0)
FIELDS = [
    *REQUEST_HEADERS,
    (b"user-agent", b"grpc-python/1.60.0 grpc-c/37.0.0 (linux; chttp2)"),
    (b"grpc-accept-encoding", b"identity, deflate, gzip"),
]
SMALL = bytes(200)
WINDOW = 1 << 30


class Sink:
    """Receives requests as fast as possible; large ones in memory that is there already."""

    def __init__(self) -> None:
        self.stream: Stream | None = None
        self.memory = memoryview(bytearray(8 << 20))

    def open_stream(self, stream: Stream) -> Sink:
        self.stream = stream
        return self

    def stream_drained(self, stream: Stream) -> None:
        pass

    def receive(self, data: memoryview) -> None:
        pass

    def get_target(self, size: int) -> memoryview:
        return self.memory[:size]

    def advance(self, num_bytes: int) -> None:
        pass

    def end(self) -> None:
        pass


class Bench:
    """A connection, and the client's HPACK state."""

    def __init__(self) -> None:
        self.sink = Sink()
        self.connection = Http2Connection(self.sink)  # type: ignore[arg-type]
        self.scratch = memoryview(bytearray(64 << 10))
        self.encoder = Encoder()
        self.next_id = 1
        self.feed(PREFACE)
        self.feed(self.request(FIELDS, SMALL))

    def request(self, fields: Iterable[tuple[bytes, bytes]], body: bytes, frame_size: int = 1 << 22) -> bytes:
        block = self.encoder.encode(fields)
        self.next_id += 2
        frames = [struct.pack(">IBI", len(block) << 8 | 1, 4, self.next_id), block]
        for start in range(0, len(body), frame_size):
            piece = body[start : start + frame_size]
            is_last = start + frame_size >= len(body)
            frames += (struct.pack(">IBI", len(piece) << 8, int(is_last), self.next_id), piece)
        return b"".join(frames)

    def feed(self, data: bytes) -> None:
        if len(data) <= len(self.scratch):
            buffer = self.connection.get_buffer(self.scratch)
            buffer[: len(data)] = data
            self.connection.received(len(data))
            return
        view = memoryview(data)
        while view:
            buffer = self.connection.get_buffer(self.scratch)
            size = min(len(buffer), len(view))
            if view.obj is not buffer.obj:
                buffer[:size] = view[:size]
            self.connection.received(size)
            view = view[size:]

    def answer(self, stream: Stream, pieces: list[bytes]) -> None:
        connection = self.connection
        connection._send_window = stream.window = WINDOW
        connection.answer(stream, RESPONSE_BLOCK, pieces, sum(map(len, pieces)), TRAILERS_BLOCK)
        while connection.take_output():  # a server writes here
            pass


def best_us(make: Callable[[], Any], act: Callable[[Any], object], rounds: int, number: int) -> float:
    """Return the best mean time of ``act`` over some rounds, on inputs made outside the time."""
    best = float("inf")
    for _ in range(rounds):
        inputs = [make() for _ in range(number)]
        start = timeit.default_timer()
        for data in inputs:
            act(data)
        best = min(best, (timeit.default_timer() - start) / number)
    return best * 1e6


def row(
    label: str,
    body: bytes,
    reply: list[bytes],
    *,
    own: bool = False,
    frame_size: int = 1 << 22,
    number: int = 1000,
) -> list[str]:
    bench = Bench()

    def make() -> bytes:
        extra = [(b"x-request-id", os.urandom(16).hex().encode())] if own else []
        return bench.request([*FIELDS, *extra], body, frame_size)

    def receive(data: bytes) -> None:
        bench.feed(data)
        bench.connection.streams.clear()

    def open_one() -> Stream:
        bench.feed(make())
        assert bench.sink.stream is not None
        return bench.sink.stream

    received = best_us(make, receive, 10, number)
    answered = best_us(open_one, lambda stream: bench.answer(stream, reply), 10, number)
    return [label, f"{len(body):,}", f"{received:.1f}", f"{sum(map(len, reply)):,}", f"{answered:.1f}"]


def main() -> None:
    table = Table("request", "bytes", "receive µs", "reply bytes", "answer µs", title="wire.http2")
    for column in table.columns[1:]:
        column.justify = "right"
    small_reply = [bytes(35), bytes(64), bytes(64)]
    large = bytes(6 << 20)
    table.add_row(*row("small, like the one before", SMALL, small_reply))
    table.add_row(*row("small, with a header of its own", SMALL, small_reply, own=True))
    table.add_row(*row("512 KB in frames of 4 MB", large[: 512 << 10], [large[: 512 << 10]], number=50))
    table.add_row(*row("6 MB in frames of 4 MB", large, [large], number=5))
    table.add_row(*row("6 MB in frames of 16 KB", large, [large], frame_size=16 << 10, number=5))
    Console(width=110).print(table)
    print("Large requests: with one copy into place, which is the kernel's in a server.")


if __name__ == "__main__":
    main()
