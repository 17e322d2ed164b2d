"""Official clients of a server that loads models at their first request."""

from __future__ import annotations

import gzip
import json
import queue
import re
import time
import urllib.error
import urllib.request

import numpy as np
import pytest
import tritonclient.grpc as grpc_client
import tritonclient.http as http_client
from tritonclient.utils import InferenceServerException

from bireme import Server
from bireme.engine.options import OnDemandOptions
from bireme.frontend.http import HttpOptions
from e2e_server import fake_config
from python_models import CALLER, PLUS_ONE, PythonServer, calls
from serve_process import running

X = np.array([1, 2], np.float32)
CONFIGS = {name: fake_config(name) for name in "abcdefg"}


@pytest.fixture
def server(start_fake):
    server, _ = start_fake(CONFIGS, model_control_mode="ondemand", load_model=())
    return server


def inputs(library):
    item = library.InferInput("X", [2], "FP32")
    item.set_data_from_numpy(X)
    return [item]


SMALL_BODIES = HttpOptions(offload_size=1000, header_forward_pattern="^bireme_")
"""Larger ones are parsed in another process."""


def bodies(parameters):
    """Requests with parameters in all forms that tritonclient does not send: path, body and headers."""
    tensor = {"name": "X", "shape": [2], "datatype": "FP32", "data": [1, 2]}
    infer = json.dumps({"inputs": [tensor], "parameters": parameters}).encode()
    generate = json.dumps({"X": [1, 2], "more": "x" * 2000, "parameters": parameters}).encode()
    raw = {"Inference-Header-Content-Length": "0"} | {name: str(value) for name, value in parameters.items()}
    yield "/v2/models/a/infer", gzip.compress(infer), {"Content-Encoding": "gzip"}
    yield "/v2/models/a/infer", infer + b" " * 2000, {}
    yield "/v2/models/a/infer", X.tobytes(), raw
    yield "/v2/models/a/generate", generate, {}


def loaded(server):
    return sorted(name for name, _ in server.engine._running().table.versions)


def test_the_first_request_of_every_kind_loads_the_model(server):
    with http_client.InferenceServerClient(server.address) as client:
        assert client.is_server_ready()
        assert client.is_model_ready("a")
        assert loaded(server) == []
        index = client.get_model_repository_index()
        assert index[0] == {"name": "a", "state": "UNAVAILABLE", "reason": "not loaded yet"}

        assert client.infer("a", inputs(http_client)).as_numpy("Y").tolist() == [1, 2]
        assert client.get_model_metadata("b")["name"] == "b"
        assert client.get_model_config("c")["name"] == "c"
    assert loaded(server) == ["a", "b", "c"]

    with grpc_client.InferenceServerClient(server.grpc_address) as client:
        assert client.is_model_ready("d")
        assert client.infer("d", inputs(grpc_client)).as_numpy("Y").tolist() == [1, 2]
        assert client.get_model_metadata("e").name == "e"
        assert client.get_model_config("f").config.name == "f"
        answers = queue.Queue()
        client.start_stream(lambda result, error: answers.put(error or result))
        for _ in range(3):
            client.async_stream_infer("g", inputs(grpc_client))
        assert [answers.get(timeout=5).as_numpy("Y").tolist() for _ in range(3)] == [[1, 2]] * 3
        client.stop_stream()
    assert loaded(server) == list("abcdefg")


def test_generate_and_raw_requests_wait_as_well(server):
    for path, body in (("generate", b'{"X": [1, 2]}'), ("infer", X.tobytes())):
        name = "a" if path == "generate" else "b"
        headers = {} if path == "generate" else {"Inference-Header-Content-Length": "0"}
        request = urllib.request.Request(f"{server.url}/v2/models/{name}/{path}", body, headers)
        with urllib.request.urlopen(request, timeout=5) as answer:
            assert answer.status == 200
    assert loaded(server) == ["a", "b"]


def test_what_cannot_be_loaded_is_told(server, tmp_path):
    (tmp_path / "a" / "config.pbtxt").write_text("max_batch_size: -1")
    with http_client.InferenceServerClient(server.address) as client:
        with pytest.raises(InferenceServerException) as caught:
            client.infer("a", inputs(http_client))
        assert caught.value.status() == "503"
        assert not client.is_model_ready("a")
        with pytest.raises(InferenceServerException) as caught:
            client.infer("nobody", inputs(http_client))
        assert caught.value.status() == "404"
    with grpc_client.InferenceServerClient(server.grpc_address) as client:
        with pytest.raises(InferenceServerException) as caught:
            client.infer("a", inputs(grpc_client))
        assert caught.value.status() == "StatusCode.UNAVAILABLE"
        assert "the next try is in" in caught.value.message()


@pytest.mark.slow
def test_a_request_waits_within_its_time(start_fake):
    server, backend = start_fake(
        CONFIGS,
        model_control_mode="ondemand",
        load_model=(),
        on_demand=OnDemandOptions(load_timeout_secs=0.5),  # far behind the deadlines
        http=SMALL_BODIES,
    )
    backend.complete = lambda config: backend.gate.wait() and config  # a load that takes its time
    backend.gate.clear()
    try:
        with grpc_client.InferenceServerClient(server.grpc_address) as client:
            with pytest.raises(InferenceServerException) as caught:
                client.infer("a", inputs(grpc_client), parameters={"bireme_deadline_us": 10_000})
            assert caught.value.status() == "StatusCode.DEADLINE_EXCEEDED"
        with http_client.InferenceServerClient(server.address) as client:
            with pytest.raises(InferenceServerException) as caught:
                client.infer("a", inputs(http_client), parameters={"bireme_deadline_us": 10_000})
            assert caught.value.status() == "503"
            assert "deadline" in caught.value.message()
            with pytest.raises(InferenceServerException) as caught:
                client.get_model_metadata("a")
            assert "is still being loaded" in caught.value.message()
        for path, body, headers in bodies({"bireme_deadline_us": 10_000}):
            with pytest.raises(urllib.error.HTTPError) as refused:
                urllib.request.urlopen(urllib.request.Request(server.url + path, body, headers), timeout=5)
            with refused.value as answer:
                assert answer.status == 503
                assert b"deadline has passed while model 'a' was loaded" in answer.read()
    finally:
        backend.gate.set()


def test_the_time_of_a_load_is_not_given_twice(start_fake, monkeypatch):
    server, backend = start_fake(CONFIGS, model_control_mode="ondemand", load_model=(), http=SMALL_BODIES)
    load_ns, deadlines_ns = [], []

    def complete(config):
        load_ns.append(time.monotonic_ns())
        return config

    def submit(engine, request):
        deadlines_ns.append(request.deadline_ns)
        return original(engine, request)

    backend.complete = complete
    original = Server.submit
    monkeypatch.setattr(Server, "submit", submit)
    minute = {"parameters": {"bireme_deadline_us": 60_000_000}}
    with http_client.InferenceServerClient(server.address) as client:
        client.infer("a", inputs(http_client), **minute)
    with grpc_client.InferenceServerClient(server.grpc_address) as client:
        client.infer("b", inputs(grpc_client), **minute)
    for name, (path, body, headers) in zip("cdef", bodies(minute["parameters"]), strict=True):
        url = f"{server.url}{path.replace('/a/', f'/{name}/')}"
        with urllib.request.urlopen(urllib.request.Request(url, body, headers), timeout=5) as answer:
            assert answer.status == 200

    assert len(load_ns) == 6
    for begun_ns, deadline_ns in zip(load_ns, deadlines_ns, strict=True):
        assert 0 < deadline_ns < begun_ns + 60 * 10**9


@pytest.mark.slow
def test_python_models_load_what_they_call_and_their_processes_count(tmp_path):
    settings = (
        "--model-control-mode=ondemand",
        "--ondemand-memory-budget=1000000000",
        "--ondemand-max-models=2",
    )
    with running(PythonServer(tmp_path, *settings)) as server:
        server.write("plus", PLUS_ONE)
        server.write("caller", CALLER, calls("plus"))
        server.write("other", PLUS_ONE)

        assert server.infer("caller", 1).values == [2]

        assert [server.index(name)["state"] for name in ("caller", "plus")] == ["READY", "READY"]
        memory = re.search(r"^bireme_ondemand_memory_bytes (\S+)$", server.metrics(), re.MULTILINE)
        assert memory
        assert float(memory[1]) > 1e6
        assert server.infer("other", 1).values == [2]
        states = [server.index(name)["state"] for name in ("caller", "plus", "other")]
        assert sorted(states) == ["READY", "READY", "UNAVAILABLE"]
        assert server.infer("caller", 1).values == [2]
