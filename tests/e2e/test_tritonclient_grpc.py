"""The official synchronous gRPC client, method by method; its shared memory methods are in test_grpc_shared_memory.py."""

from __future__ import annotations

import json
import queue
from collections.abc import Iterator
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import tritonclient.grpc as client_library
from tritonclient.utils import InferenceServerException

from bireme.frontend.grpc.options import GrpcOptions
from e2e_server import fake_config, wait_until
from grpc_calls import A, B, inputs, outputs


@pytest.fixture
def client(server) -> Iterator[client_library.InferenceServerClient]:
    with client_library.InferenceServerClient(server.grpc_address) as made:
        yield made


def refused(status: str, text: str | None = None):
    """Expect the client's exception with this gRPC status and a text that matches."""
    return pytest.raises(
        InferenceServerException, match=text, check=lambda error: error.status() == f"StatusCode.{status}"
    )


# Health and descriptions


def test_health(client):
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("add")
    assert client.is_model_ready("versions", "3")
    with refused("NOT_FOUND", "'versions' version 2 is not found"):
        client.is_model_ready("versions", "2")
    with refused("NOT_FOUND", "Request for unknown model: 'nothing' is not found"):
        client.is_model_ready("nothing")
    with refused("INVALID_ARGUMENT", "version"):
        client.is_model_ready("add", "one")


def test_server_metadata(client):
    metadata = client.get_server_metadata()

    assert metadata.name == "triton"
    assert metadata.version
    assert {"binary_tensor_data", "statistics", "model_repository"} <= set(metadata.extensions)


def test_model_metadata(client):
    metadata = client.get_model_metadata("classifier", as_json=True)

    assert metadata["name"] == "classifier"
    assert metadata["inputs"] == [{"name": "X", "datatype": "FP32", "shape": ["-1", "10"]}]
    assert metadata["outputs"] == [{"name": "Y", "datatype": "FP32", "shape": ["-1", "10"]}]
    assert list(client.get_model_metadata("versions").versions) == ["1", "3"]
    assert list(client.get_model_metadata("versions", "1").versions) == ["1"]
    with refused("NOT_FOUND", "'nothing' is not found"):
        client.get_model_metadata("nothing")


def test_model_config(client):
    config = client.get_model_config("classifier").config

    assert config.name == "classifier"
    assert config.max_batch_size == 8
    assert config.output[0].label_filename == "labels.txt"
    assert list(config.input[0].dims) == [10]


def test_statistics_count_what_was_inferred(client):
    def successes() -> int:
        (model,) = client.get_inference_statistics("add").model_stats
        return model.inference_stats.success.count

    before = successes()
    client.infer("add", inputs(INPUT0=A, INPUT1=B))

    assert successes() == before + 1
    every = client.get_inference_statistics().model_stats
    assert {"add", "versions"} <= {model.name for model in every}
    with refused("INVALID_ARGUMENT", "requested model 'nothing' is not available"):
        client.get_inference_statistics("nothing")


# Inference


def test_infer(client):
    result = client.infer(
        "add", inputs(INPUT0=A, INPUT1=B), outputs=outputs("OUTPUT0", "OUTPUT1"), request_id="my id"
    )

    np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), A + B)
    np.testing.assert_array_equal(result.as_numpy("OUTPUT1"), A - B)
    response = result.get_response()
    assert (response.model_name, response.model_version, response.id) == ("add", "1", "my id")
    assert result.get_output("OUTPUT0").datatype == "FP32"


def test_infer_one_output_only(client):
    result = client.infer("add", inputs(INPUT0=A, INPUT1=B), outputs=outputs("OUTPUT1"))

    np.testing.assert_array_equal(result.as_numpy("OUTPUT1"), A - B)
    assert result.as_numpy("OUTPUT0") is None


def test_infer_a_version(client):
    for version in ("", "1", "3"):
        result = client.infer("versions", inputs(INPUT0=A, INPUT1=B), model_version=version)
        assert result.get_response().model_version == (version or "3")
    with refused("NOT_FOUND", "'versions' version 2 is not found"):
        client.infer("versions", inputs(INPUT0=A, INPUT1=B), model_version="2")


def test_infer_a_batch(client):
    batch = np.stack([A, B, A])
    result = client.infer("add_batch", inputs(INPUT0=batch, INPUT1=batch))

    np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), batch + batch)


@pytest.mark.parametrize(
    ("model", "values"),
    [
        ("identity_int32", np.array([-1, 0, 2**31 - 1], np.int32)),
        ("identity_int64", np.array([-(2**63), 2**63 - 1], np.int64)),
        ("identity_fp64", np.array([1e300, -0.0], np.float64)),
        ("identity_fp16", np.array([1.5, np.inf, -0.1], np.float16)),
        ("identity_bool", np.array([True, False], np.bool_)),
        ("identity_uint8", np.arange(6, dtype=np.uint8).reshape(2, 3)),
        ("identity_bytes", np.array([b"text", b"", "ünïcödé".encode(), b"a" * 1000], np.object_)),
        ("identity_bytes", np.array([], np.object_)),
    ],
)
def test_data_types(client, model, values):
    np.testing.assert_array_equal(client.infer(model, inputs(X=values)).as_numpy("Y"), values)


def test_bf16(start_fake):
    server, _ = start_fake({"brain": fake_config("brain", datatype="BF16")})
    values = np.array([1.5, 1e9, -0.0], ml_dtypes.bfloat16)
    with client_library.InferenceServerClient(server.grpc_address) as client:
        result = client.infer("brain", inputs(X=values))

    assert result.get_output("Y").datatype == "BF16"
    assert result.get_response().raw_output_contents[0] == values.tobytes()


@pytest.mark.parametrize("size", [0, 1, 20_000, 1_500_000])
def test_sizes_from_nothing_to_6_mb(client, size):
    values = np.arange(size, dtype=np.float32)

    np.testing.assert_array_equal(client.infer("plus_one", inputs(X=values)).as_numpy("Y"), values + 1)


@pytest.mark.parametrize("algorithm", [None, "gzip", "deflate"])
@pytest.mark.parametrize("size", [16, 100_000])
def test_compression(client, algorithm, size):
    values = np.arange(size, dtype=np.float32)
    result = client.infer("plus_one", inputs(X=values), compression_algorithm=algorithm)

    np.testing.assert_array_equal(result.as_numpy("Y"), values + 1)


def test_classification(client):
    scores = np.zeros((2, 10), np.float32)
    scores[0, 3], scores[0, 7], scores[1, 9] = 0.9, 0.5, 0.25
    result = client.infer("classifier", inputs(X=scores), outputs=outputs("Y", class_count=2))
    found = result.as_numpy("Y").astype(str)

    assert found[0].tolist() == ["0.900000:3:class 3", "0.500000:7:class 7"]
    assert found[1][0] == "0.250000:9:class 9"


def test_request_parameters_are_taken(client):
    result = client.infer(
        "add",
        inputs(INPUT0=A, INPUT1=B),
        parameters={"text": "x", "number": 1, "switch": True, "share": 0.5},
        priority=1,
        timeout=10_000_000,
        sequence_id=7,
        sequence_start=True,
        sequence_end=True,
        headers={"x-mine": "1"},
        client_timeout=10,
    )

    np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), A + B)


@pytest.mark.parametrize(
    ("model", "arrays", "status", "text"),
    [
        ("nothing", {"X": A}, "NOT_FOUND", "Request for unknown model: 'nothing' is not found"),
        ("add", {"INPUT0": A}, "INVALID_ARGUMENT", "expected 2 inputs but got 1 inputs for model 'add'"),
        ("add", {"INPUT0": A, "OTHER": B}, "INVALID_ARGUMENT", "OTHER"),
        (
            "add",
            {"INPUT0": A, "INPUT1": B[:15]},
            "INVALID_ARGUMENT",
            r"unexpected shape for input 'INPUT1' for model 'add'. Expected \[16\], got \[15\]",
        ),
        (
            "add",
            {"INPUT0": A, "INPUT1": B.astype(np.int32)},
            "INVALID_ARGUMENT",
            "data-type is 'INT32', but model 'add' expects 'FP32'",
        ),
        (
            "add_batch",
            {"INPUT0": A.reshape(1, 16), "INPUT1": np.zeros((2, 16), np.float32)},
            "INVALID_ARGUMENT",
            "batch size does not match",
        ),
        (
            "classifier",
            {"X": np.zeros((9, 10), np.float32)},
            "INVALID_ARGUMENT",
            "batch-size must be <= 8 for 'classifier'",
        ),
    ],
)
def test_wrong_requests_say_what_is_wrong(client, model, arrays, status, text):
    with refused(status, text):
        client.infer(model, inputs(**arrays))


def test_unknown_output_is_named(client):
    with refused("INVALID_ARGUMENT", "unexpected inference output 'Z' for model 'add'"):
        client.infer("add", inputs(INPUT0=A, INPUT1=B), outputs=outputs("Z"))


def test_an_error_begins_with_the_id_of_the_request(client):
    with refused("INVALID_ARGUMENT", r"\] \[request id: my id\] unexpected shape for input 'INPUT1'"):
        client.infer("add", inputs(INPUT0=A, INPUT1=B[:15]), request_id="my id")


def test_asynchronous_calls(client):
    answers: queue.Queue = queue.Queue()
    for factor in range(8):
        client.async_infer(
            "add",
            inputs(INPUT0=A * factor, INPUT1=B),
            lambda result, error: answers.put((result, error)),
            request_id=str(factor),
        )

    for _ in range(8):
        result, error = answers.get(timeout=10)
        assert error is None
        np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), A * int(result.get_response().id) + B)


def test_an_asynchronous_call_brings_its_error(client):
    answers: queue.Queue = queue.Queue()
    client.async_infer("nothing", inputs(X=A), lambda result, error: answers.put((result, error)))

    result, error = answers.get(timeout=10)
    assert result is None
    assert error.status() == "StatusCode.NOT_FOUND"


def test_a_passed_deadline_drops_the_queued_request(start_fake):
    """Case 6 of the users' list, its second gRPC half."""
    server, backend = start_fake({"slow": fake_config("slow")})
    backend.gate.clear()
    model = server.engine.model("slow")
    with client_library.InferenceServerClient(server.grpc_address) as client:
        running = client.async_infer("slow", inputs(X=A), lambda result, error: None)
        assert backend.started.acquire(timeout=5)
        with refused("DEADLINE_EXCEEDED"):
            client.infer("slow", inputs(X=A), client_timeout=0.05)
        wait_until(lambda: model.num_in_flight == 1)
        assert server.failures()["CANCELED"] == 1
        running.cancel()
        backend.gate.set()
        wait_until(lambda: model.num_in_flight == 0)

    assert len(backend.batches) == 1  # the one that left the queue never ran


def test_a_cancelled_call_drops_the_queued_request(start_fake):
    """Case 6 of the users' list, its first gRPC half."""
    server, backend = start_fake({"slow": fake_config("slow")})
    backend.gate.clear()
    model = server.engine.model("slow")
    answers: queue.Queue = queue.Queue()
    with client_library.InferenceServerClient(server.grpc_address) as client:
        running, queued = (
            client.async_infer("slow", inputs(X=A), lambda result, error: answers.put(error))
            for _ in range(2)
        )
        assert backend.started.acquire(timeout=5)
        wait_until(lambda: model.num_in_flight == 2)
        running.cancel()
        queued.cancel()
        for _ in range(2):
            assert answers.get(timeout=5).status() == "StatusCode.CANCELLED"
        wait_until(
            lambda: model.num_in_flight == 1
        )  # the queued one is gone while the running one still runs
        client.async_infer("slow", inputs(X=A * 3), lambda result, error: answers.put(result))
        wait_until(lambda: model.num_in_flight == 2)
        backend.gate.set()
        np.testing.assert_array_equal(answers.get(timeout=5).as_numpy("Y"), A * 3)

    assert len(backend.batches) == 2
    assert server.failures()["CANCELED"] >= 1


# Repository control


def test_repository_index(client):
    index = {(each.name, each.version): each.state for each in client.get_model_repository_index().models}

    assert index["add", "1"] == "READY"
    assert index["versions", "3"] == "READY"


def test_unload_and_load(start_server, repository: Path):
    own = start_server(repository, load_model=("add",))
    with client_library.InferenceServerClient(own.grpc_address) as client:
        client.unload_model("add", unload_dependents=True)
        wait_until(
            lambda: (
                [each.state for each in client.get_model_repository_index().models if each.name == "add"]
                == ["UNAVAILABLE"]
            )
        )
        with refused("NOT_FOUND"):
            client.is_model_ready("add")
        client.load_model("add")
        assert client.is_model_ready("add")
        client.unload_model("never_heard_of")
        with refused("INTERNAL", "failed to load 'never_heard_of'"):
            client.load_model("never_heard_of")


def test_load_with_a_config_and_files_of_its_own(start_server, repository: Path):
    own = start_server(repository, load_model=("add_batch",))
    with client_library.InferenceServerClient(own.grpc_address) as client:
        config = client.get_model_config("add_batch", as_json=True)["config"] | {"max_batch_size": 6}
        client.load_model("add_batch", config=json.dumps(config))
        assert client.get_model_config("add_batch").config.max_batch_size == 6
        content = (repository / "add" / "1" / "model.onnx").read_bytes()
        config = '{"backend": "onnxruntime"}'
        client.load_model("sent", config=config, files={"file:1/model.onnx": content})
        result = client.infer("sent", inputs(INPUT0=A, INPUT1=B))
        np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), A + B)


def test_a_broken_load_gives_its_reason_every_time(start_server, repository: Path):
    own = start_server(repository, load_model=())
    with client_library.InferenceServerClient(own.grpc_address) as client:
        for _ in range(2):
            with refused("INVALID_ARGUMENT", r"load failed for model 'add'.*version 1"):
                client.load_model(
                    "add", config='{"backend":"onnxruntime"}', files={"file:1/model.onnx": b"no model"}
                )
        client.load_model("add")
        assert client.is_model_ready("add")


def test_control_needs_explicit_mode(start_server, repository: Path):
    own = start_server(repository, model_control_mode="none", load_model=())
    with (
        client_library.InferenceServerClient(own.grpc_address) as client,
        refused("UNAVAILABLE", "explicit model load / unload is not allowed"),
    ):
        client.unload_model("add")


# The rest


@pytest.mark.usefixtures("restored_log_settings")
def test_log_settings(client):
    changed = client.update_log_settings(
        {"log_verbose_level": 0, "log_info": True, "log_format": "ISO8601"}, as_json=True
    )

    assert changed["settings"]["log_format"] == {"string_param": "ISO8601"}
    assert client.get_log_settings(as_json=True) == changed
    with refused("UNIMPLEMENTED", "log file location can not be updated"):
        client.update_log_settings({"log_file": "elsewhere"})
    with refused("INVALID_ARGUMENT", "log_format"):
        client.update_log_settings({"log_format": "cuneiform"})


def test_restricted_protocols_need_their_header(start_server, repository: Path):
    options = GrpcOptions(restricted_protocols=((("inference", "model-config"), "key", "secret"),))
    own = start_server(repository, grpc=options, load_model=("add",))
    text = "This protocol is restricted, expecting header 'triton-grpc-protocol-key'"
    with client_library.InferenceServerClient(own.grpc_address) as client:
        for headers in (None, {"triton-grpc-protocol-key": "guess"}):
            with refused("UNAVAILABLE", text):
                client.infer("add", inputs(INPUT0=A, INPUT1=B), headers=headers)
            with refused("UNAVAILABLE", text):
                client.get_model_config("add", headers=headers)
        headers = {"triton-grpc-protocol-key": "secret"}
        assert client.infer("add", inputs(INPUT0=A, INPUT1=B), headers=headers)
        assert client.get_model_config("add", headers=headers)
        assert client.is_model_ready("add")


def test_forwarded_headers_become_parameters(start_server, repository: Path):
    own = start_server(
        repository, grpc=GrpcOptions(header_forward_pattern="^(x-.*|priority)$"), load_model=("add",)
    )
    with client_library.InferenceServerClient(own.grpc_address) as client:
        assert client.infer("add", inputs(INPUT0=A, INPUT1=B), headers={"x-user": "7"})
        with refused("INVALID_ARGUMENT", "priority"):
            client.infer("add", inputs(INPUT0=A, INPUT1=B), headers={"priority": "7"})


@pytest.mark.parametrize("level", ["none", "low", "medium", "high"])
def test_compressed_answers(start_server, repository: Path, level):
    own = start_server(
        repository, grpc=GrpcOptions(response_compression_level=level), load_model=("plus_one",)
    )
    values = np.zeros(50_000, np.float32)
    with client_library.InferenceServerClient(own.grpc_address) as client:
        for algorithm in (None, "gzip", "deflate"):
            result = client.infer("plus_one", inputs(X=values), compression_algorithm=algorithm)
            np.testing.assert_array_equal(result.as_numpy("Y"), values + 1)
