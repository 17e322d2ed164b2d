"""Python models and their surroundings at their worst: killed, stuck, lying, leaking, calling each other in circles."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest
from tritonclient.utils import InferenceServerException

from e2e_server import wait_until
from ensemble_models import chain
from python_models import (
    CALLER,
    DECOUPLED,
    PLUS_ONE,
    TOOL,
    GrpcStream,
    PythonServer,
    Reply,
    body_of,
    calls,
    instances,
    is_running,
)
from serve_process import running

pytestmark = pytest.mark.slow

SLEEPER = """
class TritonPythonModel:
    def execute(self, requests):
        signal_file("{name}")
        while not all(request.is_cancelled() for request in requests) and x_of(requests[0])[0] > 0:
            time.sleep(0.005)
        signal_file("{name}-ended")
        return [reply(x_of(request)) for request in requests]
"""
"""Goes on for as long as its input is positive and nobody cancels."""
STUCK = """
import ctypes
class TritonPythonModel:
    def execute(self, requests):
        if x_of(requests[0])[0] > 0:
            signal_file("{name}")
            ctypes.PyDLL(None).sleep(1000)  # with the interpreter's lock: no other thread runs either
        return [reply(x_of(request)) for request in requests]
"""
REPEAT = """
class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            threading.Thread(target=self.send, args=(request.get_response_sender(), x_of(request), request)).start()
    def send(self, sender, x, request):
        for value in x:
            while value < 0 and not request.is_cancelled():
                time.sleep(0.005)
            sender.send(word(value))
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
        signal_file("sent")
"""
"""Sends its input value by value, and waits at a negative one until it is cancelled."""


@pytest.fixture
def background():
    with ThreadPoolExecutor(64) as pool:
        yield pool.submit


def worker_of(server: PythonServer, name: str, code: str, more: str = "") -> int:
    """Add a model; return its process."""
    before = server.workers()
    server.add(name, code, more)
    (pid,) = server.workers() - before
    return pid


def started(server: PythonServer, background, name: str, *values: float, sign: str = "") -> Future[Reply]:
    answer = background(server.infer, name, *values)
    server.wait_signal(sign or name)
    return answer


# Killed


def test_killed_in_the_middle_of_a_request(python_server, background):
    pid = worker_of(python_server, "k1", SLEEPER.format(name="k1"))
    answer = started(python_server, background, "k1", 1)
    os.kill(pid, signal.SIGKILL)

    reply = answer.result(1)

    assert reply.status == 503
    assert reply.error == (
        f"model 'k1' version 1: the process of instance 'k1_0' (pid {pid}) was killed by signal 9 (SIGKILL); "
        "the request was lost and may be sent again"
    )
    assert python_server.infer("k1", -1).values == [-1]


def test_the_callee_killed_in_the_middle_of_a_call(python_server, background):
    pid = worker_of(python_server, "k2", SLEEPER.format(name="k2"))
    caller = worker_of(python_server, "k2c", CALLER, calls("k2"))
    answer = started(python_server, background, "k2c", 1, sign="k2")
    os.kill(pid, signal.SIGKILL)

    reply = answer.result(1)

    assert reply.status == 503
    assert "model 'k2' version 1" in reply.error
    assert "was killed by signal 9" in reply.error
    assert python_server.infer("k2c", -1).values == [-1]
    assert caller in python_server.workers()


def test_the_caller_killed_in_the_middle_of_a_call_cancels_it(python_server, background):
    callee = worker_of(python_server, "k3", SLEEPER.format(name="k3"))
    pid = worker_of(python_server, "k3c", CALLER, calls("k3"))
    answer = started(python_server, background, "k3c", 1, sign="k3")
    os.kill(pid, signal.SIGKILL)

    assert "model 'k3c' version 1" in answer.result(1).error
    python_server.wait_signal("k3-ended", 1)
    assert python_server.infer("k3c", -1).values == [-1]
    assert callee in python_server.workers()


def test_killed_in_the_middle_of_a_grpc_stream(python_server):
    pid = worker_of(python_server, "k4", REPEAT, DECOUPLED)
    with GrpcStream(python_server) as stream:
        stream.ask("k4", 1, 2, -1)
        assert [stream.take(), stream.take()] == [[1], [2]]
        os.kill(pid, signal.SIGKILL)
        error = stream.take(1)
        assert isinstance(error, InferenceServerException)
        assert "was killed by signal 9" in str(error)

        stream.ask("k4", 3)
        assert stream.take() == [3]
        assert not stream.has_more(0.05)


def test_killed_in_the_middle_of_events(python_server):
    pid = worker_of(python_server, "k5", REPEAT, DECOUPLED)
    client = http.client.HTTPConnection("127.0.0.1", python_server.port, timeout=10)
    client.request("POST", "/v2/models/k5/generate_stream", json.dumps({"X": [1, -1]}))
    answer = client.getresponse()
    assert json.loads(answer.readline().removeprefix(b"data: "))["Y"] == 1
    os.kill(pid, signal.SIGKILL)
    rest = [line for line in answer.read().split(b"\n") if line]
    client.close()

    (event,) = rest
    assert "was killed by signal 9" in json.loads(event.removeprefix(b"data: "))["error"]


@pytest.mark.parametrize("code", [PLUS_ONE, STUCK])
def test_nothing_is_left_of_a_killed_server(tmp_path, background, code):
    with running(PythonServer(tmp_path)) as server:
        server.add("k6", code.replace("{name}", "k6"), instances(2))
        if code is STUCK:
            answers = [background(server.infer, "k6", 1) for _ in range(2)]
            wait_until(lambda: server.wait_signal("k6").count("\n") == 2)
        workers = server.workers()
        assert len(workers) == 2
        for pid in {*workers, server.popen.pid}:
            assert "/dev/shm" not in Path(f"/proc/{pid}/maps").read_text()
        server.popen.kill()
        wait_until(lambda: not any(is_running(pid) for pid in workers), 1)
        if code is STUCK:
            for answer in answers:
                assert isinstance(answer.exception(5), http.client.HTTPException | OSError)


def test_five_deaths_are_followed_by_a_pause_that_the_index_explains(python_server):
    python_server.add("k7", TOOL_EXIT)
    for _ in range(5):
        answer = python_server.infer("k7", -1)
        assert answer.status == 503
        if "is not ready" in answer.error:
            break
        time.sleep(0.05)
    wait_until(lambda: not python_server.is_ready("k7"))

    entry = python_server.index("k7")
    assert "k7_0" in entry["reason"]
    assert "ended with exit code 3" in entry["reason"]
    assert python_server.is_live()
    assert python_server.infer("tool", 1).values == [1]


TOOL_EXIT = """
class TritonPythonModel:
    def execute(self, requests):
        if x_of(requests[0])[0] < 0:
            os._exit(3)
        return [reply(x_of(request)) for request in requests]
"""

# Exceptions in every method of its life

BODY = "    def execute(self, requests):\n        return [reply(x_of(request)) for request in requests]\n"
HEADS = {
    "import": ("raise ValueError('é')", "ValueError: é\n\nAt:\n"),
    "syntax": ("def x(:", "SyntaxError: invalid syntax (model.py"),
    "import_exit": ("sys.exit(3)", "SystemExit: 3\n"),
    "import_end": ("os._exit(4)", "ended with exit code 4 while it initialised"),
    "import_crash": (
        "os.kill(os.getpid(), signal.SIGSEGV)",
        "was killed by signal 11 (SIGSEGV) while it initialised",
    ),
    "no_class": ("class Model: pass", "has no class TritonPythonModel; its classes are 'Model'"),
}
METHODS = {
    "init": ("def __init__(self): raise KeyError('k')", "KeyError: 'k'\n"),
    "complete": (
        "@staticmethod\n    def auto_complete_config(config): raise RuntimeError('c')",
        "RuntimeError: c\n",
    ),
    "complete_what": (
        "@staticmethod\n    def auto_complete_config(config): return 5",
        "must return a valid pb.ModelConfig object.",
    ),
    "initialize": (
        "def initialize(self, args): raise pb_utils.TritonModelException('no weights')",
        "TritonModelException: no weights\n",
    ),
    "initialize_exit": ("def initialize(self, args): sys.exit('bye')", "SystemExit: bye\n"),
    "initialize_end": (
        "def initialize(self, args): os._exit(9)",
        "ended with exit code 9 while it initialised",
    ),
    "initialize_ask": (
        "def initialize(self, args): ask('tool', [1])",
        "BLS is only supported during the 'execute' function.",
    ),
    "no_execute": ("execute = None", "does not implement `execute` method"),
}


@pytest.mark.parametrize("name", [*HEADS, *METHODS])
def test_a_model_that_fails_to_load_says_why(python_server, name):
    if name in HEADS:
        head, text = HEADS[name]
        code = f"{head}\n" if name == "no_class" else f"{head}\nclass TritonPythonModel:\n{BODY}"
    else:
        method, text = METHODS[name]
        code = f"class TritonPythonModel:\n{BODY}    {method}\n"

    loaded = python_server.write_and_load(name, code)

    assert loaded.status == 400
    assert text in loaded.error
    assert text in python_server.index(name)["reason"]
    assert python_server.infer(name, 1).status == 404


@pytest.mark.parametrize("end", ["raise ValueError('f')", "sys.exit(4)", "os._exit(4)", "time.sleep(0.2)"])
def test_whatever_finalize_does_the_model_is_unloaded(python_server, end):
    python_server.add("f1", f"class TritonPythonModel:\n{BODY}    def finalize(self): {end}\n")
    assert python_server.infer("f1", 1).values == [1]
    python_server.unload("f1")
    python_server.wait_unloaded("f1")

    assert python_server.index("f1")["reason"] == "unloaded"


@pytest.mark.parametrize(
    "say", ["raise ValueError('r')", "return 5", "return False", "sys.exit(1)", "return True"]
)
def test_only_an_is_ready_that_says_true_is_ready(python_server, say):
    python_server.add("r1", f"class TritonPythonModel:\n{BODY}    def is_ready(self): {say}\n")

    assert python_server.is_ready("r1") == (say == "return True")
    assert python_server.infer("r1", 1).values == [1]


# What execute does

ERRORS = {
    "raise ValueError('boom')": "ValueError: boom\n\nAt:\n",
    "sys.exit(3)": "SystemExit: 3\n",
    "raise KeyboardInterrupt": "KeyboardInterrupt",
    "class E(Exception):\n    def __str__(self): return 1 / 0\nraise E": "E: <its text cannot be had: ZeroDivisionError>",
    "raise ValueError('x' * 1_000_000)": "ValueError: xxx",
    "raise ValueError('\\udcff')": "ValueError: \\udcff",
    "def f(): f()\nf()": "RecursionError",
    "answer = None": "dropped the response sender of a request without a final response",
    "answer = 5": "Expected a list in the execute return, found type '<class 'int'>'",
    "answer = []": "InferenceRequest(s) size is:1, and InferenceResponse(s) size is:0",
    "answer = [answer] * 2": "InferenceRequest(s) size is:1, and InferenceResponse(s) size is:2",
    "answer = [5]": "Expected an 'InferenceResponse' object in the execute function return list",
    "answer = reply(x.astype(np.complex64))": "dtype is not supported. Tensor 'Y' has dtype 'complex64'",
    "answer = reply(np.array(['2020-01-01'], 'M8[D]'))": "has dtype 'datetime64[D]'",
    "answer = reply(np.zeros(3, 'i4,f4'))": "NumPy dtype is not supported",
    "pb_utils.Tensor('Y', [1])": "numpy_array must be a numpy.ndarray, found list",
    "pb_utils.InferenceResponse([], parameters={'a': object()})": "Expect parameters values to have type bool/int/str",
    "pb_utils.TritonError('x', 77)": "code must be one such as TritonError.INTERNAL, found 77",
    "import resource\nresource.setrlimit(resource.RLIMIT_AS, (2 << 30, -1))\n"
    "try: bytearray(4 << 30)\nfinally: resource.setrlimit(resource.RLIMIT_AS, (-1, -1))": "MemoryError",
}
ANSWERS = {
    "answer = reply(x.astype('>f4'))": [1, 2],
    "answer = reply(np.arange(6, dtype=np.float32)[::2])": [0, 2, 4],
    "answer = reply(np.broadcast_to(np.float32(3), (4,)))": [3, 3, 3, 3],
    "answer = reply(np.float32(3))": [3],
    "answer = reply(x, 'Y'); x += 1; del x; gc.collect()": [2, 3],
    "for _ in range(5000): print('y' * 200)": [1, 2],
    "os.write(1, os.urandom(100_000))": [1, 2],
    "sys.stdout = sys.stderr = None": [1, 2],
    "os.chdir('/'); sys.modules.pop('json', None)": [1, 2],
    "os.fork() or os._exit(0)": [1, 2],
    "os.fork()": [1, 2],
    "if os.fork() == 0:\n    try: ask('tool', [1])\n    finally: os._exit(0)": [1, 2],
    "subprocess.Popen(['sleep', '1000'])": [1, 2],
    "import multiprocessing\npool = multiprocessing.get_context('fork').Pool(2)\npool.map(abs, [1])\npool.terminate()": [
        1,
        2,
    ],
    "for _ in range(20): threading.Thread(target=time.sleep, args=(1000,)).start()": [1, 2],
    "gc.disable(); asyncio.run(asyncio.sleep(0)); asyncio.set_event_loop(None)": [1, 2],
}


@pytest.mark.parametrize("code", ERRORS)
def test_wrong_doings_of_execute_are_the_requests_error(python_server, code):
    pids = python_server.workers()
    answer = python_server.infer("tool", 1, 2, parameters={"code": code})

    assert answer.status == 500
    assert ERRORS[code] in answer.error
    assert python_server.workers() == pids


def test_odd_doings_of_execute_hurt_nobody(python_server):
    python_server.add("odd", TOOL)
    for code in [*ANSWERS, *ANSWERS]:
        answer = python_server.infer("odd", 1, 2, parameters={"code": code})
        assert answer.status == 200, (code, answer)
        assert answer.values == ANSWERS[code], code


def test_memory_that_cannot_be_had_is_the_requests_error(python_server):
    python_server.add("m1", TOOL)
    code = (
        "import resource\n"
        "resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))\n"
        "answer = reply(np.zeros(200_000_000, np.float32))"
    )
    answer = python_server.infer("m1", 1, parameters={"code": code})

    assert answer.status == 500
    assert "cannot get 805306368 bytes of memory to share between processes" in answer.error
    assert python_server.infer("m1", 1).values == [1]


ENDS = {
    "os._exit(5)": "ended with exit code 5",
    "os.abort()": "was killed by signal 6 (SIGABRT)",
    "import ctypes; ctypes.string_at(0)": "was killed by signal 11 (SIGSEGV)",
    "os.closerange(3, 1000)": "ended with exit code",
    "os.execv('/bin/sleep', ['sleep', '3'])": "closed its connection",
    "signal.signal(signal.SIGTERM, signal.SIG_DFL); signal.raise_signal(signal.SIGTERM)": "was killed by signal 15 (SIGTERM)",
}


@pytest.mark.parametrize("code", ENDS)
def test_the_end_of_a_process_is_told_and_repaired(python_server, code):
    python_server.add("m2", TOOL)
    answer = python_server.infer("m2", 1, parameters={"code": code})

    assert answer.status == 503
    assert ENDS[code] in answer.error
    assert python_server.infer("m2", 1).values == [1]


@pytest.mark.parametrize("fd", range(3, 9))
def test_a_descriptor_that_the_model_closes_never_hangs_a_request(python_server, fd):
    python_server.add("m3", TOOL)
    code = f"os.closerange({fd}, {fd + 1})"
    assert python_server.infer("m3", 1, parameters={"code": code}, timeout_s=5).status in {200, 503}
    large = "answer = reply(np.ones(10_000, np.float32))"
    assert python_server.infer("m3", 1, parameters={"code": large}, timeout_s=5).status in {200, 500, 503}
    wait_until(lambda: python_server.infer("m3", 1, timeout_s=5).status == 200)


# Stuck


def send(server: PythonServer, name: str, value: float) -> socket.socket:
    body = json.dumps(body_of(value)).encode()
    client = socket.create_connection(("127.0.0.1", server.port))
    head = f"POST /v2/models/{name}/infer HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
    client.sendall(head.encode() + body)
    return client


def test_stuck_models_can_be_left_replaced_and_unloaded(python_server):
    stuck = worker_of(python_server, "n1", STUCK.format(name="n1"))
    python_server.add("n0", HANGING_THREAD, THREAD)
    for name in ("n0", "n1"):
        running_one = send(python_server, name, 1)
        python_server.wait_signal(name)
        waiting_one = send(python_server, name, 1)
        wait_until(lambda name=name: python_server.count("nv_inference_pending_request_count", name) == 1)
        waiting_one.close()
        wait_until(
            lambda name=name: python_server.count("nv_inference_request_failure", name, "CANCELED") == 1, 1
        )
        running_one.close()

        assert python_server.write_and_load(name, PLUS_ONE).status == 200
        assert python_server.infer(name, 1).values == [2]
    wait_until(lambda: stuck not in python_server.workers(), 7)
    assert "is stuck in the model's code" not in python_server.index("n0").get("reason", "")


HANGING_THREAD = """
class TritonPythonModel:
    def execute(self, requests):
        signal_file("n0")
        threading.Event().wait(30)
"""


def test_a_member_that_is_stuck_on_an_ensembles_thread_can_be_left_and_unloaded(python_server):
    """No hand-over to the member's own thread is made there, whose end would be waited for."""
    python_server.add("n5", HANGING_THREAD.replace("n0", "n5"), THREAD)
    python_server.add("n6", PLUS_ONE, THREAD)
    folder = python_server.root / "n7"
    (folder / "1").mkdir(parents=True)
    (folder / "config.pbtxt").write_text(chain("n5", "n6"))
    assert python_server.load("n7").status == 200
    running_one = send(python_server, "n7", 1)
    python_server.wait_signal("n5")
    late = python_server.infer("n7", 1, parameters={"bireme_deadline_us": 100_000})
    assert (late.status, "deadline has passed" in late.error) == (503, True)
    assert python_server.infer("n6", 1).values == [2]
    running_one.close()

    for name in ("n7", "n5"):
        python_server.unload(name)
    python_server.wait_unloaded("n7", "n5", timeout_s=20)
    python_server.add("n5", PLUS_ONE, THREAD)
    assert python_server.load("n7").status == 200
    assert python_server.infer("n7", 1).values == [3]
    python_server.unload("n7")


THREAD = 'parameters { key: "EXECUTION_MODE" value { string_value: "thread" } }'


def test_a_stop_ends_what_is_stuck_and_closes_the_rest_in_order(tmp_path, background):
    with running(PythonServer(tmp_path, "--exit-timeout-secs=1")) as server:
        server.add("n2", STUCK.format(name="n2"))
        server.add("n3", PLUS_ONE + "    def finalize(self): signal_file('n3-finalized')\n")
        server.add("n4", PLUS_ONE + "    def finalize(self): time.sleep(1000)\n")
        answer = started(server, background, "n2", 1)
        workers = server.workers()
        start_s = time.monotonic()
        server.popen.terminate()

        assert answer.result(5).status == 503
        server.exit_status(5)
        assert time.monotonic() - start_s < 3.5
        assert (server.signals / "n3-finalized").exists()
        wait_until(lambda: not any(is_running(pid) for pid in workers), 1)


# Load and unload


def test_rounds_of_load_and_unload_leave_nothing(python_server):
    python_server.write("o1", PLUS_ONE)

    def rounds(count: int) -> None:
        for _ in range(count):
            assert python_server.load("o1").status == 200
            assert python_server.infer("o1", *range(3000)).status == 200
            python_server.unload("o1")
        python_server.wait_unloaded("o1")

    rounds(3)
    before = python_server.num_descriptors(), python_server.memory_mb()
    rounds(6)

    assert python_server.num_descriptors() <= before[0] + 1
    assert python_server.memory_mb() < before[1] + 5


# Asynchronous models, and those in the server's own process

ASYNC = """
class TritonPythonModel:
    async def execute(self, requests):
        x = x_of(requests[0])
        if x[0] == 1: raise ValueError("boom")
        if x[0] == 2: sys.exit(3)
        if x[0] == 3: return 5
        if x[0] == 4:
            signal_file("async")
            while not requests[0].is_cancelled():
                await asyncio.sleep(0.005)
            signal_file("async-ended")
        if x[0] == 5: asyncio.get_running_loop().stop()
        if x[0] == 6: asyncio.current_task().cancel(); await asyncio.sleep(1)
        if x[0] == 7: [asyncio.ensure_future(asyncio.sleep(1000)) for _ in range(10)]
        if x[0] == 8: os._exit(3)
        return [reply(x_of(request)) for request in requests]
"""


def test_what_asynchronous_models_do_wrong(python_server):
    python_server.add("p1", ASYNC)
    for value, text in (
        (1, "ValueError: boom"),
        (2, "SystemExit: 3"),
        (3, "Expected a list"),
        (6, "CancelledError"),
    ):
        answer = python_server.infer("p1", value)
        assert answer.status == 500
        assert text in answer.error
    client = send(python_server, "p1", 4)
    python_server.wait_signal("async")
    assert python_server.infer("p1", 0).values == [0]
    client.close()
    python_server.wait_signal("async-ended", 1)
    for value in (5, 7, 0):
        assert python_server.infer("p1", value).values == [value]
    assert "ended with exit code 3" in python_server.infer("p1", 8).error
    assert python_server.infer("p1", 0).values == [0]


def test_what_models_in_the_servers_process_do_wrong(python_server):
    for name, more in (("q1", ""), ("q2", instances(2))):
        python_server.add(name, TOOL, THREAD + more)
        for code in (
            "raise ValueError('boom')",
            "sys.exit(3)",
            "raise KeyboardInterrupt",
            "answer = 5",
            "answer = None",
        ):
            assert python_server.infer(name, 1, parameters={"code": code}).status == 500, code
        assert python_server.infer(name, 1).values == [1]
    for method in ("__init__(self)", "initialize(self, args)"):
        code = f"class TritonPythonModel:\n{BODY}    def {method}: sys.exit('bye')\n"
        loaded = python_server.write_and_load("q3", code, THREAD)
        assert loaded.status == 400
        assert "SystemExit: bye" in loaded.error
