"""What the gRPC front end costs per call, without sockets and without models: one row per kind of call.

    python -m benchmarks.grpc_frontend [--repeat N] [--profile ROW]

Each call goes from the transport's buffer to the engine's `submit` and back to the transport's `write`; the engine is one
that answers at once with arrays that are there already. Microseconds of one core; the best of several rounds.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import gc
import pstats
import struct
import time
from collections.abc import Callable

import hpack
import numpy as np
from benchmarks.timing import CannedServer, NullTransport  # which puts the tests' folder on the path
from h2.settings import SettingCodes

from grpc_calls import infer_message
from grpc_fakes import INFER, LIVE, STREAM_INFER, GrpcScene

ROUNDS = 7
DATA, HEADERS, RST_STREAM, WINDOW_UPDATE = 0, 1, 3, 8
END_STREAM, END_HEADERS = 1, 4
MOST_DATA = 4 << 20
SMALL = np.arange(16, dtype=np.float32)
LARGE = np.zeros(1_500_000, dtype=np.float32)


def frame(kind: int, flags: int, stream_id: int, payload: bytes) -> bytes:
    return struct.pack(">IBI", len(payload) << 8 | kind, flags, stream_id) + payload


class Caller:
    """A client whose bytes are made before the clock runs."""

    def __init__(self, message: bytes, path: str = INFER, *, tracing: bool = False, **outputs: np.ndarray):
        settings = {SettingCodes.INITIAL_WINDOW_SIZE: 1 << 30}
        self.scene = GrpcScene(CannedServer(**outputs), client={"settings": settings})
        self.connection = self.scene.connection
        self.connection._transport = NullTransport()
        self.data = struct.pack(">BI", 0, len(message)) + message
        self.is_stream = path == STREAM_INFER
        self.encoder = hpack.Encoder()
        self.fields = [
            (b":method", b"POST"),
            (b":scheme", b"http"),
            (b":path", path.encode()),
            (b":authority", b"localhost:8001"),
            (b"te", b"trailers"),
            (b"content-type", b"application/grpc"),
            (b"user-agent", b"grpc-c++/1.54.3 grpc-c/31.0.0 (linux; chttp2)"),
            (b"grpc-accept-encoding", b"identity, deflate, gzip"),
        ]
        self.tracing = tracing
        self.stream_id = -1
        if self.is_stream:
            self.stream_id = 1
            self.feed(frame(HEADERS, END_HEADERS, 1, self.encoder.encode(self.fields)))
        else:
            for _ in range(2):  # then all fields are in the tables of both sides
                self.feed(self.next_call())

    def next_call(self) -> bytes:
        """The bytes of one more call; of one more message on a stream."""
        flags = 0 if self.is_stream else END_STREAM
        if not self.is_stream:
            self.stream_id += 2
        pieces = [self.data[start : start + MOST_DATA] for start in range(0, len(self.data), MOST_DATA)]
        framed = [frame(DATA, 0, self.stream_id, piece) for piece in pieces[:-1]]
        framed.append(frame(DATA, flags, self.stream_id, pieces[-1]))
        if not self.is_stream:
            fields = self.fields
            if self.tracing:
                fields = [*fields, (b"grpc-timeout", b"%dm" % (9000 + self.stream_id % 999))]
            framed.insert(0, frame(HEADERS, END_HEADERS, self.stream_id, self.encoder.encode(fields)))
        return b"".join(framed)

    def feed(self, data: bytes) -> None:
        connection = self.connection
        view = memoryview(data)
        while view:
            target = connection.get_buffer(-1)
            size = min(len(target), len(view), 1 << 20)
            target[:size] = view[:size]
            connection.buffer_updated(size)
            view = view[size:]

    def run(self, calls: list[bytes]) -> float:
        """Return the seconds that ``calls`` take."""
        feed = self.feed
        start = time.perf_counter()
        for call in calls:
            feed(call)
        seconds = time.perf_counter() - start
        for _ in range(3):
            self.connection.h2.tick()
        self.feed(frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", self.give_back(len(calls)))))
        if self.is_stream:
            self.feed(frame(WINDOW_UPDATE, 0, 1, struct.pack(">I", self.give_back(len(calls)))))
        return seconds

    def give_back(self, num_calls: int) -> int:
        """Bytes of answers that so many calls have had, about."""
        server = self.scene.server
        return num_calls * (sum(item.nbytes for item in getattr(server, "outputs", ())) + 100)


def rows() -> dict[str, tuple[Callable[[], Caller], int]]:
    """Return how to make the caller of every row, and by what to divide the number of calls."""
    add = infer_message("m", INPUT0=SMALL, INPUT1=SMALL).SerializeToString()
    big = infer_message("m", X=LARGE).SerializeToString()
    medium = infer_message("m", X=LARGE[:131_072]).SerializeToString()
    both = {"OUTPUT0": SMALL, "OUTPUT1": SMALL}
    return {
        "ServerLive": (lambda: Caller(b"", LIVE), 1),
        "ModelInfer, add FP32[16]": (lambda: Caller(add, **both), 1),
        "the same, another deadline each time": (lambda: Caller(add, tracing=True, **both), 1),
        "the same, 16 calls in one read": (lambda: Caller(add, **both), 16),
        "ModelStreamInfer, add FP32[16]": (lambda: Caller(add, STREAM_INFER, **both), 1),
        "ModelInfer, 512 KB both ways": (lambda: Caller(medium, Y=LARGE[:131_072]), 40),
        "ModelInfer, 6 MB both ways": (lambda: Caller(big, Y=LARGE), 400),
    }


def measure(name: str, make: Callable[[], Caller], num_calls: int) -> float:
    """Return microseconds per call."""
    caller = make()
    at_once = 16 if "16 calls" in name else 1
    best = float("inf")
    gc.collect()
    gc.freeze()
    for _ in range(ROUNDS):
        calls = [b"".join(caller.next_call() for _ in range(at_once)) for _ in range(num_calls)]
        best = min(best, caller.run(calls))
    return best / num_calls / at_once * 1e6


def profile(make: Callable[[], Caller], num_calls: int) -> None:
    caller = make()
    calls = [caller.next_call() for _ in range(num_calls)]
    profiler = cProfile.Profile()
    profiler.runcall(caller.run, calls)
    pstats.Stats(profiler).sort_stats("tottime").print_stats(30)


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeat", type=int, default=4000, help="calls per round")
    parser.add_argument("--profile", metavar="ROW", help="profile the row whose name begins so")
    arguments = parser.parse_args()
    if arguments.profile:
        (found, *_) = [row for name, row in rows().items() if name.startswith(arguments.profile)]
        profile(found[0], max(1, arguments.repeat // found[1]))
        return
    print(f"{'call':40} {'µs':>8}")
    for name, (make, divisor) in rows().items():
        print(f"{name:40} {measure(name, make, max(1, arguments.repeat // divisor)):8.2f}")


if __name__ == "__main__":
    asyncio.run(main())
