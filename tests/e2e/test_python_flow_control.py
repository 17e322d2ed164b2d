"""Python models that stream more than their clients take: they wait, memory stays small, and nothing is lost."""

from __future__ import annotations

import json
import socket
import threading
import time

import pytest
import tritonclient.grpc as grpc_client

from e2e_server import wait_until
from python_models import DECOUPLED, GrpcStream, PythonServer, grpc_inputs, memory_kb

pytestmark = pytest.mark.slow

NUM = 2000
SIZE = 100_000
ALLOWED_KB = 60_000
"""Of 200 MB, of which less than 16 MB are kept for a client; they are shared, and count for two processes."""

STREAMER = """
class TritonPythonModel:
    def execute(self, requests):
        final = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
        for request in requests:
            sender = request.get_response_sender()
            for number in range(2000):
                if int(x_of(request)[0]):
                    body = np.array([(b"%07d" % number).ljust(100_000, b".")], np.object_)
                    sender.send(reply(body, "TEXT"))
                else:
                    sender.send(reply(np.full(25_000, number, np.float32)))
            sender.send(flags=final)
"""
ASYNC_STREAMER = STREAMER.replace("    def execute", "    async def execute").replace(
    "                if int", "                await asyncio.sleep(0)\n                if int"
)
PASSES_ON = """
class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            numbers = []
            for response in ask("s", [0], decoupled=True):
                if not numbers:
                    time.sleep(0.5)
                    signal_file("rested")
                    while not os.path.exists(os.path.join(os.environ["SIGNALS"], "go-on")):
                        time.sleep(0.01)
                if response.output_tensors():
                    numbers.append(response.output_tensors()[0].as_numpy()[0])
            request.get_response_sender().send(
                reply(np.array([len(numbers), numbers == sorted(numbers)], np.float32)),
                flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL,
            )
"""
TEXT = '\noutput { name: "TEXT" data_type: TYPE_STRING dims: [ -1 ] }'
THREAD = '\nparameters { key: "EXECUTION_MODE" value: { string_value: "thread" } }'


def memory_of(server: PythonServer) -> int:
    """Return what the server and its workers hold, in kB."""
    return sum(memory_kb(pid, "Pss") for pid in (server.popen.pid, *server.workers()))


def wait_until_it_rests(server: PythonServer, least_kb: int) -> int:
    """Return the memory held, once it is more than ``least_kb`` and grows no more."""
    samples = [0]

    def is_at_rest() -> bool:
        time.sleep(0.1)
        samples.append(memory_of(server))
        return samples[-1] > least_kb and abs(samples[-1] - samples[-2]) < SIZE // 1024

    wait_until(is_at_rest, 20)
    return samples[-1]


MODELS = pytest.mark.parametrize(
    ("code", "more"),
    [(STREAMER, ""), (ASYNC_STREAMER, ""), (STREAMER, THREAD)],
    ids=["process", "async", "thread"],
)


@MODELS
def test_a_grpc_client_that_stops_reading_makes_the_model_wait(python_server, code, more):
    python_server.add("s", code, DECOUPLED + more)
    before_kb = memory_of(python_server)
    may_read = threading.Event()
    numbers: list[int] = []
    is_over = threading.Event()

    def take(result, error):
        may_read.wait(30)
        if error is not None or result.get_response().parameters["triton_final_response"].bool_param:
            is_over.set()
        else:
            numbers.append(int(result.as_numpy("Y")[0]))

    client = grpc_client.InferenceServerClient(python_server.grpc_address)
    client.start_stream(take)
    try:
        client.async_stream_infer("s", grpc_inputs(0), enable_empty_final_response=True)
        held_kb = wait_until_it_rests(python_server, before_kb + 10_000)
        may_read.set()
        assert is_over.wait(30)
    finally:
        may_read.set()
        client.stop_stream(cancel_requests=True)
        client.close()

    assert numbers == list(range(NUM))
    assert held_kb - before_kb < ALLOWED_KB


@MODELS
def test_a_client_of_events_that_stops_reading_makes_the_model_wait(python_server, code, more):
    python_server.add("s", code, DECOUPLED + TEXT + more)
    before_kb = memory_of(python_server)
    with socket.create_connection(("127.0.0.1", python_server.port)) as client:
        body = json.dumps({"X": [1]}).encode()
        client.sendall(
            b"POST /v2/models/s/generate_stream HTTP/1.0\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)
        )
        held_kb = wait_until_it_rests(python_server, before_kb + 10_000)
        with client.makefile("rb") as answer:
            numbers = [int(json.loads(line[6:])["TEXT"][:7]) for line in answer if line.startswith(b"data: ")]

    assert numbers == list(range(NUM))
    assert held_kb - before_kb < ALLOWED_KB


def test_a_client_that_leaves_lets_the_model_that_waits_for_it_go(python_server):
    python_server.add("s", STREAMER, DECOUPLED + TEXT)
    before_kb = memory_of(python_server)
    with GrpcStream(python_server) as stream, socket.socket() as client:
        client.connect(("127.0.0.1", python_server.port))
        client.sendall(
            b'POST /v2/models/s/generate_stream HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n{"X":[1]}'
        )
        wait_until_it_rests(python_server, before_kb + 10_000)
        stream.ask("s", 0)
        assert not stream.has_more(0.1)  # the only instance is held
        client.close()
        assert stream.take(20) == [0.0] * 25_000


def test_a_model_that_reads_slowly_makes_the_one_it_asks_wait(python_server):
    python_server.add("s", STREAMER, DECOUPLED)
    python_server.add("caller", PASSES_ON, DECOUPLED)
    before_kb = memory_of(python_server)
    with GrpcStream(python_server) as stream:
        stream.ask("caller", 0)
        python_server.wait_signal("rested")
        held_kb = wait_until_it_rests(python_server, 0)
        (python_server.signals / "go-on").touch()
        assert stream.take(30) == [NUM, 1.0]

    assert held_kb - before_kb < ALLOWED_KB
