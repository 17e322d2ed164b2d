"""Deadlines that cover execution, over both protocols and into Python models."""

from __future__ import annotations

import time

import numpy as np
import pytest
import tritonclient.grpc as grpc_client
import tritonclient.http as http_client
from tritonclient.utils import InferenceServerException

from e2e_server import fake_config, wait_until
from python_models import DECOUPLED, GrpcStream

SOON = {"bireme_deadline_us": 20_000}
LOOP = """
class TritonPythonModel:
    def execute(self, requests):
        for _ in range(500):
            if requests[0].is_cancelled():
                signal_file("{name}-told")
                break
            time.sleep(0.01)
        return [reply(x_of(request)) for request in requests]
"""
CALLER = """
class TritonPythonModel:
    def execute(self, requests):
        answer = ask("{callee}", x_of(requests[0]))
        signal_file("{name}-answer", answer.error().message() if answer.has_error() else "no error")
        return [pass_on(answer)]
"""


def infer(library, address, name, parameters):
    item = library.InferInput("X", [1], "FP32")
    item.set_data_from_numpy(np.zeros(1, np.float32))
    with library.InferenceServerClient(address) as client:
        try:
            client.infer(name, [item], parameters=parameters)
        except InferenceServerException as error:
            return error
    return None


def test_clients_hear_of_it_in_their_protocols_words(start_fake):
    server, backend = start_fake({"slow": fake_config("slow")})
    backend.gate.clear()

    over_http = infer(http_client, server.address, "slow", SOON)
    over_grpc = infer(grpc_client, server.grpc_address, "slow", SOON)

    assert (over_http.status(), over_http.message()) == (
        "503",
        "[request id: <id_unknown>] the request's deadline has passed while it ran",
    )
    assert over_grpc.status() == "StatusCode.DEADLINE_EXCEEDED"
    assert over_grpc.message().endswith("the request's deadline has passed while it was queued")
    backend.gate.set()
    wait_until(lambda: server.engine.model("slow").num_in_flight == 0)
    assert len(backend.batches) == 1
    assert server.failures()["CANCELED"] == 2


@pytest.mark.slow
def test_a_python_model_is_told_and_its_callers_end_in_time(python_server):
    python_server.add("d1", LOOP.format(name="d1"))
    python_server.add("d2", CALLER.format(name="d2", callee="d1"))
    start_s = time.monotonic()

    answer = python_server.infer("d2", 1, parameters={"bireme_deadline_us": 200_000})

    assert answer.status == 503
    assert "deadline has passed while it ran" in answer.error
    assert time.monotonic() - start_s < 2
    python_server.wait_signal("d1-told", 2)
    assert "deadline has passed" in python_server.wait_signal("d2-answer", 2)
    wait_until(lambda: python_server.count("nv_inference_request_failure", "d1", "CANCELED") == 1)


def test_a_model_in_a_thread_is_told_as_well(python_server):
    mode = 'parameters { key: "EXECUTION_MODE" value { string_value: "thread" } }'
    default = 'parameters { key: "deadline_us" value { string_value: "50000" } }'
    python_server.add("d3", LOOP.format(name="d3"), mode + default)

    answer = python_server.infer("d3", 1)

    assert answer.status == 503
    python_server.wait_signal("d3-told", 2)


STREAM = """
class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            for number in range(500):
                if request.is_cancelled():
                    signal_file("d4-told", "x")
                    break
                sender.send(word(number))
                time.sleep(0.01)
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""


@pytest.mark.slow
def test_streams_end_with_the_error_after_what_came_in_time(python_server):
    python_server.add("d4", STREAM, DECOUPLED)
    with GrpcStream(python_server) as stream:
        stream.ask("d4", 1, parameters={"bireme_deadline_us": 100_000})
        answers = [stream.take()]
        while not isinstance(answers[-1], Exception):
            answers.append(stream.take())
        assert not stream.has_more(0.05)
    python_server.wait_signal("d4-told", 2)

    events = python_server.post(
        "/v2/models/d4/generate_stream", {"X": [1], "bireme_deadline_us": 100_000}
    ).body.decode()

    assert answers[:2] == [[0], [1]]
    assert "deadline has passed while it ran" in str(answers[-1])
    assert events.startswith("data: {")
    assert "deadline has passed while it ran" in events.strip().rpartition("\n")[2]
    wait_until(lambda: python_server.count("nv_inference_request_failure", "d4", "CANCELED") == 2)
