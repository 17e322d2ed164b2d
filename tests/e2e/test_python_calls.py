"""Python models that call each other: in circles, in chains, while their callees fail, leave or are replaced."""

from __future__ import annotations

import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from e2e_server import wait_until
from python_models import CALLER, DECOUPLED, PLUS_ONE, calls, instances

pytestmark = pytest.mark.slow

DESCEND = """
class TritonPythonModel:
    def initialize(self, args):
        config = json.loads(args["model_config"])
        self.callee = config["parameters"]["callee"]["string_value"]
    def execute(self, requests):
        responses = []
        for request in requests:
            x = x_of(request)
            responses.append(pass_on(ask(self.callee, x - 1)) if x[0] > 0 else reply(x))
        return responses
"""
"""Calls its callee with one less, until it is given 0."""


@pytest.fixture
def background():
    with ThreadPoolExecutor(64) as pool:
        yield pool.submit


def test_ten_models_in_a_chain(python_server):
    python_server.add("c0", PLUS_ONE)
    for number in range(1, 10):
        python_server.add(
            f"c{number}",
            CALLER.replace(
                "pass_on(ask(self.callee, x_of(request)))", "pass_on(ask(self.callee, x_of(request) + 1))"
            ),
            calls(f"c{number - 1}"),
        )

    assert python_server.infer("c9", 0).values == [10]


def test_a_model_that_calls_itself(python_server):
    python_server.add("d1", DESCEND, calls("d1"))
    python_server.add("d2", DESCEND, calls("d2") + instances(2))

    assert python_server.infer("d1", 0).values == [0]
    assert python_server.infer("d2", 1).values == [0]
    for name, depth in (("d1", 1), ("d1", 5), ("d2", 2)):
        refused = python_server.infer(name, depth, timeout_s=5)
        assert refused.status == 500
        assert f"a call to model '{name}' would never be answered: all of its instances" in refused.error
    assert python_server.infer("d1", 0).values == [0]


def test_two_models_that_call_each_other(python_server):
    python_server.add("e1", DESCEND, calls("e2"))
    python_server.add("e2", DESCEND, calls("e1"))

    assert python_server.infer("e1", 1).values == [0]
    refused = python_server.infer("e1", 2, timeout_s=5)
    assert refused.status == 500
    assert "a call to model 'e1' would never be answered" in refused.error


@pytest.mark.parametrize("count", [1, 2])
def test_models_that_call_each_other_under_load(python_server, background, count):
    for name, callee in (("g1", "g2"), ("g2", "g1")):
        python_server.add(name, DESCEND, calls(callee) + instances(count))
    depths = [depth for depth in range(4) for _ in range(30)]
    answers = [
        background(python_server.infer, f"g{1 + n % 2}", depth, timeout_s=10)
        for n, depth in enumerate(depths)
    ]

    replies = [answer.result(15) for answer in answers]
    for depth, answer in zip(depths, replies, strict=True):
        if depth == 0:
            assert answer.values == [0]
        elif answer.status != 200:
            assert "would never be answered" in answer.error
    assert python_server.infer("g1", 1).values == [0]


def test_callees_that_cannot_answer(python_server):
    python_server.add("h1", PLUS_ONE)
    python_server.add(
        "h2", "class TritonPythonModel:\n    def execute(self, requests): raise ValueError('boom')\n"
    )
    python_server.add("h3", "class TritonPythonModel:\n    def execute(self, requests): pass\n", DECOUPLED)
    python_server.write("h4", "raise ValueError\n")
    assert python_server.load("h4").status == 400
    python_server.unload("h1")
    python_server.wait_unloaded("h1")
    texts = {
        "h0": "unknown model: 'h0'",
        "h1": "unloaded",
        "h2": "ValueError: boom",
        "h3": "please use 'decoupled=True'",
        "h4": "UNAVAILABLE",
    }
    for callee, text in texts.items():
        code = f"answer = pass_on(ask('{callee}', x))"
        answer = python_server.infer("tool", 1, parameters={"code": code})
        assert answer.status == 500, callee
        assert text.lower() in answer.error.lower(), callee
    code = "answer = pass_on(pb_utils.InferenceRequest(model_name='h2', requested_output_names=['Q'], inputs=[]).exec())"
    assert python_server.infer("tool", 1, parameters={"code": code}).status == 500


def test_a_callee_is_replaced_while_it_is_called(python_server, background):
    python_server.add("i1", PLUS_ONE)
    python_server.add("i2", CALLER, calls("i1") + instances(2))
    stop = False

    def call() -> list[list[float]]:
        values = []
        while not stop:
            values.append(python_server.infer("i2", 1).values)
        return values

    callers = [background(call) for _ in range(4)]
    for number in range(3):
        python_server.write("i1", PLUS_ONE.replace("+ 1", f"+ {2 + number}"))
        assert python_server.load("i1").status == 200
    stop = True
    values = [value for caller in callers for value in caller.result(10)]

    assert {*map(tuple, values)} <= {(2,), (3,), (4,), (5,)}
    assert python_server.infer("i2", 1).values == [5]


def test_a_callee_goes_and_comes_back(python_server, background):
    python_server.add("j1", PLUS_ONE)
    python_server.add("j2", CALLER, calls("j1"))
    stop = False

    def call() -> set[int]:
        statuses = set()
        while not stop:
            statuses.add(python_server.infer("j2", 1).status)
        return statuses

    callers = [background(call) for _ in range(4)]
    for _ in range(2):
        python_server.unload("j1")
        time.sleep(0.05)
        assert python_server.load("j1").status == 200
    stop = True
    for caller in callers:
        assert caller.result(10) <= {200, 500}
    assert python_server.infer("j2", 1).values == [2]


def test_a_callee_of_which_one_process_dies(python_server, background):
    others = python_server.workers()
    python_server.add("k1", PLUS_ONE, instances(2))
    victim, _ = python_server.workers() - others
    python_server.add("k2", CALLER, calls("k1") + instances(2))
    callers = python_server.workers() - others
    answers = [background(python_server.infer, "k2", 1) for _ in range(60)]
    os.kill(victim, signal.SIGKILL)
    for answer in answers:
        assert answer.result(10).status in {200, 503}
    wait_until(lambda: len(python_server.workers() & callers) == 3)


def test_calls_of_threads_that_outlive_execute(python_server):
    code = (
        "def late():\n"
        "    time.sleep(0.1)\n"
        "    signal_file('late', str(ask('l1', [1]).output_tensors()[0].as_numpy().tolist()))\n"
        "threads = [threading.Thread(target=late) for _ in range(10)]\n"
        "for thread in threads: thread.start()\n"
    )
    python_server.add("l1", PLUS_ONE)
    assert python_server.infer("tool", 1, parameters={"code": code}).values == [1]

    wait_until(lambda: python_server.wait_signal("late").count("[2.0]") == 10)


def test_calls_of_many_threads_within_execute(python_server):
    code = (
        "from concurrent.futures import ThreadPoolExecutor\n"
        "with ThreadPoolExecutor(16) as pool:\n"
        "    got = list(pool.map(lambda n: ask('m1', np.full(n * 100, n)).output_tensors()[0].as_numpy(), range(1, 60)))\n"
        "assert all((a == n).all() and a.size == n * 100 for n, a in enumerate(got, 1)), got\n"
    )
    python_server.add("m1", PLUS_ONE.replace("+ 1", ""), instances(2))
    assert python_server.infer("tool", 1, parameters={"code": code}).values == [1]


def test_streams_that_are_called(python_server):
    python_server.add("n1", STREAM, DECOUPLED)
    for code, expected in STREAM_CALLS.items():
        answer = python_server.infer("tool", 1, 2, 3, parameters={"code": HEAD_OF_CALL + code})
        assert answer.status == 200, (code, answer)
        assert answer.values == expected, code


STREAM = """
class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            for value in x_of(request):
                if value < 0:
                    os._exit(1)
                sender.send(word(value))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
HEAD_OF_CALL = """
def take(responses):
    return [v for r in responses if not r.has_error() and r.output_tensors() for v in r.output_tensors()[0].as_numpy()]
"""
STREAM_CALLS = {
    "answer = reply(np.array(take(ask('n1', x, decoupled=True))))": [1, 2, 3],
    "answer = reply(np.array(take([next(iter(ask('n1', x, decoupled=True)))])))": [1],
    "answer = reply(np.array([float([*ask('n1', [1, -1], decoupled=True)][-1].has_error())]))": [1],
    "answer = reply(np.array(take(ask('n1', x, decoupled=True))))\n": [1, 2, 3],
    "answer = reply(np.array(take(ask('n1', [], decoupled=True))))\n": [],
}
