"""System shared memory with the official HTTP client, which makes the objects, too."""

from __future__ import annotations

import os
import re
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import tritonclient.http as client_library
from onnx import helper, numpy_helper
from tritonclient.utils import InferenceServerException, serialize_byte_tensor, shared_memory

from e2e_server import RunningServer, fake_config
from onnx_models import add_model, save_graph, tensor_info

A = np.arange(16, dtype=np.float32)
B = np.full(16, 2, dtype=np.float32)
DEV_SHM = Path("/dev/shm")


@pytest.fixture(scope="module")
def server(repository) -> Iterator[RunningServer]:
    models = ("add", "add_batch", "identity_bytes", "plus_one", "classifier")
    running = RunningServer(repository, load_model=models, allow_client_shm=True)
    yield running
    running.stop()


@pytest.fixture
def client(server) -> Iterator[client_library.InferenceServerClient]:
    with client_library.InferenceServerClient(server.address, concurrency=4) as made:
        yield made
        made.unregister_system_shared_memory()


class Region:
    """An object with a key of its own, and the client's handle of it."""

    def __init__(self, nbytes: int) -> None:
        self.name = f"r{uuid.uuid4().hex[:8]}"
        self.key = f"/bireme_test_{self.name}"
        self.nbytes = nbytes
        self.handle = shared_memory.create_shared_memory_region(self.name, self.key, nbytes, create_only=True)

    def put(self, array: np.ndarray, offset: int = 0) -> None:
        shared_memory.set_shared_memory_region(self.handle, [array], offset=offset)

    def get(self, shape: tuple[int, ...], dtype: type = np.float32, offset: int = 0) -> np.ndarray:
        return shared_memory.get_contents_as_numpy(self.handle, dtype, shape, offset=offset).copy()

    def is_mapped_by_the_server(self) -> bool:
        """The server runs in this process: one mapping is the client's."""
        maps = Path("/proc/self/maps").read_text()
        return maps.count(self.key.strip("/")) > 1


@pytest.fixture
def make_region(client):
    """A function that makes an object and registers it; all are gone when the test is."""
    made: list[Region] = []

    def make(nbytes: int = 1024) -> Region:
        region = Region(nbytes)
        made.append(region)
        client.register_system_shared_memory(region.name, region.key, nbytes)
        return region

    yield make
    for region in made:
        shared_memory.destroy_shared_memory_region(region.handle)
        assert not (DEV_SHM / region.key.strip("/")).exists()


def an_input(name: str, shape: list[int], datatype: str, region: Region, nbytes: int, offset: int = 0):
    made = client_library.InferInput(name, shape, datatype)
    made.set_shared_memory(region.name, nbytes, offset=offset)
    return made


def an_output(name: str, region: Region, nbytes: int, offset: int = 0):
    made = client_library.InferRequestedOutput(name)
    made.set_shared_memory(region.name, nbytes, offset=offset)
    return made


def add_inputs(region: Region) -> list[client_library.InferInput]:
    """Put A and B side by side into ``region``."""
    region.put(A)
    region.put(B, offset=64)
    return [
        an_input(name, [16], "FP32", region, 64, 64 * index)
        for index, name in enumerate(("INPUT0", "INPUT1"))
    ]


def add_outputs(region: Region, offset: int = 0) -> list[client_library.InferRequestedOutput]:
    return [
        an_output(name, region, 64, offset + 64 * index) for index, name in enumerate(("OUTPUT0", "OUTPUT1"))
    ]


def test_inputs_and_outputs_in_regions(client, make_region):
    source, target = make_region(), make_region()
    asked = add_inputs(source)
    result = client.infer("add", asked, outputs=add_outputs(target))

    for index, (name, expected) in enumerate((("OUTPUT0", A + B), ("OUTPUT1", A - B))):
        assert result.get_output(name) == {"name": name, "datatype": "FP32", "shape": [16]}
        np.testing.assert_array_equal(target.get((16,), offset=64 * index), expected)


def test_one_region_for_all_and_new_values_each_time(client, make_region):
    region = make_region()
    asked, wanted = add_inputs(region), add_outputs(region, 512)
    for factor in (1, 2, 3):
        region.put(A * factor)
        client.infer("add", asked, outputs=wanted)
        np.testing.assert_array_equal(region.get((16,), offset=512), A * factor + B)


def test_one_side_only(client, make_region):
    region = make_region()
    result = client.infer("add", add_inputs(region))
    np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), A + B)

    plain = []
    for name, array in (("INPUT0", A), ("INPUT1", B)):
        plain.append(client_library.InferInput(name, [16], "FP32").set_data_from_numpy(array))
    wanted = [
        an_output("OUTPUT0", region, 64),
        client_library.InferRequestedOutput("OUTPUT1", binary_data=True),
    ]
    result = client.infer("add", plain, outputs=wanted)
    np.testing.assert_array_equal(region.get((16,)), A + B)
    np.testing.assert_array_equal(result.as_numpy("OUTPUT1"), A - B)


def test_asynchronous_requests(client, make_region):
    region = make_region(64 * 8)
    asked = add_inputs(region)
    pending = [
        client.async_infer("add", asked, outputs=[an_output("OUTPUT0", region, 64, 64 * index)])
        for index in range(2, 8)
    ]
    for index, request in enumerate(pending, start=2):
        request.get_result()
        np.testing.assert_array_equal(region.get((16,), offset=64 * index), A + B)


def test_strings_in_regions(client, make_region):
    texts = np.array([b"", b"one", "zwölf".encode()], np.object_)
    encoded = serialize_byte_tensor(texts)
    nbytes = len(encoded.item())
    region = make_region()
    region.put(encoded)
    client.infer(
        "identity_bytes",
        [an_input("X", [3], "BYTES", region, nbytes)],
        outputs=[an_output("Y", region, 512, 512)],
    )

    assert region.get((3,), np.object_, 512).tolist() == texts.tolist()
    with pytest.raises(InferenceServerException, match="unexpected number of string elements"):
        client.infer("identity_bytes", [an_input("X", [2], "BYTES", region, nbytes)])


def test_large_tensors(client, make_region):
    array = np.arange(3 << 20, dtype=np.float32)
    region = make_region(2 * array.nbytes)
    region.put(array)
    client.infer(
        "plus_one",
        [an_input("X", list(array.shape), "FP32", region, array.nbytes)],
        outputs=[an_output("Y", region, array.nbytes, array.nbytes)],
    )

    np.testing.assert_array_equal(region.get(array.shape, offset=array.nbytes), array + 1)


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("by_another_name", [False, True])
def test_large_outputs_are_right_wherever_they_go(start_server, tmp_path, in_place, by_another_name):
    """From the second run on the backend writes into the region; not over an input that it still reads."""
    add_model(tmp_path, "matmul", save_reversed)
    server = start_server(tmp_path, allow_client_shm=True)
    array = np.arange(1024 * 256, dtype=np.float32).reshape(1024, 256)
    region, nbytes = Region(2 * array.nbytes), array.nbytes
    try:
        with client_library.InferenceServerClient(server.address) as client:
            client.register_system_shared_memory(region.name, region.key, 2 * nbytes)
            client.register_system_shared_memory("again", region.key, 2 * nbytes)
            offset = 0 if in_place else nbytes
            wanted = an_output("Y", region, nbytes, offset)
            if by_another_name:
                wanted.set_shared_memory("again", nbytes, offset)
            for turn in range(3):
                region.put(array + turn)
                client.infer("matmul", [an_input("X", [1024, 256], "FP32", region, nbytes)], outputs=[wanted])
                result = region.get((1024, 256), offset=offset)
                np.testing.assert_array_equal(result, (array + turn)[:, ::-1])
    finally:
        shared_memory.destroy_shared_memory_region(region.handle)


def save_reversed(path: Path) -> Path:
    """Write a model that reverses rows by a matrix: each output needs all of its row."""
    weight = numpy_helper.from_array(np.eye(256, dtype=np.float32)[::-1].copy(), "weight")
    return save_graph(
        path,
        [helper.make_node("MatMul", ["X", "weight"], ["Y"])],
        [tensor_info("X", "FP32", (1024, 256))],
        [tensor_info("Y", "FP32", (1024, 256))],
        [weight],
    )


def test_status_and_registration(client, make_region):
    first, second = make_region(100), make_region(200)
    status = client.get_system_shared_memory_status()
    assert {item["name"]: (item["key"], item["offset"], item["byte_size"]) for item in status} == {
        first.name: (first.key, 0, 100),
        second.name: (second.key, 0, 200),
    }
    client.unregister_system_shared_memory(first.name)
    client.unregister_system_shared_memory(first.name)
    assert [item["name"] for item in client.get_system_shared_memory_status()] == [second.name]
    with pytest.raises(InferenceServerException, match="Unable to find system shared memory region"):
        client.get_system_shared_memory_status(first.name)
    client.register_system_shared_memory(first.name, first.key, 50, offset=50)
    assert client.get_system_shared_memory_status(first.name)[0]["offset"] == 50
    with pytest.raises(InferenceServerException, match="already in manager"):
        client.register_system_shared_memory(first.name, first.key, 50)


@pytest.mark.parametrize(
    ("byte_size", "offset", "message"),
    [
        (64, 1024, "Invalid offset for"),
        (64, 1000, r"Invalid offset \+ byte size for"),
        (60, 0, "byte size mismatch"),
    ],
)
def test_inputs_out_of_bounds(client, make_region, byte_size, offset, message):
    region = make_region(1024)
    asked = add_inputs(region)
    asked[1] = an_input("INPUT1", [16], "FP32", region, byte_size, offset)

    with pytest.raises(InferenceServerException, match=message):
        client.infer("add", asked)


def test_outputs_out_of_bounds(client, make_region):
    region = make_region(1024)
    asked = add_inputs(region)
    with pytest.raises(InferenceServerException, match=r"Invalid offset \+ byte size"):
        client.infer("add", asked, outputs=[an_output("OUTPUT0", region, 64, 1000)])
    with pytest.raises(
        InferenceServerException,
        match=r"specified with the request for output 'OUTPUT0' \(60 bytes\) should be at",
    ) as caught:
        client.infer("add", asked, outputs=[an_output("OUTPUT0", region, 60)])

    assert caught.value.status() == "500"


def test_a_client_that_shrinks_its_object_gets_an_error(client, make_region):
    region = make_region(8192)
    asked = [
        an_input("INPUT0", [16], "FP32", region, 64, 8000),
        an_input("INPUT1", [16], "FP32", region, 64, 8064),
    ]
    client.infer("add", asked)
    os.truncate(DEV_SHM / region.key.strip("/"), 4096)

    with pytest.raises(InferenceServerException, match="has lost memory"):
        client.infer("add", asked)
    os.truncate(DEV_SHM / region.key.strip("/"), 8192)
    np.testing.assert_array_equal(client.infer("add", asked).as_numpy("OUTPUT0"), np.zeros(16))


def test_two_clients_share_names_and_memory(server, client, make_region):
    region = make_region()
    asked = add_inputs(region)
    with client_library.InferenceServerClient(server.address) as other:
        np.testing.assert_array_equal(other.infer("add", asked).as_numpy("OUTPUT0"), A + B)
        with pytest.raises(InferenceServerException, match="already in manager"):
            other.register_system_shared_memory(region.name, region.key, 8)
        other.unregister_system_shared_memory(region.name)
    with pytest.raises(
        InferenceServerException, match=f"Unable to find shared memory region: '{region.name}'"
    ):
        client.infer("add", asked)


def test_many_threads_each_with_their_own_part(server, make_region):
    num_threads, num_rounds = 4, 25
    region = make_region(num_threads * 256)
    wrong: list[int] = []

    def work(index: int) -> None:
        start = 256 * index
        shape = [1, 16]
        asked = [
            an_input(name, shape, "FP32", region, 64, start + at)
            for name, at in (("INPUT0", 0), ("INPUT1", 64))
        ]
        wanted = [an_output("OUTPUT0", region, 64, start + 128)]
        with client_library.InferenceServerClient(server.address) as own:
            for turn in range(num_rounds):
                region.put(A + 1000 * index + turn, start)
                region.put(B, start + 64)
                own.infer("add_batch", asked, outputs=wanted)
                if not np.array_equal(region.get((16,), offset=start + 128), A + 1000 * index + turn + 2):
                    wrong.append(turn)

    threads = [threading.Thread(target=work, args=(index,)) for index in range(num_threads)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_unregistering_gives_the_memory_back(client, make_region):
    region = make_region()
    client.infer("add", add_inputs(region), outputs=add_outputs(region, 512))
    assert region.is_mapped_by_the_server()
    client.unregister_system_shared_memory(region.name)

    assert not region.is_mapped_by_the_server()


def test_unregistering_in_flight(start_fake):
    server, backend = start_fake({"m": fake_config("m")}, allow_client_shm=True)
    region = Region(128)
    try:
        region.put(A)
        with client_library.InferenceServerClient(server.address, concurrency=2) as client:
            client.register_system_shared_memory(region.name, region.key, 128)
            backend.gate.clear()
            asked = [an_input("X", [16], "FP32", region, 64)]
            pending = client.async_infer("m", asked, outputs=[an_output("Y", region, 64, 64)])
            assert backend.started.acquire(timeout=10)
            client.unregister_system_shared_memory()
            assert client.get_system_shared_memory_status() == []
            assert region.is_mapped_by_the_server()
            backend.gate.set()
            pending.get_result()

            np.testing.assert_array_equal(region.get((16,), offset=64), A)
            assert client.is_server_live()  # so the reply before has left the server for good
            assert not region.is_mapped_by_the_server()
    finally:
        backend.gate.set()
        shared_memory.destroy_shared_memory_region(region.handle)


def test_a_stopped_server_keeps_nothing(start_fake):
    server, _ = start_fake({"m": fake_config("m")}, allow_client_shm=True)
    region = Region(128)
    with client_library.InferenceServerClient(server.address) as client:
        client.register_system_shared_memory(region.name, region.key, 128)
    server.call(server._stop())

    assert not region.is_mapped_by_the_server()
    assert (DEV_SHM / region.key.strip("/")).exists()
    shared_memory.destroy_shared_memory_region(region.handle)


def test_it_is_off_unless_allowed(start_fake):
    server, _ = start_fake({"m": fake_config("m")})
    with client_library.InferenceServerClient(server.address) as client:
        assert client.get_system_shared_memory_status() == client.get_cuda_shared_memory_status() == []
        for call in (
            lambda: client.register_system_shared_memory("r", "/key", 64),
            lambda: client.register_cuda_shared_memory("r", b"", 0, 64),
            client.unregister_system_shared_memory,
            client.unregister_cuda_shared_memory,
        ):
            with pytest.raises(InferenceServerException, match="--allow-client-shm=true") as caught:
                call()
            assert caught.value.status() == "501"


def test_cuda_regions_are_refused_without_a_gpu(client):
    with pytest.raises(InferenceServerException, match="region: 'c', GPUs not supported") as caught:
        client.register_cuda_shared_memory("c", b"QUFB" * 21 + b"QQ==", 0, 64)
    assert caught.value.status() == "400"
    assert client.get_cuda_shared_memory_status() == []
    client.unregister_cuda_shared_memory("c")
    with pytest.raises(InferenceServerException, match="Unable to find cuda shared memory region: 'c'"):
        client.get_cuda_shared_memory_status("c")


def test_the_guide_s_example_runs(start_server, tmp_path, capsys):
    def save(path):
        names = ("A", "B", "OUTPUT")
        a, b, output = (tensor_info(name, "FP32", (-1,), batch=True) for name in names)
        return save_graph(path, [helper.make_node("Add", ["A", "B"], ["OUTPUT"])], [a, b], [output])

    add_model(tmp_path, "add", save)
    server = start_server(tmp_path, allow_client_shm=True)
    page = (Path(__file__).parents[2] / "docs" / "shared-memory.md").read_text()
    (example,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    exec(example.replace("localhost:8000", server.address), {})

    assert capsys.readouterr().out == "[[11. 22. 33.]]\n"
