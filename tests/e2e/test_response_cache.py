"""The response cache as clients see it: the official ones, over both protocols, before Python models in processes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import tritonclient.grpc as grpc_client
import tritonclient.http as http_client
from tritonclient.utils import shared_memory as shm

from python_models import CALLER, PythonServer, calls
from serve_process import running

CACHED = "response_cache { enable: true }"
COUNTING = """
class TritonPythonModel:
    def initialize(self, args):
        self.num_runs = 0
    def execute(self, requests):
        answers = []
        for request in requests:
            self.num_runs += 1
            x = x_of(request)
            if x.size and x[0] < 0:
                answers.append(pb_utils.InferenceResponse(error=pb_utils.TritonError("below zero")))
                continue
            array = pb_utils.Tensor("Y", np.append(x, np.float32(self.num_runs)))
            answers.append(pb_utils.InferenceResponse([array], parameters={"run": self.num_runs}))
        return answers
"""
"""Appends how often it has run."""
ENSEMBLE = """
platform: "ensemble"
input { name: "X" data_type: TYPE_FP32 dims: [ -1 ] }
output { name: "Y" data_type: TYPE_FP32 dims: [ -1 ] }
ensemble_scheduling { step {
  model_name: "m" model_version: -1
  input_map { key: "X" value: "X" } output_map { key: "Y" value: "Y" }
} }
response_cache { enable: true }
"""


@pytest.fixture(scope="module")
def process(tmp_path_factory) -> Iterator[PythonServer]:
    root = tmp_path_factory.mktemp("cache")
    with running(
        PythonServer(root, "--cache-config=local,size=100000000", "--allow-client-shm=true")
    ) as server:
        yield server


@pytest.fixture
def server(process) -> Iterator[PythonServer]:
    process.add("m", COUNTING, CACHED)
    yield process
    process.unload_all()


def http_ask(client, value, name="m", **settings):
    tensor = http_client.InferInput("X", list(value.shape), "FP32")
    tensor.set_data_from_numpy(value)
    return client.infer(name, [tensor], **settings)


def grpc_ask(client, value, name="m", **settings):
    tensor = grpc_client.InferInput("X", list(value.shape), "FP32")
    tensor.set_data_from_numpy(value)
    return client.infer(name, [tensor], **settings)


@pytest.fixture(params=["http", "grpc"])
def ask(request, server):
    if request.param == "http":
        client = http_client.InferenceServerClient(f"127.0.0.1:{server.port}")
        asks = http_ask
    else:
        client = grpc_client.InferenceServerClient(server.grpc_address)
        asks = grpc_ask
    yield lambda value, *args, **settings: asks(client, np.asarray(value, np.float32), *args, **settings)
    client.close()


@pytest.mark.parametrize("size", [2, 300, 150_000])
def test_a_second_client_gets_the_first_one_s_answer(ask, size):
    value = np.arange(size)
    first = ask(value, request_id="one")
    second = ask(value, request_id="two")

    expected = [*value.tolist(), 1]
    assert first.as_numpy("Y").tolist() == second.as_numpy("Y").tolist() == expected


def test_what_differs_is_not_mixed_up(ask):
    runs = [
        ask([1, 2]).as_numpy("Y")[-1],
        ask([1, 3]).as_numpy("Y")[-1],
        ask([1, 2], parameters={"k": 1}).as_numpy("Y")[-1],
        ask([1, 2], parameters={"k": 2}).as_numpy("Y")[-1],
        ask([1, 2]).as_numpy("Y")[-1],
        ask([1, 2], parameters={"k": 1}).as_numpy("Y")[-1],
    ]

    assert runs == [1, 2, 3, 4, 1, 3]


def test_errors_come_from_the_model_each_time(ask, server):
    for _ in range(2):
        with pytest.raises(Exception, match="below zero"):
            ask([-1])

    assert ask([5]).as_numpy("Y").tolist() == [5, 3]


def test_the_id_is_the_asker_s_and_parameters_are_the_model_s(server):
    body = {"inputs": [{"name": "X", "datatype": "FP32", "shape": [1], "data": [7]}]}
    answers = [server.post("/v2/models/m/infer", {**body, "id": name}).body for name in ("a", "b")]

    assert [answer["id"] for answer in answers] == ["a", "b"]
    assert answers[0]["parameters"] == answers[1]["parameters"] == {"run": 1}


def test_both_protocols_share_the_answers(server):
    with (
        http_client.InferenceServerClient(f"127.0.0.1:{server.port}") as over_http,
        grpc_client.InferenceServerClient(server.grpc_address) as over_grpc,
    ):
        value = np.array([1, 2], np.float32)
        answers = [http_ask(over_http, value), grpc_ask(over_grpc, value), http_ask(over_http, value)]
        statistics = over_grpc.get_inference_statistics("m", as_json=True)

    assert [answer.as_numpy("Y").tolist() for answer in answers] == [[1, 2, 1]] * 3
    counts = statistics["model_stats"][0]["inference_stats"]
    assert counts["cache_hit"]["count"] == "2"
    assert counts["cache_miss"]["count"] == counts["compute_infer"]["count"] == "1"
    assert counts["success"]["count"] == "3"
    assert server.count("nv_cache_num_hits_per_model", "m") == 2


def test_many_at_once_get_right_answers(server):
    def one(number: int) -> bool:
        with http_client.InferenceServerClient(f"127.0.0.1:{server.port}") as client:
            for turn in range(40):
                value = np.full(2000, (number * turn) % 7, np.float32)
                found = http_ask(client, value).as_numpy("Y")
                if not np.array_equal(found[:-1], value):
                    return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(one, range(8)))
    assert server.count("nv_inference_request_success", "m") == 320
    assert server.count("nv_cache_num_hits_per_model", "m") > 200


def test_a_model_that_calls_gets_what_is_cached(server):
    server.add("caller", CALLER, calls("m"))
    found = [server.infer("caller", 1, 2).values for _ in range(3)]

    assert found == [[1, 2, 1]] * 3
    assert server.count("nv_cache_num_hits_per_model", "m") == 2


def test_a_thread_that_calls_gets_what_is_cached(server):
    in_thread = 'parameters { key: "EXECUTION_MODE" value { string_value: "thread" } }'
    server.add("caller", CALLER, calls("m") + in_thread)
    server.add("local", COUNTING, CACHED + in_thread)
    server.add("outer", CALLER, calls("local") + in_thread)

    assert [server.infer("caller", 1, 2).values for _ in range(2)] == [[1, 2, 1]] * 2
    assert [server.infer("outer", 1, 2).values for _ in range(3)] == [[1, 2, 1]] * 3
    assert server.count("nv_cache_num_hits_per_model", "local") == 2


def test_an_ensemble_is_cached_as_a_whole(server):
    folder = server.root / "whole" / "1"
    folder.mkdir(parents=True, exist_ok=True)
    (folder.parent / "config.pbtxt").write_text(ENSEMBLE)
    assert server.load("whole").status == 200
    server.added.add("whole")

    assert [server.infer("whole", 3).values for _ in range(3)] == [[3, 1]] * 3
    assert server.count("nv_cache_num_hits_per_model", "whole") == 2
    assert server.count("nv_inference_request_success", "m") == 1


@pytest.mark.slow
def test_memory_of_a_worker_is_not_held(server):
    """Answers of a process that then ends: the entries are the server's own."""
    for number in range(20):
        assert server.infer("m", number, *([0] * 20_000)).status == 200
    server.unload("m")
    server.wait_unloaded("m")

    assert server.workers() == set()
    server.add("m", COUNTING, CACHED)
    assert server.infer("m", 1, *([0] * 20_000)).values[-1] == 1  # another load, so it ran again


def test_a_client_s_shared_memory_may_change_while_it_waits(server):
    with http_client.InferenceServerClient(f"127.0.0.1:{server.port}") as client:
        value = np.array([4, 5], np.float32)
        handle = shm.create_shared_memory_region("cache_in", "/bireme_cache_in", value.nbytes)
        try:
            client.register_system_shared_memory("cache_in", "/bireme_cache_in", value.nbytes)
            tensor = http_client.InferInput("X", [2], "FP32")
            tensor.set_shared_memory("cache_in", value.nbytes)
            for number, run in ((4, 1), (6, 2), (4, 1)):
                shm.set_shared_memory_region(handle, [np.array([number, 5], np.float32)])

                assert client.infer("m", [tensor]).as_numpy("Y").tolist() == [number, 5, run]
        finally:
            client.unregister_system_shared_memory()
            shm.destroy_shared_memory_region(handle)


def test_an_answer_out_of_the_cache_goes_into_shared_memory(server):
    with grpc_client.InferenceServerClient(server.grpc_address) as client:
        value = np.full(50_000, 3, np.float32)
        nbytes = value.nbytes + 4
        handle = shm.create_shared_memory_region("cache_out", "/bireme_cache_out", nbytes)
        try:
            client.register_system_shared_memory("cache_out", "/bireme_cache_out", nbytes)
            tensor = grpc_client.InferInput("X", list(value.shape), "FP32")
            tensor.set_data_from_numpy(value)
            wanted = grpc_client.InferRequestedOutput("Y")
            wanted.set_shared_memory("cache_out", nbytes)
            for _ in range(3):
                shm.set_shared_memory_region(handle, [np.zeros(50_001, np.float32)])
                client.infer("m", [tensor], outputs=[wanted])
                found = shm.get_contents_as_numpy(handle, np.float32, [50_001])

                assert np.array_equal(found, np.append(value, np.float32(1)))
        finally:
            client.unregister_system_shared_memory()
            shm.destroy_shared_memory_region(handle)


def test_a_traced_hit_shows_that_the_model_did_not_run(server):
    server.infer("m", 9)
    answer = server.infer("m", 9, parameters={"bireme_trace": True}).body
    trace = json.loads(answer["parameters"]["bireme_trace"])

    assert answer["outputs"][0]["data"] == [9, 1]
    assert "compute_start" not in trace
    assert trace["request_end"] >= trace["queue_start"]
    assert server.infer("m", 9).body["parameters"] == {"run": 1}
