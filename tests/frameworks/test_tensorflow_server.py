"""TensorFlow models behind a real server, asked by the official clients: in processes of their own, and in the server's."""

from __future__ import annotations

import asyncio
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
from tritonclient.utils import InferenceServerException

from bireme import Server
from e2e_server import RunningServer, wait_until
from tensorflow_models import SAVED_MODEL, build_sum, save_function, save_graph, save_keras, save_module, tf

pytestmark = pytest.mark.slow

INSIDE = 'parameters { key: "isolation" value { string_value: "none" } }\n'
TEXT = 'parameters { key: "TF_SIGNATURE_DEF" value { string_value: "text" } }\n'
SUM = 'max_batch_size: 4 output { name: "sum" data_type: TYPE_FP32 dims: 3 }\n'
BATCHED = "max_batch_size: 16 dynamic_batching { max_queue_delay_microseconds: 300000 } instance_group { count: 1 }\n"
PROTOCOLS = {"http": tritonclient.http, "grpc": tritonclient.grpc}


def workers():
    """Return the processes of models that this one has started."""
    found = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                if parent == os.getpid() and b"bireme.ipc.worker" in (entry / "cmdline").read_bytes():
                    found.add(int(entry.name))
            except (FileNotFoundError, ProcessLookupError):
                continue
    return found


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    root = tmp_path_factory.mktemp("models")
    save_module(root / "module")
    save_keras(root / "keras")
    save_graph(root / "graph", build_sum)
    shutil.copytree(root / "module", root / "text")
    (root / "module/config.pbtxt").write_text(BATCHED)
    (root / "keras/config.pbtxt").write_text(INSIDE)
    (root / "graph/config.pbtxt").write_text(SUM + INSIDE)
    (root / "text/config.pbtxt").write_text(TEXT + INSIDE)
    return root


@pytest.fixture(scope="module")
def server(repository):
    running = RunningServer(repository)
    yield running
    running.stop()


@pytest.fixture(params=["http", "grpc"])
def client(request, server):
    address = server.address if request.param == "http" else server.grpc_address
    with PROTOCOLS[request.param].InferenceServerClient(address) as client:
        client.protocol = PROTOCOLS[request.param]
        yield client


@pytest.fixture
def http(server):
    with tritonclient.http.InferenceServerClient(server.address, concurrency=8) as client:
        client.protocol = tritonclient.http
        yield client


def ask(client, name, **arrays):
    return client.infer(name, make_inputs(client, arrays))


def make_inputs(client, arrays):
    inputs = []
    for key, array in arrays.items():
        datatype = "BYTES" if array.dtype.hasobject else "FP32"
        tensor = client.protocol.InferInput(key, list(array.shape), datatype)
        tensor.set_data_from_numpy(array)
        inputs.append(tensor)
    return inputs


ONES = np.ones((2, 8), np.float32)


def test_a_module_in_a_process_of_its_own(client):
    result = ask(client, "module", x=ONES)

    assert 1 == len(workers())
    assert [[8.0] * 4] * 2 == result.as_numpy("y").tolist()
    assert [[2.0] * 8] * 2 == result.as_numpy("z").tolist()


def test_a_keras_model_in_the_servers_process(client):
    result = ask(client, "keras", pixels=np.ones((3, 6), np.float32))

    assert [[6.0] * 3] * 3 == result.as_numpy("output_0").tolist()


def test_a_frozen_graph(client):
    ones = np.ones((1, 3), np.float32)

    assert [[2.0] * 3] == ask(client, "graph", x=ones, y=ones).as_numpy("sum").tolist()


def test_strings_in_and_out(client):
    result = ask(client, "text", text=np.array([[b"one"], [b"\xfe\x00x"]], object))

    assert [[1], [-1]] == result.as_numpy("number").tolist()
    assert [[b"oneone"], [b"\xfe\x00x\xfe\x00x"]] == result.as_numpy("doubled").tolist()


def test_metadata_comes_from_the_signature(http):
    metadata = http.get_model_metadata("module")

    assert "tensorflow_savedmodel" == metadata["platform"]
    assert [{"name": "x", "datatype": "FP32", "shape": [-1, 8]}] == metadata["inputs"]
    assert ["y", "z"] == [tensor["name"] for tensor in metadata["outputs"]]


def test_requests_of_several_clients_run_together(http):
    before = http.get_inference_statistics("module")["model_stats"][0]
    values = range(8)

    asked = [
        http.async_infer("module", make_inputs(http, {"x": np.full((1, 8), value, np.float32)}))
        for value in values
    ]
    results = [each.get_result() for each in asked]

    after = http.get_inference_statistics("module")["model_stats"][0]
    assert [[[8.0 * value] * 4] for value in values] == [each.as_numpy("y").tolist() for each in results]
    assert 8 == after["inference_count"] - before["inference_count"]
    assert after["execution_count"] - before["execution_count"] < 8


def test_what_fails_in_a_run_is_told(client):
    with pytest.raises(InferenceServerException, match=r"unexpected shape for input 'x'|expected \[-1,8\]"):
        ask(client, "module", x=np.ones((1, 7), np.float32))


def test_a_missing_signature_is_told(http, repository):
    shutil.copytree(repository / "text", repository / "wrong", dirs_exist_ok=True)
    (repository / "wrong/config.pbtxt").write_text(TEXT.replace('"text"', '"texts"') + INSIDE)

    with pytest.raises(
        InferenceServerException,
        match=r"no signature 'texts'; it has 'serving_default', 'text'.*did you mean",
    ):
        http.load_model("wrong")


def test_a_broken_folder_is_told(http, repository):
    shutil.copytree(repository / "text", repository / "broken", dirs_exist_ok=True)
    (repository / "broken" / SAVED_MODEL / "saved_model.pb").write_bytes(b"")

    with pytest.raises(
        InferenceServerException, match=r"saved_model\.pb' is no SavedModel: the file is empty"
    ):
        http.load_model("broken")


def test_unloading_gives_all_memory_back(http):
    (pid,) = workers()

    http.unload_model("module")

    wait_until(lambda: not Path(f"/proc/{pid}").exists(), 20)
    assert not workers()
    http.load_model("module")
    assert [[8.0] * 4] * 2 == ask(http, "module", x=ONES).as_numpy("y").tolist()


def test_state_is_kept_for_sequences(tmp_path):
    """The state's tensors are in the signature, and in no list of the config."""
    save_function(
        tmp_path / "total",
        lambda x, total: {"before": total, "total_next": total + x},
        tf.TensorSpec([None, 1], tf.float32, "x"),
        tf.TensorSpec([None, 1], tf.float32, "total"),
    )
    (tmp_path / "total/config.pbtxt").write_text(
        f"""
        {INSIDE}
        max_batch_size: 4
        sequence_batching {{
          oldest {{ max_candidate_sequences: 4 }}
          state {{ input_name: "total" output_name: "total_next" data_type: TYPE_FP32 dims: 1 }}
        }}
        """
    )

    async def count(server, sequence):
        sums = []
        for index in range(4):
            place = {"sequence_start": index == 0, "sequence_end": index == 3}
            x = np.full((1, 1), sequence, np.float32)
            sums.append(
                (await server.ainfer("total", {"x": x}, sequence_id=sequence, **place))["before"].item()
            )
        return sums

    async def main():
        async with Server(tmp_path) as server:
            return await asyncio.gather(count(server, 1), count(server, 5))

    assert [[0, 1, 2, 3], [0, 5, 10, 15]] == asyncio.run(main())
