"""The users' cases that need a Python model: queues, deaths, clients that leave, reloads, streams, errors, overlap, shutdown."""

from __future__ import annotations

import json
import signal
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import tritonclient.grpc as grpc_client

from e2e_server import wait_until
from python_models import (
    DECOUPLED,
    PLUS_ONE,
    GrpcStream,
    PythonServer,
    Reply,
    body_of,
    grpc_inputs,
    instances,
    is_running,
)
from serve_process import running

pytestmark = pytest.mark.slow

SLEEP = """
class TritonPythonModel:
    def execute(self, requests):
        signal_file("{name}")
        time.sleep({seconds})
        return [reply(x_of(request)) for request in requests]
"""
ONE_BY_ONE = "max_batch_size: 1 dynamic_batching {{ default_queue_policy {{ {policy} }} }}"


@pytest.fixture
def background():
    with ThreadPoolExecutor(64) as pool:
        yield pool.submit


class Timed:
    """An answer with the moments of its beginning and its end."""

    def __init__(self, reply: Reply, start_s: float) -> None:
        self.reply = reply
        self.seconds = time.monotonic() - start_s


def timed(server: PythonServer, name: str, *values: float, **settings) -> Timed:
    start_s = time.monotonic()
    return Timed(server.post(f"/v2/models/{name}/infer", batch_of(*values, **settings)), start_s)


def batch_of(*values: float, **settings):
    body = body_of(*values, **settings)
    body["inputs"][0]["shape"].insert(0, 1)
    return body


def test_case_1_exact_queue_limit(python_server, background):
    python_server.add("a", SLEEP.format(name="a", seconds=0.4), ONE_BY_ONE.format(policy="max_queue_size: 2"))
    answers = [background(timed, python_server, "a", 1)]
    python_server.wait_signal("a")
    for _ in range(3):
        answers.append(background(timed, python_server, "a", 1))
        time.sleep(0.02)
    a, b, c, d = [answer.result(5) for answer in answers]

    assert d.reply.status == 503
    assert "exceeds maximum queue size" in d.reply.error.lower()
    assert d.seconds < 0.2
    for good in (a, b, c):
        assert good.reply.values == [1]
    assert c.seconds < 1.6
    assert python_server.count("nv_inference_request_failure", "a", "REJECTED") == 1
    assert python_server.count("nv_inference_request_success", "a") == 3


@pytest.mark.parametrize(("parameters", "seconds"), [(None, 0.3), ({"timeout": 150_000}, 0.15)])
def test_case_2_queue_timeout_on_time(python_server, background, parameters, seconds):
    policy = "default_timeout_microseconds: 300000 timeout_action: REJECT allow_timeout_override: true"
    name = f"b{seconds}"
    python_server.add(name, SLEEP.format(name=name, seconds=0.8), ONE_BY_ONE.format(policy=policy))
    first = background(timed, python_server, name, 1)
    python_server.wait_signal(name)
    late = timed(python_server, name, 1, parameters=parameters)

    assert late.reply.status == 503
    assert seconds - 0.01 <= late.seconds < seconds + 0.2
    assert first.result(5).reply.values == [1]


def test_case_2_a_late_request_that_is_only_delayed(python_server, background):
    policy = "default_timeout_microseconds: 50000 timeout_action: DELAY"
    python_server.add("b", SLEEP.format(name="b", seconds=0.2), ONE_BY_ONE.format(policy=policy))
    first = background(timed, python_server, "b", 1)
    python_server.wait_signal("b")

    assert timed(python_server, "b", 2).reply.values == [2]
    assert first.result(5).reply.values == [1]


def test_case_3_worker_death(python_server):
    python_server.add(
        "c",
        """
        class TritonPythonModel:
            def execute(self, requests):
                if x_of(requests[0])[0] < 0:
                    os._exit(0)
                return [reply(x_of(request)) for request in requests]
        """,
    )
    assert python_server.infer("c", 1).values == [1]
    start_s = time.monotonic()
    died = python_server.infer("c", -1)
    assert time.monotonic() - start_s < 1
    assert died.status == 503
    assert "model 'c' version 1" in died.error
    assert not python_server.is_ready("c")
    assert python_server.is_live()
    assert python_server.is_ready("tool")
    assert python_server.infer("tool", 2).values == [2]
    wait_until(lambda: python_server.is_ready("c"), 5)
    assert python_server.infer("c", 1).values == [1]

    for _ in range(4):
        died = python_server.infer("c", -1)
        assert died.status == 503
    assert "ended with exit code 0" in python_server.index("c")["reason"]
    assert python_server.infer("tool", 2).values == [2]
    restarts = [
        line for line in python_server.output.splitlines() if "'c_0'" in line and "started again in" in line
    ]
    assert restarts


LOOP = """
class TritonPythonModel:
    def execute(self, requests):
        x = x_of(requests[0])[0]
        signal_file(f"{name}-{{x:.0f}}")
        for _ in range(500):
            if x < 3 and requests[0].is_cancelled():
                signal_file(f"{name}-flag-{{x:.0f}}", str(time.monotonic()))
                break
            if x == 3:
                break
            time.sleep(0.01)
        return [reply(x_of(request)) for request in requests]
"""


def http_request(name: str, *values: float) -> bytes:
    body = json.dumps(body_of(*values)).encode()
    return (
        f"POST /v2/models/{name}/infer HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode()
        + body
    )


def check_left(server: PythonServer, name: str, left_s: float) -> None:
    """After request 1 ran and 2 waited, both were left at ``left_s``: what is right then."""
    flagged_s = float(server.wait_signal(f"{name}-flag-1"))
    assert flagged_s - left_s < 0.1
    assert server.infer(name, 3).values == [3]
    assert time.monotonic() - left_s < 0.5
    assert not (server.signals / f"{name}-2").exists()
    # The one that ran was answered by its model all the same; nobody was there to take it.
    assert server.count("nv_inference_request_failure", name, "CANCELED") == 1
    assert server.count("nv_inference_request_success", name) == 2
    assert server.count("nv_inference_pending_request_count", name) == 0


def test_case_6_http_clients_leave(python_server):
    python_server.add("f1", LOOP.format(name="f1"))
    first, second = (socket.create_connection(("127.0.0.1", python_server.port)) for _ in range(2))
    first.sendall(http_request("f1", 1))
    python_server.wait_signal("f1-1")
    second.sendall(http_request("f1", 2))
    time.sleep(0.1)
    second.close()  # before it can come to run
    first.close()

    check_left(python_server, "f1", time.monotonic())


def test_case_6_grpc_calls_are_cancelled(python_server):
    python_server.add("f2", LOOP.format(name="f2"))
    with grpc_client.InferenceServerClient(python_server.grpc_address) as client:
        errors = []
        calls = [client.async_infer("f2", grpc_inputs(1), lambda result, error: errors.append(error))]
        python_server.wait_signal("f2-1")
        calls.append(client.async_infer("f2", grpc_inputs(2), lambda result, error: errors.append(error)))
        time.sleep(0.1)
        for call in reversed(calls):  # the one that waits first, so that it cannot come to run
            call.cancel()
        check_left(python_server, "f2", time.monotonic())
        wait_until(lambda: len(errors) == 2)
        assert all("CANCELLED" in str(error) for error in errors)


def test_case_6_grpc_deadlines(python_server, background):
    python_server.add("f3", LOOP.format(name="f3"))
    with grpc_client.InferenceServerClient(python_server.grpc_address) as client:
        start_s = time.monotonic()
        first = background(client.infer, "f3", grpc_inputs(1), client_timeout=0.4)
        python_server.wait_signal("f3-1")
        second = background(
            client.infer, "f3", grpc_inputs(2), client_timeout=start_s + 0.3 - time.monotonic()
        )
        for call in (first, second):
            assert "DEADLINE_EXCEEDED" in str(call.exception(5))
        check_left(python_server, "f3", start_s + 0.4)


def test_case_7_failed_reload(python_server, background):
    python_server.add("g", PLUS_ONE)
    stop = threading.Event()

    def loop() -> list[float]:
        values = []
        while not stop.wait(0.01):
            values += python_server.infer("g", 1).values
        return values

    looping = background(loop)
    broken = (
        PLUS_ONE
        + "    def initialize(self, args):\n        time.sleep(0.1)\n        raise ValueError('torn')\n"
    )
    for _ in range(2):
        loaded = python_server.write_and_load("g", broken)
        assert loaded.status == 400
        assert "ValueError: torn" in loaded.error
    assert python_server.write_and_load("g", PLUS_ONE.replace("+ 1", "+ 2")).status == 200
    assert python_server.infer("g", 1).values == [3]
    stop.set()
    values = looping.result(5)

    assert len(values) > 5
    assert set(values) <= {2, 3}
    for _ in range(2):
        loaded = python_server.write_and_load("g-new", broken)
        assert loaded.status == 400
        assert "ValueError: torn" in loaded.error


MARKS = """
class TritonPythonModel:
    def execute(self, requests):
        final = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
        for request in requests:
            sender = request.get_response_sender()
            mode = x_of(request)[0]
            if mode == 1:
                sender.send(word(1))
                sender.send(word(2), flags=final)
            elif mode == 2:
                sender.send(word(1))
                sender.send(word(2))
                sender.send(flags=final)
            else:
                sender.send(flags=final)
"""


@pytest.mark.parametrize("wants_empty", [False, True])
def test_case_9_decoupled_final_mark(python_server, wants_empty):
    python_server.add("i", MARKS, DECOUPLED)
    expected = {
        1: [(1, False), (1, True)],
        2: [(1, False), (1, False), *([(0, True)] if wants_empty else [])],
        3: [(0, True)] if wants_empty else [],
    }
    with GrpcStream(python_server) as stream:
        for mode, answers in expected.items():
            stream.ask("i", mode, request_id=f"r{mode}", enable_empty_final_response=wants_empty)
            for num_outputs, is_final in answers:
                message = stream.take_message()
                assert message.id == f"r{mode}"
                assert len(message.outputs) == num_outputs
                assert message.parameters["triton_final_response"].bool_param == is_final
        assert not stream.has_more(0.05)


def test_case_11_error_replies_count_as_failures(python_server, background):
    python_server.add(
        "k",
        """
        class TritonPythonModel:
            def execute(self, requests):
                signal_file("k", str(len(requests)))
                time.sleep(0.2)
                responses = []
                for request in requests:
                    x = x_of(request)
                    kinds = {1: pb_utils.TritonError("x"), 2: pb_utils.TritonError("y", pb_utils.TritonError.INVALID_ARG)}
                    error = kinds.get(int(x[0][0]))
                    responses.append(reply(x) if error is None else pb_utils.InferenceResponse(error=error))
                return responses
        """,
        "max_batch_size: 3 dynamic_batching { max_queue_delay_microseconds: 200000 preferred_batch_size: 3 }",
    )
    one, two, three = [background(timed, python_server, "k", number) for number in (1, 2, 3)]
    one, two, three = (answer.result(5).reply for answer in (one, two, three))

    assert python_server.wait_signal("k").split() == ["3"]
    assert (one.status, one.error) == (500, "x")
    assert (two.status, two.error) == (400, "y")
    assert three.values == [3]
    assert python_server.count("nv_inference_request_failure", "k", "BACKEND") == 2
    assert python_server.count("nv_inference_request_success", "k") == 1
    (stats,) = python_server.request("GET", "/v2/models/k/stats").body["model_stats"]
    assert stats["inference_stats"]["success"]["count"] == 1
    assert stats["inference_stats"]["fail"]["count"] == 2


def test_case_12_async_execute_overlaps(python_server, background):
    python_server.add("slow", SLEEP.format(name="slow", seconds=0.3), instances(4))
    python_server.add(
        "front",
        """
        class TritonPythonModel:
            async def execute(self, requests):
                responses = []
                for request in requests:
                    if x_of(request)[0] < 0:
                        raise ValueError("negative")
                    call = pb_utils.InferenceRequest(
                        model_name="slow", requested_output_names=["Y"], inputs=request.inputs()
                    )
                    responses.append(pass_on(await call.async_exec()))
                return responses
        """,
    )
    start_s = time.monotonic()
    answers = [background(python_server.infer, "front", value) for value in (1, 2, -1, 3, 4)]
    replies = [answer.result(5) for answer in answers]

    assert time.monotonic() - start_s < 0.3 + 0.25
    assert [reply.values[0] for reply in replies if reply.status == 200] == [1, 2, 3, 4]
    assert "ValueError: negative" in replies[2].error


def test_case_13_drain_on_sigterm(tmp_path, background):
    with running(PythonServer(tmp_path, "--exit-timeout-secs=10")) as server:
        finalize = "    def finalize(self): signal_file('{name}-finalized')\n"
        server.add("a", PLUS_ONE + finalize.format(name="a"))
        server.add(
            "b",
            "class TritonPythonModel:\n"
            "    def execute(self, requests):\n"
            "        signal_file('b')\n"
            "        time.sleep(0.6)\n"
            "        return [pass_on(ask('a', x_of(request))) for request in requests]\n"
            + finalize.format(name="b"),
        )
        workers = server.workers()
        answer = background(server.infer, "b", 1)
        server.wait_signal("b")
        server.popen.send_signal(signal.SIGTERM)
        time.sleep(0.1)
        ready = later = None
        try:
            ready = server.request("GET", "/v2/health/ready").status
            later = server.infer("a", 1)
        except OSError:  # the port is closed
            pass
        assert ready != 200
        if later is not None and later.status != 200:
            assert later.status == 503
            assert "unknown model" not in later.error
        assert answer.result(5).values == [2]
        assert server.exit_status(5) == 0
        for name in ("a", "b"):
            assert (server.signals / f"{name}-finalized").exists()
        assert not any(is_running(pid) for pid in workers)
