"""What clients do to a gRPC server that is a process of its own: floods, windows that never open, cut connections, a stop under load.

While each goes on, another client keeps getting answers, and the process's memory stays below a ceiling.
"""

from __future__ import annotations

import random
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Self

import grpc
import numpy as np
import pytest
from tritonclient.grpc import service_pb2

import http2_peer as http2
from e2e_server import wait_until
from grpc_calls import INFER, STREAM_INFER, A, array_of, infer_message
from grpc_socket import INITIAL_WINDOW_SIZE, GrpcSocket, framed
from onnx_models import make_repository, save_plus_one, save_widened
from serve_process import SLOW_CONFIG, ServeProcess, running, slow_backend

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc"),
]

MB = 1 << 20
VECTOR = """
max_batch_size: 0
input { name: "X" data_type: TYPE_FP32 dims: [ -1 ] }
output { name: "Y" data_type: TYPE_FP32 dims: [ -1 ] }
"""
ANSWER_SIZE = 6 * MB
"""Of the model ``wide``, whose request is a few bytes."""
CEILING_MB = 100
"""What a flood may make the process grow by."""


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServeProcess]:
    wide = partial(save_widened, size=ANSWER_SIZE // 4)
    models = {"plus_one": (save_plus_one, VECTOR), "wide": wide}
    root = make_repository(tmp_path_factory.mktemp("models"), models)
    with running(ServeProcess("--model-repository", str(root))) as started:
        started.wait_for("is ready in")
        # What is made on first use, and what onnxruntime keeps of large answers, counts for nobody's flood.
        with (
            Bystander(started.grpc_address) as first,
            GrpcSocket(
                started.grpc_address, settings={INITIAL_WINDOW_SIZE: 0}, opens_windows=False
            ) as client,
        ):
            ask_for_much(client, 20, INFER)
            client.pump_for(0.2)
            wait_until(lambda: first.num_answers > 50)
        yield started


class Bystander:
    """A client that does nothing wrong, on a connection of its own."""

    def __init__(self, address: str) -> None:
        self.num_answers = 0
        self.worst_s = 0.0
        self.error: BaseException | None = None
        self._address = address
        self._is_done = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Self:
        self._thread.start()
        wait_until(lambda: self.num_answers or self.error)
        return self

    def __exit__(self, *_exc: object) -> None:
        num_before = self.num_answers
        try:
            wait_until(
                lambda: self.num_answers > num_before or self.error
            )  # it is served after the flood, too
        finally:
            self._is_done.set()
            self._thread.join()
        assert self.error is None, self.error

    def _run(self) -> None:
        try:
            with grpc.insecure_channel(
                self._address, options=(("grpc.use_local_subchannel_pool", 1),)
            ) as channel:
                infer = channel.unary_unary(
                    INFER, response_deserializer=service_pb2.ModelInferResponse.FromString
                )
                while not self._is_done.is_set():
                    start_s = time.monotonic()
                    values = A * self.num_answers
                    answer = infer(infer_message("plus_one", X=values).SerializeToString(), timeout=10)
                    np.testing.assert_array_equal(array_of(answer), values + 1)
                    self.worst_s = max(self.worst_s, time.monotonic() - start_s)
                    self.num_answers += 1
        except BaseException as error:  # noqa: BLE001 (told to the test)
            self.error = error


def connect(address: str, *, reads: bool = True, preface: bytes = http2.START) -> socket.socket:
    """Begin a connection; without ``reads``, nothing that the server sends will be taken and its buffers are small."""
    host, _, port = address.rpartition(":")
    sock = socket.socket()
    if not reads:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.settimeout(10)
    sock.connect((host, int(port)))
    sock.sendall(preface)
    return sock


# Floods: whoever sends without end is sent away


def rapid_reset() -> Iterator[bytes]:
    for stream in range(1, 2_000_000, 2):
        yield http2.headers(stream) + http2.rst_stream(stream)


def resets_by_the_server() -> Iterator[bytes]:
    """Streams that the server has to end itself, since each begins with an error."""
    for stream in range(1, 2_000_000, 2):
        yield http2.headers(stream) + http2.window_update(stream, 0)


def continuation() -> Iterator[bytes]:
    yield http2.headers(1, flags=0)
    yield from repeated(http2.frame(http2.CONTINUATION, 0, 1, http2.encode([(b"x-flood", b"y" * 8000)])))()


def empty_continuation() -> Iterator[bytes]:
    yield http2.headers(1, flags=0)
    while True:
        yield http2.frame(http2.CONTINUATION, 0, 1)


def header_bomb() -> Iterator[bytes]:
    """A header of 4 KB put into the table once and referred to by one byte each, 240 MB in all."""
    entry = b"\x40\x04bomb\x7f\x81\x1e" + b"y" * 4000
    for stream in range(1, 2_000_000, 2):
        yield http2.headers(stream, http2.REQUEST + (entry if stream == 1 else b"") + b"\xbe" * 15_000)


def empty_data() -> Iterator[bytes]:
    yield http2.headers(1)
    while True:
        yield http2.data(1)


def padding() -> Iterator[bytes]:
    yield http2.headers(1)
    while True:
        yield http2.frame(http2.DATA, http2.PADDED, 1, b"\xff" + bytes(255))


def tiny_data() -> Iterator[bytes]:
    """One byte a frame, of a message that is announced as large as can be."""
    yield http2.headers(1) + http2.data(1, b"\0\x7f\xff\xff\xff")
    while True:
        yield http2.data(1, b"x")


def repeated(frame: bytes) -> Callable[[], Iterator[bytes]]:
    def frames() -> Iterator[bytes]:
        while True:
            yield frame

    return frames


FLOODS = {
    "rapid reset": rapid_reset,
    "resets by the server": resets_by_the_server,
    "CONTINUATION": continuation,
    "empty CONTINUATION": empty_continuation,
    "header bomb": header_bomb,
    "empty DATA": empty_data,
    "padding": padding,
    "SETTINGS": repeated(http2.settings()),
    "PING": repeated(http2.ping()),
    "PING acknowledgements": repeated(http2.ping(flags=http2.ACK)),
    "WINDOW_UPDATE": repeated(http2.window_update(0, 1)),
    "PRIORITY": repeated(http2.priority(3)),
    "RST_STREAM": repeated(http2.headers(1) + http2.rst_stream(1)),
    "unknown frames": repeated(http2.frame(0x40, 0, 0, bytes(100))),
}


def pour(sock: socket.socket, chunks: Iterator[bytes], max_size: int) -> int:
    """Send until the server closes the connection; return how much it took at most."""
    sent = 0
    pieces: list[bytes] = []
    try:
        for chunk in chunks:
            pieces.append(chunk)
            if len(pieces) == 100:
                data = b"".join(pieces)
                pieces.clear()
                sock.sendall(data)
                sent += len(data)
            if sent > max_size:
                break
    except (ConnectionError, TimeoutError):
        return sent
    pytest.fail(f"the server took {sent} bytes of it")


@pytest.mark.parametrize("reads", [True, False], ids=["reading", "not reading"])
@pytest.mark.parametrize("flood", FLOODS)
def test_a_flood_ends_its_connection_alone(process, flood, reads):
    with Bystander(process.grpc_address), connect(process.grpc_address, reads=reads) as sock:
        before_mb = process.memory_mb()
        process.forget_peak()
        reader = threading.Thread(target=_drain, args=(sock,))
        if reads:
            reader.start()
        pour(sock, FLOODS[flood](), 64 * MB)
        sock.close()
        if reads:
            reader.join()

    assert process.memory_mb("VmHWM") - before_mb < CEILING_MB


def _drain(sock: socket.socket) -> None:
    try:
        while sock.recv(1 << 16):
            pass
    except OSError:
        return


def test_tiny_frames_are_slow_but_allowed(process):
    """A message in frames of one byte costs its sender most; the connection lives, others are served."""
    with Bystander(process.grpc_address) as bystander, connect(process.grpc_address) as sock:
        process.forget_peak()
        before_mb = process.memory_mb()
        frames = tiny_data()
        for _ in range(20):
            sock.sendall(b"".join(next(frames) for _ in range(1000)))
        num_before = bystander.num_answers
        wait_until(lambda: bystander.num_answers > num_before + 5)

    assert process.memory_mb("VmHWM") - before_mb < CEILING_MB


# Readers that do not read


def ask_for_much(client: GrpcSocket, num_answers: int, path: str) -> list[int]:
    """Ask ``wide`` in calls of its own, or all on one stream."""
    message = infer_message("wide", X=np.ones(1, np.float32)).SerializeToString()
    if path == INFER:
        return [client.ask(path, message) for _ in range(num_answers)]
    stream = client.open(path)
    client.send(stream, framed(message) * num_answers, is_end=True)
    return [stream]


@pytest.mark.parametrize("path", [INFER, STREAM_INFER], ids=["calls", "a stream"])
@pytest.mark.parametrize("reads", [True, False], ids=["closed windows", "not reading"])
def test_a_client_that_takes_no_answer_has_a_bounded_amount_held(process, path, reads):
    """400 answers of 6 MB are asked for. With open windows, they pile up behind the socket."""
    before_mb = process.memory_mb()
    process.forget_peak()
    window = 0 if reads else (1 << 31) - 1
    sock = connect(process.grpc_address, reads=reads, preface=b"")
    with (
        Bystander(process.grpc_address) as bystander,
        GrpcSocket(sock, settings={INITIAL_WINDOW_SIZE: window}, opens_windows=not reads) as client,
    ):
        ask_for_much(client, 400, path)
        if reads:
            client.pump_for(0.5)
        num_before = bystander.num_answers
        wait_until(lambda: bystander.num_answers > num_before + 500)
        assert sum(len(answer.data) for answer in client.answers.values()) == 0
        assert process.memory_mb("VmHWM") - before_mb < 64 + CEILING_MB

    wait_until(lambda: process.memory_mb() - before_mb < 64)  # it comes back


@pytest.mark.parametrize("path", [INFER, STREAM_INFER], ids=["calls", "a stream"])
def test_a_slow_reader_gets_everything_in_the_end(process, path):
    with Bystander(process.grpc_address), GrpcSocket(process.grpc_address) as client:
        streams = ask_for_much(client, 25, path)
        for _ in range(20):
            client.pump_for(0.01)
            time.sleep(0.01)
        messages = []
        for stream in streams:
            answer = client.wait(stream)
            assert answer.status == 0
            messages += answer.messages
        assert len(messages) == 25
        assert min(map(len, messages)) > ANSWER_SIZE


def test_large_messages_that_never_end_hold_what_has_come(process):
    """300 messages of 1 GB are announced, and begun."""
    before_mb = process.memory_mb()
    process.forget_peak()
    begun = (1 << 30).to_bytes(5, "big") + infer_message("plus_one", X=A).SerializeToString()
    with Bystander(process.grpc_address), GrpcSocket(process.grpc_address) as client:
        for _ in range(300):
            client.send(client.open(INFER), begun + bytes(10_000))
        client.pump_for(0.3)
        assert process.memory_mb("VmHWM") - before_mb < CEILING_MB
        refused = {answer.status for answer in client.answers.values() if answer.is_complete}
        assert refused <= {grpc.StatusCode.RESOURCE_EXHAUSTED.value[0]}


# Cut connections


NUM_MEMORY_DESCRIPTORS = 4
"""Of the memory that large messages are received into: two for each 64 MB, kept."""


def test_connections_cut_anywhere_leave_nothing(process):
    rng = random.Random(1)
    message = framed(infer_message("plus_one", X=np.zeros(100_000, np.float32)).SerializeToString())
    num_before = process.num_descriptors() + NUM_MEMORY_DESCRIPTORS
    with Bystander(process.grpc_address):
        for _ in range(60):
            client = GrpcSocket(process.grpc_address)
            for _ in range(rng.randint(1, 4)):
                cut = rng.choice((0, 3, 5, 100, 1000, 300_000, len(message)))
                stream = client.open(rng.choice((INFER, STREAM_INFER)))
                client.send(stream, message[:cut], is_end=cut == len(message) and rng.random() < 0.5)
            rng.choice((client.close, client.reset))()
    wait_until(lambda: process.num_descriptors() <= num_before)


# The end


class Caller(threading.Thread):
    """Calls again and again until the server is gone."""

    def __init__(self, address: str, number: int) -> None:
        super().__init__()
        self.codes: list[grpc.StatusCode] = []
        self._number = number
        self._channel = grpc.insecure_channel(
            address, options=(("grpc.use_local_subchannel_pool", 1), ("n", number))
        )

    def run(self) -> None:
        infer = self._channel.unary_unary(
            INFER, response_deserializer=service_pb2.ModelInferResponse.FromString
        )
        with self._channel:
            while not self.codes or self.codes[-1] is grpc.StatusCode.OK:
                value = np.array([self._number * 1000 + len(self.codes)], np.float32)
                try:
                    answer = infer(infer_message("m", X=value).SerializeToString(), timeout=20)
                except grpc.RpcError as error:
                    self.codes.append(error.code())
                else:
                    assert array_of(answer) == value
                    self.codes.append(grpc.StatusCode.OK)


def test_sigterm_under_load_finishes_what_has_begun(tmp_path: Path):
    model_dir = tmp_path / "models" / "m"
    (model_dir / "1").mkdir(parents=True)
    (model_dir / "config.pbtxt").write_text(SLOW_CONFIG)
    environment = slow_backend(tmp_path / "site", delay_s=0.05)
    with running(
        ServeProcess("--model-repository", str(model_dir.parent), environment=environment)
    ) as process:
        process.wait_for("is ready in")
        callers = [Caller(process.grpc_address, number) for number in range(8)]
        message = infer_message("m", X=np.ones(1, np.float32)).SerializeToString()
        with GrpcSocket(process.grpc_address) as client, GrpcSocket(process.grpc_address) as idle:
            for caller in callers:
                caller.start()
            wait_until(lambda: all(caller.codes for caller in callers))
            unary = [client.ask(INFER, message) for _ in range(3)]
            stream = client.open(STREAM_INFER)
            for _ in range(3):
                client.send(stream, framed(message))
            client.call(
                "/inference.GRPCInferenceService/ServerLive"
            )  # the server has all that was sent before
            process.popen.send_signal(signal.SIGTERM)
            for each in unary:
                assert client.wait(each).status == 0
            while len(client.answers[stream].messages) < 3:
                client.pump()
            assert process.exit_status() == 0
            client.wait_closed()
            idle.wait_closed()
            for each in (client, idle):
                assert each.goaway is not None
                assert int(each.goaway.error_code) == 0
        for caller in callers:
            caller.join()

    for caller in callers:
        assert set(caller.codes[:-1]) == {grpc.StatusCode.OK}
        assert caller.codes[-1] is grpc.StatusCode.UNAVAILABLE
    assert "Traceback" not in process.output
