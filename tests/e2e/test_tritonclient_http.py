"""The official synchronous client, method by method."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import tritonclient.http as client_library
from tritonclient.utils import InferenceServerException

A = np.arange(16, dtype=np.float32)
B = np.full(16, 2, dtype=np.float32)


@pytest.fixture
def client(server) -> Iterator[client_library.InferenceServerClient]:
    with client_library.InferenceServerClient(server.address, concurrency=4) as made:
        yield made


def inputs(*, binary: bool = True, **arrays: np.ndarray) -> list[client_library.InferInput]:
    made = []
    for name, array in arrays.items():
        item = client_library.InferInput(name, list(array.shape), _datatype(array))
        item.set_data_from_numpy(array, binary_data=binary)
        made.append(item)
    return made


def _datatype(array: np.ndarray) -> str:
    return client_library.np_to_triton_dtype(array.dtype)


def outputs(*names: str, **settings) -> list[client_library.InferRequestedOutput]:
    return [client_library.InferRequestedOutput(name, **settings) for name in names]


# Health and descriptions


def test_health(client):
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("add")
    assert client.is_model_ready("versions", "3")
    assert not client.is_model_ready("versions", "2")
    assert not client.is_model_ready("nothing")


def test_server_metadata(client):
    metadata = client.get_server_metadata()

    assert metadata["name"] == "triton"
    assert "binary_tensor_data" in metadata["extensions"]


def test_model_metadata(client):
    assert client.get_model_metadata("add") == {
        "name": "add",
        "versions": ["1"],
        "platform": "onnxruntime_onnx",
        "inputs": [{"name": name, "datatype": "FP32", "shape": [16]} for name in ("INPUT0", "INPUT1")],
        "outputs": [{"name": name, "datatype": "FP32", "shape": [16]} for name in ("OUTPUT0", "OUTPUT1")],
    }
    assert client.get_model_metadata("versions")["versions"] == ["1", "3"]
    assert client.get_model_metadata("versions", "1")["versions"] == ["1"]
    assert client.get_model_metadata("classifier")["inputs"][0]["shape"] == [-1, 10]


def test_model_config(client):
    config = client.get_model_config("classifier")

    assert config["max_batch_size"] == 8
    assert config["output"][0]["label_filename"] == "labels.txt"
    assert config["input"][0]["data_type"] == "TYPE_FP32"
    assert config["input"][0]["dims"] == [10]


def test_statistics_count_what_was_inferred(client):
    def successes() -> int:
        (model,) = client.get_inference_statistics("add")["model_stats"]
        return model["inference_stats"]["success"]["count"]

    before = successes()
    client.infer("add", inputs(INPUT0=A, INPUT1=B))

    assert successes() == before + 1
    every = client.get_inference_statistics()["model_stats"]
    assert {"add", "versions"} <= {model["name"] for model in every}
    with pytest.raises(InferenceServerException, match="requested model 'nothing' is not available"):
        client.get_inference_statistics("nothing")


# Inference


@pytest.mark.parametrize("binary_in", [True, False])
@pytest.mark.parametrize("binary_out", [True, False])
def test_infer(client, binary_in, binary_out):
    result = client.infer(
        "add",
        inputs(INPUT0=A, INPUT1=B, binary=binary_in),
        outputs=outputs("OUTPUT0", "OUTPUT1", binary_data=binary_out),
        request_id="my id",
    )

    np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), A + B)
    np.testing.assert_array_equal(result.as_numpy("OUTPUT1"), A - B)
    assert result.get_response()["id"] == "my id"
    assert result.get_response()["model_version"] == "1"


def test_infer_mixes_forms_and_asks_for_one_output(client):
    mixed = inputs(INPUT0=A, binary=True) + inputs(INPUT1=B, binary=False)
    result = client.infer("add", mixed, outputs=outputs("OUTPUT1"))

    np.testing.assert_array_equal(result.as_numpy("OUTPUT1"), A - B)
    assert result.as_numpy("OUTPUT0") is None


def test_infer_a_version(client):
    for version in ("", "1", "3"):
        result = client.infer("versions", inputs(INPUT0=A, INPUT1=B), model_version=version)
        assert result.get_response()["model_version"] == (version or "3")
    with pytest.raises(InferenceServerException, match="'versions' version 2 is not found"):
        client.infer("versions", inputs(INPUT0=A, INPUT1=B), model_version="2")


def test_infer_a_batch(client):
    batch = np.stack([A, B, A])
    result = client.infer("add_batch", inputs(INPUT0=batch, INPUT1=batch))

    np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), batch + batch)


@pytest.mark.parametrize("request_algorithm", [None, "gzip", "deflate"])
@pytest.mark.parametrize("response_algorithm", [None, "gzip", "deflate"])
@pytest.mark.parametrize("size", [16, 100_000])
def test_compression(client, request_algorithm, response_algorithm, size):
    values = np.arange(size, dtype=np.float32)
    result = client.infer(
        "plus_one",
        inputs(X=values),
        request_compression_algorithm=request_algorithm,
        response_compression_algorithm=response_algorithm,
    )

    np.testing.assert_array_equal(result.as_numpy("Y"), values + 1)


@pytest.mark.parametrize(
    ("model", "values"),
    [
        ("identity_int32", np.array([-1, 0, 2**31 - 1], np.int32)),
        ("identity_int64", np.array([-(2**63), 2**63 - 1], np.int64)),
        ("identity_fp64", np.array([1e300, -0.0], np.float64)),
        ("identity_bool", np.array([True, False], np.bool_)),
        ("identity_uint8", np.arange(6, dtype=np.uint8).reshape(2, 3)),
        ("identity_bytes", np.array(["text", "", "ünïcödé", "a" * 1000], np.object_)),
    ],
)
@pytest.mark.parametrize("binary", [True, False])
def test_data_types(client, model, values, binary):
    result = client.infer(
        model, inputs(X=values, binary=binary), outputs=outputs("Y", binary_data=binary)
    ).as_numpy("Y")

    expected = (
        np.array([text.encode() for text in values], np.object_) if values.dtype == np.object_ else values
    )
    if not binary and values.dtype == np.object_:
        expected = values
    np.testing.assert_array_equal(result, expected)


def test_fp16_in_binary(client):
    values = np.array([1.5, np.inf, -0.1], np.float16)

    np.testing.assert_array_equal(client.infer("identity_fp16", inputs(X=values)).as_numpy("Y"), values)


@pytest.mark.parametrize("size", [0, 1, 20_000, 1_500_000])
def test_sizes_from_nothing_to_6_mb(client, size):
    values = np.arange(size, dtype=np.float32)

    np.testing.assert_array_equal(client.infer("plus_one", inputs(X=values)).as_numpy("Y"), values + 1)


def test_large_json_both_ways(client):
    values = np.arange(200_000, dtype=np.float32)
    result = client.infer("plus_one", inputs(X=values, binary=False), outputs=outputs("Y", binary_data=False))

    np.testing.assert_array_equal(result.as_numpy("Y"), values + 1)


@pytest.mark.parametrize("binary", [True, False])
def test_classification(client, binary):
    scores = np.zeros((2, 10), np.float32)
    scores[0, 3], scores[0, 7], scores[1, 9] = 0.9, 0.5, 0.25
    wanted = outputs("Y", class_count=2, binary_data=binary)
    result = client.infer("classifier", inputs(X=scores), outputs=wanted).as_numpy("Y")
    found = [[item if isinstance(item, str) else item.decode() for item in row] for row in result]

    assert found[0] == ["0.900000:3:class 3", "0.500000:7:class 7"]
    assert found[1][0] == "0.250000:9:class 9"


def test_request_parameters_are_taken(client):
    result = client.infer(
        "add",
        inputs(INPUT0=A, INPUT1=B),
        parameters={"text": "x", "number": 1},
        priority=1,
        timeout=10_000_000,
    )

    np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), A + B)


def test_asynchronous_calls(client):
    calls = [client.async_infer("add", inputs(INPUT0=A * factor, INPUT1=B)) for factor in range(8)]

    for factor, call in enumerate(calls):
        np.testing.assert_array_equal(call.get_result().as_numpy("OUTPUT0"), A * factor + B)


@pytest.mark.parametrize(
    ("model", "arrays", "text"),
    [
        ("nothing", {"X": A}, "Request for unknown model: 'nothing' is not found"),
        ("add", {"INPUT0": A}, "expected 2 inputs but got 1 inputs for model 'add'"),
        ("add", {"INPUT0": A, "OTHER": B}, "OTHER"),
        (
            "add",
            {"INPUT0": A, "INPUT1": B[:15]},
            r"unexpected shape for input 'INPUT1' for model 'add'. Expected \[16\], got \[15\]",
        ),
        (
            "add",
            {"INPUT0": A, "INPUT1": B.astype(np.int32)},
            "data-type is 'INT32', but model 'add' expects 'FP32'",
        ),
        (
            "add_batch",
            {"INPUT0": A.reshape(1, 16), "INPUT1": np.zeros((2, 16), np.float32)},
            "batch size does not match",
        ),
        ("classifier", {"X": np.zeros((9, 10), np.float32)}, "batch-size must be <= 8 for 'classifier'"),
    ],
)
def test_wrong_requests_say_what_is_wrong(client, model, arrays, text):
    with pytest.raises(InferenceServerException, match=text):
        client.infer(model, inputs(**arrays))


def test_unknown_output_is_named(client):
    with pytest.raises(InferenceServerException, match="unexpected inference output 'Z' for model 'add'"):
        client.infer("add", inputs(INPUT0=A, INPUT1=B), outputs=outputs("Z"))


# Repository control


def test_repository_index(client):
    index = {
        (each["name"], each.get("version")): each.get("state") for each in client.get_model_repository_index()
    }

    assert index["add", "1"] == "READY"
    assert index["versions", "3"] == "READY"


def test_unload_and_load(start_server, repository: Path):
    own = start_server(repository, load_model=("add",))
    with client_library.InferenceServerClient(own.address) as client:
        client.unload_model("add")
        assert not client.is_model_ready("add")
        (entry,) = [each for each in client.get_model_repository_index() if each["name"] == "add"]
        assert entry["state"] in {"UNLOADING", "UNAVAILABLE"}
        client.load_model("add")
        assert client.is_model_ready("add")
        client.unload_model("never_heard_of")
        with pytest.raises(InferenceServerException, match="failed to load 'never_heard_of'"):
            client.load_model("never_heard_of")


def test_load_with_a_config_and_files_of_its_own(start_server, repository: Path):
    own = start_server(repository, load_model=("add_batch",))
    with client_library.InferenceServerClient(own.address) as client:
        config = client.get_model_config("add_batch") | {"max_batch_size": 6}
        client.load_model("add_batch", config=json.dumps(config))
        assert client.get_model_config("add_batch")["max_batch_size"] == 6
        content = (repository / "add" / "1" / "model.onnx").read_bytes()
        config = client.get_model_config("add_batch") | {"name": "sent", "max_batch_size": 0}
        del config["dynamic_batching"]  # it came with the batch size
        client.load_model("sent", config=json.dumps(config), files={"file:1/model.onnx": content})
        result = client.infer("sent", inputs(INPUT0=A, INPUT1=B))
        np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), A + B)


def test_a_broken_load_gives_its_reason_every_time(start_server, repository: Path):
    own = start_server(repository, load_model=())
    with client_library.InferenceServerClient(own.address) as client:
        for _ in range(2):
            with pytest.raises(
                InferenceServerException, match=r"load failed for model 'add'.*version 1"
            ) as caught:
                client.load_model(
                    "add", config='{"backend":"onnxruntime"}', files={"file:1/model.onnx": b"no model"}
                )
            assert caught.value.status() == "400"
        client.load_model("add")
        assert client.is_model_ready("add")


def test_control_needs_explicit_mode(start_server, repository: Path):
    own = start_server(repository, model_control_mode="none", load_model=())
    with client_library.InferenceServerClient(own.address) as client:
        with pytest.raises(
            InferenceServerException, match="explicit model load / unload is not allowed"
        ) as caught:
            client.unload_model("add")
        assert caught.value.status() == "503"


# The rest


@pytest.mark.usefixtures("restored_log_settings")
def test_log_settings(client):
    changed = client.update_log_settings({"log_verbose_level": 0, "log_format": "ISO8601"})

    assert changed["log_format"] == "ISO8601"
    assert client.get_log_settings() == changed
    with pytest.raises(InferenceServerException, match="log file location can not be updated"):
        client.update_log_settings({"log_file": "elsewhere"})
