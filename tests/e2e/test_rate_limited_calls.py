"""The rate limiter with models that call each other, in processes and threads."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import pytest

from python_models import CALLER, PythonServer, calls
from serve_process import running

NEEDS = 'instance_group { kind: KIND_CPU count: 2 rate_limiter { resources { name: "R" count: 1 } } }'
THREAD = 'parameters { key: "EXECUTION_MODE" value { string_value: "thread" } }'
ALONE = """
class TritonPythonModel:
    def execute(self, requests):
        begin = time.monotonic()
        time.sleep(0.02)
        signal_file("times", f"{begin} {time.monotonic()}")
        return [reply(x_of(request)) for request in requests]
"""
PLUS_ONE = """
class TritonPythonModel:
    def execute(self, requests):
        time.sleep(0.002)
        return [reply(x_of(request) + 1) for request in requests]
"""


@pytest.fixture(scope="module")
def limited(tmp_path_factory):
    with running(PythonServer(tmp_path_factory.mktemp("limited"), "--rate-limit=execution_count")) as server:
        yield server


@pytest.mark.slow
@pytest.mark.parametrize("modes", [("", ""), (THREAD, ""), ("", THREAD), (THREAD, THREAD)])
def test_callers_and_callees_that_need_the_same_never_stand_still(limited, modes):
    limited.add("callee", PLUS_ONE, NEEDS + modes[1])
    limited.add("between", CALLER, NEEDS + modes[0] + calls("callee"))
    limited.add("caller", CALLER, NEEDS + modes[0] + calls("between"))
    try:
        with ThreadPoolExecutor(8) as clients:
            names = ["caller", "between", "callee"] * 8
            answers = list(clients.map(lambda name: limited.infer(name, 1, timeout_s=10).values, names))

        assert answers == [[2]] * 24
    finally:
        limited.unload_all()


@pytest.mark.slow
def test_executions_that_need_the_same_never_overlap(limited):
    limited.write("first", ALONE, NEEDS)
    limited.write("second", ALONE, NEEDS)
    for name in ("first", "second"):
        assert limited.load(name).status == 200
    with ThreadPoolExecutor(8) as clients:
        list(clients.map(lambda name: limited.infer(name, 0).values, ["first", "second"] * 5))

    times = sorted(tuple(map(float, line.split())) for line in limited.wait_signal("times").splitlines())
    assert len(times) == 10
    assert all(end <= begin for (_, end), (begin, _) in pairwise(times))
