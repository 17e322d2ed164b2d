"""A traced request over every protocol: a script in a process that calls another one, and models with many responses."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as grpc_client
import tritonclient.http as http_client

from python_models import CALLER, DECOUPLED, GrpcStream, PythonServer, calls, grpc_inputs

pytestmark = pytest.mark.slow

WISH = {"bireme_trace": True}
SENDER = """
class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            for value in x_of(request):
                sender.send(word(value))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""


def steps_of(text: str) -> dict[str, Any]:
    """Return the trace in ``text``, having looked whether its times make sense."""
    record: dict[str, Any] = json.loads(text)
    for call in record.get("calls", ()):
        assert record["compute_start"] <= call["request_start"] <= call["compute_start"]
        assert call["compute_start"] <= call["compute_end"] <= call["request_end"] <= record["request_end"]
    return record


@pytest.fixture
def server(python_server: PythonServer) -> PythonServer:
    python_server.add("plus")
    python_server.add("top", CALLER, calls("plus"))
    return python_server


def assert_is_of_top(text: str) -> None:
    record = steps_of(text)
    assert ("top", ["plus"]) == (record["model"], [call["model"] for call in record["calls"]])


def test_http(server):
    as_json = server.infer("top", 1, parameters=WISH)
    assert as_json.values == [2]
    assert_is_of_top(as_json.body["parameters"]["bireme_trace"])
    assert "parameters" not in server.infer("top", 1).body

    generated = server.post("/v2/models/top/generate", {"X": [1], **WISH})
    assert_is_of_top(generated.body["bireme_trace"])

    client = http_client.InferenceServerClient(f"127.0.0.1:{server.port}")
    given = http_client.InferInput("X", [1], "FP32")
    given.set_data_from_numpy(np.ones(1, np.float32), binary_data=True)
    result = client.infer("top", [given], parameters=WISH)
    assert result.as_numpy("Y").tolist() == [2]
    assert_is_of_top(result.get_response()["parameters"]["bireme_trace"])
    client.close()


def test_grpc(server):
    client = grpc_client.InferenceServerClient(server.grpc_address)
    result = client.infer("top", grpc_inputs(1), parameters=WISH)
    assert result.as_numpy("Y").tolist() == [2]
    assert_is_of_top(result.get_response().parameters["bireme_trace"].string_param)
    client.close()


def test_a_stream_ends_with_its_trace(python_server):
    """The end of a decoupled request is a message of its own then, whether or not the client has asked for such."""
    python_server.add("sender", SENDER, DECOUPLED)

    with GrpcStream(python_server) as stream:
        for settings in ({}, {"enable_empty_final_response": True}):
            stream.ask("sender", 1, 2, parameters=WISH, **settings)
            first, second, last = (stream.take_message() for _ in range(3))

            assert "bireme_trace" not in first.parameters
            assert "bireme_trace" not in second.parameters
            assert last.parameters["triton_final_response"].bool_param
            assert not last.outputs
            record = steps_of(last.parameters["bireme_trace"].string_param)
            assert ("sender", 2) == (record["model"], record["responses"])
            assert 0 < record["first_response"] <= record["request_end"]


def test_events_end_with_the_trace(python_server):
    python_server.add("sender", SENDER, DECOUPLED)

    events = python_server.post("/v2/models/sender/generate_stream", {"X": [1, 2], **WISH}).body.decode()
    first, second, last = (
        json.loads(line.removeprefix("data: ")) for line in events.splitlines() if line.startswith("data: ")
    )
    assert (1, 2) == (first["Y"], second["Y"])
    assert 2 == steps_of(last["bireme_trace"])["responses"]

    one = python_server.post("/v2/models/sender/generate", {"X": [5], **WISH}).body
    assert one["Y"] == 5
    assert 1 == steps_of(one["bireme_trace"])["responses"]
