"""The copies between a gRPC connection's transport and the engine, counted by the addresses of the bytes."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from h2.settings import SettingCodes

from grpc_fakes import INFER, STREAM_INFER, GrpcScene, framed, in_loop, make_infer
from http_fakes import tensor

X = np.arange(4, dtype=np.float32)
LARGE = np.random.default_rng(0).random(1_000_000, dtype=np.float32)
READ = 256 << 10
SCRATCH = 64 << 10


def holding() -> GrpcScene:
    """A scene whose engine keeps requests, and whose client takes any answer at once."""
    scene = GrpcScene(client={"settings": {SettingCodes.INITIAL_WINDOW_SIZE: 1 << 30}})
    scene.server.holds = True
    return scene


def address_of(buffer: object) -> int:
    address: int = np.frombuffer(buffer, np.uint8).ctypes.data  # type: ignore[call-overload]
    return address


class Reads:
    """What a transport does with a connection: notes where it puts the bytes."""

    def __init__(self, scene: GrpcScene) -> None:
        self.connection = scene.connection
        self.target = memoryview(b"")
        self.places: list[tuple[int, int]] = []
        scene.client.sock.connection = SimpleNamespace(
            get_buffer=self.get_buffer, buffer_updated=self.buffer_updated
        )
        scene.client.sock.step = READ

    def get_buffer(self, sizehint):
        self.target = self.connection.get_buffer(sizehint)
        return self.target

    def buffer_updated(self, nbytes):
        self.places.append((address_of(self.target), nbytes))
        self.connection.buffer_updated(nbytes)

    def num_bytes_in(self, array):
        """How many bytes were read straight into the memory of ``array``."""
        start = array.ctypes.data
        return sum(size for place, size in self.places if start <= place < start + array.nbytes)


@pytest.mark.parametrize("path", [INFER, STREAM_INFER])
@in_loop
async def test_a_large_input_stays_where_the_transport_has_put_it(path):
    """Only what came in the first read and a short last one is copied, once, to its place beside the rest."""
    scene = holding()
    reads = Reads(scene)
    message = framed(make_infer(X=LARGE))

    scene.client.send(scene.client.open_grpc(path), message, is_end=True)

    (request,) = scene.server.held
    received = request.inputs["X"].to_numpy()
    assert np.array_equal(received, LARGE)
    assert received.ctypes.data % 64 == 0
    assert reads.num_bytes_in(received) > LARGE.nbytes - SCRATCH - SCRATCH // 4


@pytest.mark.parametrize("path", [INFER, STREAM_INFER])
@in_loop
async def test_a_large_output_is_written_from_the_model_s_own_memory(path):
    scene = holding()
    scene.client.infer(path=path, X=X)
    transport, written = scene.client.transport, []

    def write(data):
        written.append((address_of(data), len(data)))

    transport.write = write
    transport.writelines = lambda pieces: [write(piece) for piece in pieces]
    scene.server.answer(scene.server.held[0], [tensor("Y", LARGE)])

    start, end = LARGE.ctypes.data, LARGE.ctypes.data + LARGE.nbytes
    assert sum(size for place, size in written if start <= place < end) == LARGE.nbytes


@in_loop
async def test_inputs_behind_the_first_are_aligned_as_their_sizes_let_them_be():
    scene = holding()

    scene.client.send(scene.client.open_grpc(INFER), framed(make_infer(A=LARGE, B=LARGE[:1000])), is_end=True)

    (request,) = scene.server.held
    first, second = (request.inputs[name].to_numpy() for name in "AB")
    assert first.ctypes.data % 64 == 0
    assert np.array_equal(second, LARGE[:1000])
    assert first.ctypes.data < second.ctypes.data < first.ctypes.data + first.nbytes + 16
