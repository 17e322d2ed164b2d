"""OpenVINO models on a real server, asked by the official clients."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http

from e2e_server import RunningServer
from official_client import connect, infer
from onnx_models import save_add
from openvino_models import make_add, make_counter, make_identity, make_matmul, make_running_sum, save

START = """
sequence_batching {
  control_input { name: "START" control { kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] } }
}
"""
SUM = """
backend: "openvino" max_batch_size: 4
sequence_batching { oldest {} state { input_name: "before" output_name: "after" data_type: TYPE_FP32 dims: [ 2 ] } }
"""


def write_config(root: Path, name: str, text: str) -> None:
    (root / name).mkdir(parents=True, exist_ok=True)
    (root / name / "config.pbtxt").write_text(text)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    root = tmp_path_factory.mktemp("openvino")
    save(make_add(), root / "add/1/model.xml")  # without a config
    save_add(root / "onnx/1/model.onnx", batch=True)
    write_config(root, "onnx", 'backend: "openvino"')
    save(make_matmul(64, (1, -1)), root / "batching/1/model.xml")
    write_config(
        root,
        "batching",
        "max_batch_size: 16 dynamic_batching { max_queue_delay_microseconds: 20000 } instance_group { count: 2 kind: KIND_CPU }",
    )
    save(make_identity((-1, -1), "string"), root / "strings/1/model.xml")
    save(make_identity((-1, 4), "bf16"), root / "bf16/1/model.xml")
    save(make_identity((-1, -1)), root / "large/1/model.xml")
    save(make_counter(), root / "counter/1/model.xml")
    write_config(root, "counter", START)
    save(make_running_sum(), root / "sum/1/model.xml")
    write_config(root, "sum", SUM)
    save(make_add(), root / "isolated/1/model.xml")
    write_config(root, "isolated", 'parameters { key: "isolation" value { string_value: "process" } }')
    running = RunningServer(root)
    yield running
    running.stop()


@pytest.fixture(params=["http", "grpc"])
def client(request, server):
    with connect(server, request.param) as found:
        yield found


def ones(*shape):
    return np.ones(shape, np.float32)


def config_of(client, name):
    module, connection = client
    if module is tritonclient.http:
        return connection.get_model_config(name)
    return connection.get_model_config(name, as_json=True)["config"]


def test_a_model_without_a_config_is_served(client):
    result = infer(client, "add", {"A": ones(3, 16), "B": ones(3, 16)})

    np.testing.assert_array_equal(2 * ones(3, 16), result.as_numpy("S"))
    config = config_of(client, "add")
    assert "openvino" == config["backend"]
    assert 4 == int(config["max_batch_size"])
    assert ["A", "B"] == [tensor["name"] for tensor in config["input"]]
    assert "dynamic_batching" in config


def test_an_onnx_file_is_served_where_the_config_says_openvino(client):
    result = infer(client, "onnx", {"INPUT0": ones(2, 16), "INPUT1": ones(2, 16)})

    np.testing.assert_array_equal(2 * ones(2, 16), result.as_numpy("OUTPUT0"))
    np.testing.assert_array_equal(0 * ones(2, 16), result.as_numpy("OUTPUT1"))


def test_requests_of_many_clients_are_batched(server):
    """The file is for one item; two instances run batches of them, and each client gets its own."""
    found = {}

    def ask(index):
        with tritonclient.http.InferenceServerClient(server.address) as connection:
            module = (tritonclient.http, connection)
            for step in range(5):
                value = np.float32(10 * index + step)
                result = infer(module, "batching", {"X": np.full((1, 64), value)}).as_numpy("Y")
                found[index, step] = (result == 2 * value).all()

    threads = [threading.Thread(target=partial(ask, index)) for index in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert 40 == len(found)
    assert all(found.values())
    with tritonclient.http.InferenceServerClient(server.address) as connection:
        (statistics,) = connection.get_inference_statistics("batching")["model_stats"]
    assert 40 == int(statistics["inference_count"])
    assert int(statistics["execution_count"]) < 40


def test_strings_come_back(client):
    texts = np.array([[b"one", "zwölf".encode(), b""]], object)

    assert texts.tolist() == infer(client, "strings", {"X": texts}, "BYTES").as_numpy("Y").tolist()


def test_bf16_comes_back(client):
    array = np.array([[1, -2.5, 0, 256]], ml_dtypes.bfloat16)

    np.testing.assert_array_equal(array, infer(client, "bf16", {"X": array}, "BF16").as_numpy("Y"))


@pytest.mark.parametrize("num_columns", [1, 1 << 17])
def test_outputs_of_every_size_come_back(client, num_columns):
    array = np.arange(4 * num_columns, dtype=np.float32).reshape(4, num_columns)

    first = infer(client, "large", {"X": array}).as_numpy("Y")
    second = infer(client, "large", {"X": array + 1}).as_numpy("Y")

    np.testing.assert_array_equal(array, first)
    np.testing.assert_array_equal(array + 1, second)


def test_a_sequence_keeps_the_models_own_states(client):
    found = [
        infer(
            client,
            "counter",
            {"X": ones(1)},
            sequence_id=7,
            sequence_start=step in {0, 2},
            sequence_end=step == 3,
        )
        .as_numpy("Y")
        .item()
        for step in range(4)
    ]

    assert [1, 2, 1, 2] == found


def test_the_server_carries_states(client):
    results = [
        infer(
            client, "sum", {"X": ones(1, 2)}, sequence_id=9, sequence_start=step == 0, sequence_end=step == 2
        )
        for step in range(3)
    ]

    assert [2, 4, 6] == [result.as_numpy("Y")[0, 0] for result in results]
    assert all(result.as_numpy("after") is None for result in results)


def test_a_model_may_run_in_a_process_of_its_own(client):
    result = infer(client, "isolated", {"A": ones(2, 16), "B": ones(2, 16)})

    np.testing.assert_array_equal(2 * ones(2, 16), result.as_numpy("S"))


@pytest.mark.parametrize(
    ("arrays", "datatype", "message"),
    [
        ({"A": ones(1, 16), "B": ones(1, 16)}, "INT32", "FP32"),
        ({"A": ones(1, 8), "B": ones(1, 16)}, "FP32", "unexpected shape"),
        ({"A": ones(1, 16)}, "FP32", "expected 2 inputs but got 1"),
    ],
    ids=["data type", "shape", "missing"],
)
def test_requests_that_do_not_fit_are_told_why(client, arrays, datatype, message):
    module, _ = client
    if datatype == "INT32":
        arrays = {name: array.astype(np.int32) for name, array in arrays.items()}

    with pytest.raises(module.InferenceServerException, match=message):
        infer(client, "add", arrays, datatype)


@pytest.mark.parametrize(
    ("break_it", "message"),
    [
        (lambda root: (root / "bad/1/model.bin").unlink(), "model.bin, the file with its weights, is missing"),
        (lambda root: (root / "bad/1/model.xml").write_text("version https://git-lfs"), "is a Git LFS pointer"),
        (lambda root: (root / "bad/1/model.xml").write_text("<net"), "Unable to read the model"),
        (lambda root: write_config(root, "bad", 'input { name: "x" data_type: TYPE_FP32 dims: [ 8 ] }'), "did you mean 'X'?"),
        (
            lambda root: write_config(root, "bad", 'output { name: "Y" data_type: TYPE_INT32 dims: [ 1, 8 ] }'),
            "the config's data_type is TYPE_INT32, but the model file has TYPE_FP32",
        ),
        (
            lambda root: write_config(root, "bad", 'parameters { key: "TARGET_DEVICE" value { string_value: "GPU" } }'),
            "OpenVINO finds no device 'GPU' here; it finds 'CPU'",
        ),
        (lambda root: write_config(root, "bad", "instance_group { kind: KIND_GPU }"), "Intel's devices by the parameter TARGET_DEVICE"),
    ],
    ids=["weights", "pointer", "broken", "name", "data type", "device", "kind"],
)  # fmt: skip
def test_models_that_cannot_be_loaded_say_why(tmp_path, break_it, message):
    save(make_matmul(), tmp_path / "bad/1/model.xml")
    write_config(tmp_path, "bad", "")
    break_it(tmp_path)
    server = RunningServer(tmp_path, load_model=())

    try:
        with (
            tritonclient.http.InferenceServerClient(server.address) as connection,
            pytest.raises(tritonclient.http.InferenceServerException) as caught,
        ):
            connection.load_model("bad")
    finally:
        server.stop()

    assert message in caught.value.message()
