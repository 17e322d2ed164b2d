"""Sequences over HTTP and gRPC with official clients: what the real Triton 2.51 answered to the same calls, and what is ours.

Each case runs with the models in processes and in threads of the server.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as grpc_client
import tritonclient.http as http_client
from tritonclient.utils import InferenceServerException

from e2e_server import wait_until
from python_models import PythonServer
from serve_process import running

pytestmark = pytest.mark.slow

ADDER = """
def scalar(request, name):
    tensor = pb_utils.get_input_tensor_by_name(request, name)
    return None if tensor is None else tensor.as_numpy().reshape(-1)[0]

class TritonPythonModel:
    def initialize(self, args):
        self.sums = {}
        self.kind = args["model_name"]
    def execute(self, requests):
        signal_file(self.kind + "_batches", str([
            (int(scalar(r, "X")), int(scalar(r, "START")), int(scalar(r, "END")), int(scalar(r, "READY")), r.flags())
            for r in requests
        ]))
        responses = []
        for request in requests:
            sequence = request.correlation_id()
            if scalar(request, "START"):
                self.sums[sequence] = 0
            total = self.sums.get(sequence, 0) + scalar(request, "X")
            if scalar(request, "READY"):
                self.sums[sequence] = total
            if scalar(request, "END"):
                del self.sums[sequence]
            responses.append(reply(np.full(request.inputs()[0].shape(), total, np.float32)))
        return responses
    def drop_sequence(self, correlation_id):
        del self.sums[correlation_id]
        signal_file(self.kind + "_dropped", repr(correlation_id))
"""
ITERATIVE = """
class TritonPythonModel:
    def initialize(self, args):
        self.left = {}
    def execute(self, requests):
        responses = []
        for request in requests:
            sequence = request.correlation_id()
            if request.flags() & pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_START:
                self.left[sequence] = int(x_of(request).reshape(-1)[0])
            self.left[sequence] -= 1
            if self.left[sequence]:
                request.set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
                responses.append(None)
            else:
                del self.left[sequence]
                responses.append(reply(np.array([[sequence]], np.float32)))
        return responses
"""
STREAMER = """
class TritonPythonModel:
    def initialize(self, args):
        self.left = {}
    def execute(self, requests):
        for request in requests:
            sequence = request.correlation_id()
            if request.flags() & pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_START:
                self.left[sequence] = int(x_of(request).reshape(-1)[0])
            left = self.left[sequence] = self.left[sequence] - 1
            sender = request.get_response_sender()
            value = reply(np.array([[left]], np.float32))
            if left:
                sender.send(value)
                request.set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
            else:
                sender.send(value, flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
CONFIG = """
backend: "python"
max_batch_size: 4
input {{ name: "X" data_type: TYPE_FP32 dims: [ 1 ] }}
output {{ name: "Y" data_type: TYPE_FP32 dims: [ 1 ] }}
sequence_batching {{
  {batching}
  control_input {{ name: "START" control {{ kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] }} }}
  control_input {{ name: "END" control {{ kind: CONTROL_SEQUENCE_END fp32_false_true: [ 0, 1 ] }} }}
  control_input {{ name: "READY" control {{ kind: CONTROL_SEQUENCE_READY bool_false_true: [ false, true ] }} }}
}}
{more}
"""
LONG = "max_sequence_idle_microseconds: 60000000"
SHORT = "max_sequence_idle_microseconds: 300000"
MODELS = {
    "oldest": (ADDER, f"oldest {{ max_candidate_sequences: 4 }} {LONG}", ""),
    "direct": (ADDER, f"direct {{ }} {LONG}", ""),
    "short": (ADDER, f"oldest {{ }} {SHORT}", ""),
    "iterative": (ITERATIVE, "oldest { } iterative_sequence: true", ""),
    "streamer": (
        STREAMER,
        "oldest { } iterative_sequence: true",
        "model_transaction_policy { decoupled: true }",
    ),
    "not_iterative": (ITERATIVE, f"oldest {{ }} {SHORT}", ""),
}
IN_THREAD = 'parameters { key: "EXECUTION_MODE" value { string_value: "thread" } }'


class SequenceServer(PythonServer):
    """A server with all models of `MODELS`."""

    def __init__(self, root: Any, more: str) -> None:
        super().__init__(root, "--grpc-infer-thread-count=2")
        self.grpc = grpc_client.InferenceServerClient(self.grpc_address)
        self.http = http_client.InferenceServerClient(f"127.0.0.1:{self.port}", concurrency=8)
        for name, (code, batching, own) in MODELS.items():
            self.write(name, code)
            config = CONFIG.format(batching=batching, more=own + more)
            (self.root / name / "config.pbtxt").write_text(config)
            assert self.load(name).status == 200

    def ask(self, name: str, x: float, sequence: int | str = 0, flags: str = "", **settings: Any) -> Any:
        """Return the answer over gRPC, or the text of its error."""
        return self._ask(grpc_client, self.grpc, name, x, sequence, flags, **settings)

    def ask_http(self, name: str, x: float, sequence: int | str = 0, flags: str = "", **settings: Any) -> Any:
        return self._ask(http_client, self.http, name, x, sequence, flags, **settings)

    def _ask(
        self,
        kind: Any,
        client: Any,
        name: str,
        x: float,
        sequence: Any,
        flags: str,
        *,
        rows: int = 1,
        **settings: Any,
    ) -> Any:
        try:
            result = client.infer(
                name,
                inputs_of(kind, x, rows),
                sequence_id=sequence,
                sequence_start="S" in flags,
                sequence_end="E" in flags,
                **settings,
            )
        except InferenceServerException as error:
            return error.message()
        return result.as_numpy("Y").reshape(-1).tolist()[0]

    def batches(self, name: str) -> list[list[tuple[int, ...]]]:
        path = self.signals / f"{name}_batches"
        return [eval(line) for line in path.read_text().splitlines()] if path.exists() else []

    def num_sequences(self, name: str) -> int:
        return self.count("bireme_sequences", name)


def inputs_of(kind: Any, x: float, rows: int = 1) -> list[Any]:
    tensor = kind.InferInput("X", [rows, 1], "FP32")
    tensor.set_data_from_numpy(np.full((rows, 1), x, np.float32))
    return [tensor]


@pytest.fixture(scope="module", params=["process", "thread"])
def server(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[SequenceServer]:
    more = IN_THREAD if request.param == "thread" else ""
    with running(SequenceServer(tmp_path_factory.mktemp(request.param), more)) as server:
        yield server
        server.grpc.close()
        server.http.close()


NO_START = "inference request for sequence {} to model '{}' must specify the START flag on the first request of the sequence"


@pytest.mark.parametrize("name", ["oldest", "direct"])
def test_admission(server, name):
    ask = server.ask
    no_id = f"inference request to model '{name}' must specify a non-zero or non-empty correlation ID"
    assert ask(name, 1) == server.ask_http(name, 1) == no_id
    assert ask(name, 1, 3, "S", rows=2) == (
        f"inference request to model '{name}' must specify batch-size 1 due to requirements of sequence batcher"
    )
    assert ask(name, 1, 3) == server.ask_http(name, 1, 3) == NO_START.format(3, name)
    assert ask(name, 1, "three") == NO_START.format("three", name)


@pytest.mark.parametrize("name", ["oldest", "direct"])
@pytest.mark.parametrize("sequence", [4, "a text", 2**63 - 1])
def test_a_sequence_is_added_up_from_start_to_end(server, name, sequence):
    assert server.ask(name, 1, sequence, "S") == 1
    assert server.ask_http(name, 2, sequence) == 3
    assert server.ask(name, 3, sequence, "S") == 3
    assert server.ask(name, 4, sequence, "E") == 7
    assert server.ask(name, 5, sequence) == NO_START.format(sequence, name)
    assert server.ask(name, 7, sequence, "SE") == 7
    assert server.ask(name, 7, sequence, "E") == NO_START.format(sequence, name)


@pytest.mark.parametrize("name", ["oldest", "direct"])
def test_the_backlog_and_its_timeout(server, name):
    for sequence in range(1, 5):
        assert server.ask(name, sequence, sequence, "S") == sequence
    assert server.ask(name, 1, 9, "S", timeout=100_000) == (
        "timeout of the corresponding sequence has been expired"
    )
    answers = []
    thread = threading.Thread(target=lambda: answers.append(server.ask(name, 5, 10, "S")))
    thread.start()
    wait_until(lambda: server.num_sequences(name) == 5)
    assert not answers
    assert server.ask(name, 1, 1, "E") == 2
    thread.join()
    assert answers == [5]
    assert [server.ask(name, 1, sequence, "E") for sequence in (2, 3, 4, 10)] == [3, 4, 5, 6]
    assert server.num_sequences(name) == 0


def test_rows_of_the_direct_strategy_are_slots(server):
    for sequence in range(1, 5):
        server.ask("direct", 10 + sequence, sequence, "S")
    before = len(server.batches("direct"))
    assert server.ask("direct", 5, 3) == 18
    (batch,) = server.batches("direct")[before:]
    # x, START, END, READY, flags: two null requests, with the inputs of the one real request
    assert batch == [(5, 0, 0, 0, 0), (5, 0, 0, 0, 0), (5, 0, 0, 1, 0)]
    for sequence in range(1, 5):
        server.ask("direct", 0, sequence, "E")
    assert server.batches("direct")[-1] == [(0, 0, 0, 0, 0)] * 3 + [(0, 0, 1, 1, 2)]


@pytest.mark.parametrize("name", ["oldest", "direct"])
def test_many_interleaved_sequences_over_streams(server, name):
    def run(first: int) -> None:
        answers: Any = {}
        is_done = threading.Event()

        def take(result: Any, error: Any) -> None:
            key = result.get_response().id if result else str(error)
            answers[key] = result.as_numpy("Y").item() if result else error
            if len(answers) == 40:
                is_done.set()

        with closing(grpc_client.InferenceServerClient(server.grpc_address)) as client:
            client.start_stream(take)
            for step in range(5):
                for sequence in range(first, first + 8):
                    client.async_stream_infer(
                        name,
                        inputs_of(grpc_client, step + sequence),
                        request_id=f"{sequence} {step}",
                        sequence_id=sequence,
                        sequence_start=step == 0,
                        sequence_end=step == 4,
                    )
            assert is_done.wait(20)
            client.stop_stream()
        found.update(answers)

    found: dict[str, float] = {}
    threads = [threading.Thread(target=run, args=(100 * number,)) for number in range(1, 4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {
        f"{sequence} {step}": sum(range(step + 1)) + (step + 1) * sequence
        for first in (100, 200, 300)
        for sequence in range(first, first + 8)
        for step in range(5)
    }
    assert server.num_sequences(name) == 0


def test_a_silent_sequence_is_over_and_its_model_is_told(server):
    before = server.count("bireme_sequences_dropped_total", "short", "idle")
    assert server.ask("short", 1, "silent", "S") == 1
    wait_until(
        lambda: "'silent'" in server.wait_signal("short_dropped")
    )  # where other sequences are told of, too
    assert server.ask("short", 1, "silent") == NO_START.format("silent", "short")
    assert server.count("bireme_sequences_dropped_total", "short", "idle") == before + 1


def test_a_client_that_leaves_leaves_no_sequence(server):
    body = json.dumps(
        {
            "parameters": {"sequence_id": 50, "sequence_start": True},
            "inputs": [{"name": "X", "shape": [1, 1], "datatype": "FP32", "data": [1]}],
        }
    )
    for _ in range(3):
        connection = http.client.HTTPConnection("127.0.0.1", server.port)
        connection.request("POST", "/v2/models/short/infer", body)
        connection.close()
    wait_until(lambda: server.num_sequences("short") == 0)
    assert server.ask("short", 1, 50, "SE") == 1


def test_a_request_runs_again_until_it_is_done(server):
    first, second = (
        server.ask("iterative", steps) for steps in (3, 1)
    )  # their ids, which the server counts up
    assert second == first + 1
    assert server.ask("iterative", 4, 77, "S") == 77
    assert server.ask("iterative", 2, 77) == NO_START.format(77, "iterative")
    assert server.ask_http("iterative", 3, 78, "SE") == 78
    assert server.num_sequences("iterative") == 0


def test_many_requests_run_again_at_once(server):
    answers = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        asks = (loop.run_in_executor(None, server.ask, "iterative", 5 + number % 7) for number in range(12))
        answers.extend(await asyncio.gather(*asks))

    asyncio.run(main())
    assert len(set(answers)) == 12
    assert all(isinstance(answer, float) for answer in answers)


def test_responses_in_each_run_of_a_decoupled_model(server):
    with closing(grpc_client.InferenceServerClient(server.grpc_address)) as client:
        answers: list[Any] = []
        client.start_stream(lambda result, error: answers.append(error or result.as_numpy("Y").item()))
        client.async_stream_infer("streamer", inputs_of(grpc_client, 4))
        wait_until(lambda: len(answers) == 4)
        client.stop_stream()
    assert answers == [3, 2, 1, 0]


def test_rescheduling_needs_an_iterative_sequence(server):
    error = server.ask("not_iterative", 3, 1, "S")
    assert "asked for a request again, which needs sequence_batching with iterative_sequence" in error
    assert server.is_live()


def test_a_reload_ends_sequences(server):
    assert server.ask("oldest", 1, 60, "S") == 1
    assert server.load("oldest").status == 200
    code = server.root / "oldest" / "1" / "model.py"
    code.write_text(code.read_text() + "\n")
    assert server.load("oldest").status == 200
    assert server.ask("oldest", 1, 60) == NO_START.format(60, "oldest")


def test_sequences_end_in_peace_while_the_server_stops(tmp_path):
    with running(SequenceServer(tmp_path, IN_THREAD)) as server:
        assert server.ask("oldest", 1, 1, "S") == 1
        assert server.ask_http("direct", 1, 2, "S") == 1
        server.popen.terminate()
        server.wait_for("Waiting for in-flight requests to complete")
        assert server.ask("oldest", 2, 1) == 3
        assert server.ask_http("direct", 2, 2, "E") == 3
        assert "Server is stopping" in server.ask("oldest", 1, 9, "S")
        assert server.ask("oldest", 3, 1, "E") == 6
        assert server.exit_status() == 0
        server.grpc.close()
        server.http.close()


def test_a_dead_process_costs_its_sequences(tmp_path):
    with running(SequenceServer(tmp_path, "")) as server:
        assert server.ask("oldest", 1, 1, "S") == 1
        for pid in server.workers():
            os.kill(pid, signal.SIGKILL)
        wait_until(lambda: server.num_sequences("oldest") == 0)
        wait_until(lambda: server.is_ready("oldest"))
        assert server.ask("oldest", 1, 1) == NO_START.format(1, "oldest")
        assert server.ask("oldest", 1, 1, "SE") == 1
        assert server.count("bireme_sequences_dropped_total", "oldest", "lost") == 1
        server.grpc.close()
        server.http.close()
