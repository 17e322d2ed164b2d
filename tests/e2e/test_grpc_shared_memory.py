"""System shared memory with the official gRPC client, which makes the regions, too; CUDA regions are refused without a GPU."""

from __future__ import annotations

import base64
import os
import queue
from collections.abc import Iterator
from typing import Self

import numpy as np
import pytest
import tritonclient.grpc as client_library
from tritonclient.utils import InferenceServerException, serialize_byte_tensor, shared_memory as shm

from e2e_server import fake_config, wait_until
from grpc_calls import A, B, inputs, outputs

CUDA_HANDLE = base64.b64encode(bytes(64))


@pytest.fixture
def client(start_server, repository) -> Iterator[client_library.InferenceServerClient]:
    own = start_server(repository, load_model=("add", "identity_bytes"), allow_client_shm=True)
    with client_library.InferenceServerClient(own.grpc_address) as made:
        yield made


class Region:
    """A region with a key of its own, known to the server under ``name``; gone with the block."""

    def __init__(self, name: str, nbytes: int) -> None:
        self.name = name
        self.key = f"/bireme_test_{os.getpid()}_{name}"
        self.nbytes = nbytes

    def __enter__(self) -> Self:
        self.handle = shm.create_shared_memory_region(self.name, self.key, self.nbytes)
        return self

    def __exit__(self, *_exc: object) -> None:
        shm.destroy_shared_memory_region(self.handle)

    def put(self, *arrays: np.ndarray, offset: int = 0) -> None:
        shm.set_shared_memory_region(self.handle, arrays, offset=offset)

    def get(self, shape: tuple[int, ...], dtype: type = np.float32, offset: int = 0) -> np.ndarray:
        return shm.get_contents_as_numpy(self.handle, dtype, shape, offset=offset)


def in_region(item, region: str, nbytes: int, offset: int = 0):
    """Let an input or an output of the client lie in a region."""
    item.set_shared_memory(region, nbytes, offset=offset)
    return item


def shared_inputs(region: str, nbytes: int = 64, offset: int = 0) -> list[client_library.InferInput]:
    """INPUT0 and INPUT1 side by side in one region."""
    return [
        in_region(client_library.InferInput(name, [16], "FP32"), region, nbytes, offset + 64 * index)
        for index, name in enumerate(("INPUT0", "INPUT1"))
    ]


def refused(status: str, text: str):
    return pytest.raises(
        InferenceServerException, match=text, check=lambda error: error.status() == f"StatusCode.{status}"
    )


def test_register_status_unregister(client):
    assert client.get_system_shared_memory_status(as_json=True) == {}
    with Region("one", 256) as one, Region("two", 128) as two:
        client.register_system_shared_memory("one", one.key, 256)
        client.register_system_shared_memory("two", two.key, 64, offset=64)
        regions = client.get_system_shared_memory_status(as_json=True)["regions"]
        assert regions["one"] == {"name": "one", "key": one.key, "byte_size": "256"}
        assert regions["two"] == {"name": "two", "key": two.key, "offset": "64", "byte_size": "64"}
        assert list(client.get_system_shared_memory_status("two").regions) == ["two"]

        with refused("ALREADY_EXISTS", "shared memory region 'one' already in manager"):
            client.register_system_shared_memory("one", one.key, 256)
        client.unregister_system_shared_memory("one")
        client.unregister_system_shared_memory("never_heard_of")
        assert list(client.get_system_shared_memory_status().regions) == ["two"]
        with refused("NOT_FOUND", "Unable to find system shared memory region: 'one'"):
            client.get_system_shared_memory_status("one")
        client.unregister_system_shared_memory()
        assert client.get_system_shared_memory_status(as_json=True) == {}


def test_infer_with_inputs_and_outputs_in_regions(client):
    with Region("in", 128) as source, Region("out", 256) as target:
        source.put(A, B)
        client.register_system_shared_memory("in", source.key, 128)
        client.register_system_shared_memory("out", target.key, 256)
        wanted = outputs("OUTPUT0", "OUTPUT1")
        in_region(wanted[0], "out", 64)
        in_region(wanted[1], "out", 64, offset=128)
        result = client.infer("add", shared_inputs("in"), outputs=wanted)

        np.testing.assert_array_equal(target.get((16,)), A + B)
        np.testing.assert_array_equal(target.get((16,), offset=128), A - B)
        response = result.get_response()
        assert [output.name for output in response.outputs] == ["OUTPUT0", "OUTPUT1"]
        assert set(response.raw_output_contents) <= {b""}
        client.unregister_system_shared_memory()


def test_regions_and_the_wire_mix(client):
    with Region("in", 64) as source, Region("out", 64) as target:
        source.put(B)
        client.register_system_shared_memory("in", source.key, 64)
        client.register_system_shared_memory("out", target.key, 64)
        for first in (True, False):
            over_wire, shared = inputs(INPUT0=A), client_library.InferInput("INPUT1", [16], "FP32")
            in_region(shared, "in", 64)
            both = [*over_wire, shared] if first else [shared, *over_wire]
            wanted = [*outputs("OUTPUT0"), in_region(*outputs("OUTPUT1"), "out", 64)]
            result = client.infer("add", both, outputs=wanted if first else wanted[::-1])
            np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), A + B)
            np.testing.assert_array_equal(target.get((16,)), A - B)
            target.put(np.zeros(16, np.float32))
        client.unregister_system_shared_memory()


def test_bytes_in_regions(client):
    strings = np.array([b"one", b"", b"three" * 10], np.object_)
    with Region("in", 256) as source, Region("out", 256) as target:
        source.put(serialize_byte_tensor(strings))
        client.register_system_shared_memory("in", source.key, 256)
        client.register_system_shared_memory("out", target.key, 256)
        nbytes = 3 * 4 + sum(map(len, strings))
        item = in_region(client_library.InferInput("X", [3], "BYTES"), "in", nbytes)
        client.infer("identity_bytes", [item], outputs=[in_region(*outputs("Y"), "out", 256)])

        np.testing.assert_array_equal(target.get((3,), np.object_), strings)
        client.unregister_system_shared_memory()


def test_what_does_not_fit_is_refused(client):
    with Region("r", 128) as region:
        client.register_system_shared_memory("r", region.key, 128)
        with refused("INVALID_ARGUMENT", "Invalid offset for shared memory region"):
            client.infer("add", shared_inputs("r", offset=128))
        with refused("INVALID_ARGUMENT", r"Invalid offset \+ byte size for shared memory region"):
            client.infer("add", shared_inputs("r", offset=65))
        with refused("NOT_FOUND", "Unable to find shared memory region: 'other'"):
            client.infer("add", shared_inputs("other"))
        with refused(
            "INVALID_ARGUMENT",
            r"input byte size mismatch for input 'INPUT\d' for model 'add'. Expected 64, got 60",
        ):
            client.infer("add", shared_inputs("r", nbytes=60))
        wanted = [in_region(*outputs("OUTPUT0"), "r", 32)]
        with refused("INTERNAL", "OUTPUT0"):
            client.infer("add", inputs(INPUT0=A, INPUT1=B), outputs=wanted)
        with refused("INVALID_ARGUMENT", "r2"):
            client.register_system_shared_memory("r2", region.key, 129)
        with refused("INTERNAL", "Unable to open shared memory region: '/bireme_no_such_key'"):
            client.register_system_shared_memory("r3", "/bireme_no_such_key", 64)
        client.unregister_system_shared_memory()


def test_cuda_regions_are_refused_without_a_gpu(client):
    assert client.get_cuda_shared_memory_status(as_json=True) == {}
    with refused("INVALID_ARGUMENT", "failed to register CUDA shared memory region: 'c'"):
        client.register_cuda_shared_memory("c", CUDA_HANDLE, 0, 64)
    client.unregister_cuda_shared_memory("c")
    client.unregister_cuda_shared_memory()


def test_regions_are_off_by_default(server):
    with client_library.InferenceServerClient(server.grpc_address) as client:
        assert client.get_system_shared_memory_status(as_json=True) == {}
        text = "Client shared memory is disabled. Start the server with '--allow-client-shm=true' to enable."
        for call in (
            lambda: client.register_system_shared_memory("r", "/key", 64),
            client.unregister_system_shared_memory,
            lambda: client.register_cuda_shared_memory("c", CUDA_HANDLE, 0, 64),
            client.unregister_cuda_shared_memory,
        ):
            with refused("UNIMPLEMENTED", text):
                call()


def test_a_region_stays_until_the_requests_that_use_it_end(start_fake):
    server, backend = start_fake({"m": fake_config("m")}, allow_client_shm=True)
    backend.gate.clear()
    answers: queue.Queue = queue.Queue()
    with (
        client_library.InferenceServerClient(server.grpc_address) as client,
        Region("in", 64) as source,
        Region("out", 64) as target,
    ):
        source.put(A)
        client.register_system_shared_memory("in", source.key, 64)
        client.register_system_shared_memory("out", target.key, 64)
        item = in_region(client_library.InferInput("X", [16], "FP32"), "in", 64)
        wanted = [in_region(*outputs("Y"), "out", 64)]
        client.async_infer("m", [item], lambda result, error: answers.put(error), outputs=wanted)
        wait_until(lambda: server.engine.model("m").num_in_flight == 1)
        client.unregister_system_shared_memory()
        assert client.get_system_shared_memory_status(as_json=True) == {}
        backend.gate.set()

        assert answers.get(timeout=5) is None
        np.testing.assert_array_equal(target.get((16,)), A)
