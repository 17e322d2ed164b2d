"""Python models that run on the server's loop: what they can do, and what they are kept from."""

import threading

import numpy as np
import pytest

from bireme.types import BackendFailed, Internal
from thread_models import DECOUPLED, Ask, add_thread_model, calling, execute, serve

X = np.array([1, 2], np.float32)


def add_inline_model(root, body, **settings):
    """Write an inline model called ``m``."""
    add_thread_model(root, "m", body, **settings)
    config = root / "m" / "config.pbtxt"
    config.write_text(config.read_text().replace('"thread"', '"inline"'))


def serve_one(root, body, scenario, **settings):
    """Run ``scenario`` on a server with an inline model called ``m``."""
    add_inline_model(root, body, **settings)
    serve(root, scenario)


def test_it_runs_on_the_loop_thread(tmp_path):
    body = execute("np.array([threading.get_ident()], np.float64).view(np.float32)")

    async def scenario(server):
        result = await server.ainfer("m", {"X": X})
        assert result["Y"].view(np.float64) == [threading.get_ident()]

    serve_one(tmp_path, body, scenario)


def test_answers_errors_and_statistics_are_those_of_any_model(tmp_path):
    body = execute("1 / 0 if x[0] < 0 else x + 1")

    async def scenario(server):
        assert (await server.ainfer("m", {"X": X}))["Y"].tolist() == [2, 3]
        with pytest.raises(BackendFailed, match="division by zero"):
            await server.ainfer("m", {"X": -X})
        assert (await server.ainfer("m", {"X": X}))["Y"].tolist() == [2, 3]
        (counted,) = server.model_statistics("m")["model_stats"]
        assert counted["inference_stats"]["success"]["count"] == 2
        assert counted["inference_stats"]["fail"]["count"] == 1

    serve_one(tmp_path, body, scenario)


def test_it_cannot_call_other_models(tmp_path):
    add_thread_model(tmp_path, "other", execute("x"))

    async def scenario(server):
        with pytest.raises(BackendFailed, match="EXECUTION_MODE 'inline' cannot call other models"):
            await server.ainfer("m", {"X": X})

    serve_one(tmp_path, calling("call('other').output_tensors()[0].as_numpy()"), scenario)


def test_it_cannot_wait_for_the_server(tmp_path):
    body = execute('(pb_utils.load_model("other"), x)[1]')

    async def scenario(server):
        with pytest.raises(BackendFailed, match="cannot wait for the server"):
            await server.ainfer("m", {"X": X})

    serve_one(tmp_path, body, scenario)


def test_it_may_have_metrics(tmp_path):
    body = """
def initialize(self, args):
    family = pb_utils.MetricFamily(name="seen", description="d", kind=pb_utils.MetricFamily.COUNTER)
    self.family, self.metric = family, family.Metric(labels={})

def count(self, x):
    self.metric.increment(1)
    return x + self.metric.value()
""" + execute("self.count(x)")

    async def scenario(server):
        await server.ainfer("m", {"X": X})
        assert (await server.ainfer("m", {"X": X}))["Y"].tolist() == [3, 4]

    serve_one(tmp_path, body, scenario)


def test_asynchronous_code_is_refused(tmp_path):
    body = "async def execute(self, requests):\n    return []\n"
    with pytest.raises(Internal, match="'inline' is for a plain 'def execute'"):
        serve_one(tmp_path, body, None)


def test_what_initialize_raises_is_the_loads_error(tmp_path):
    body = "def initialize(self, args):\n    raise ValueError('no file')\n" + execute("x")
    with pytest.raises(Internal, match="no file"):
        serve_one(tmp_path, body, None)


def test_it_is_finalised_once(tmp_path):
    marker = tmp_path / "ended"
    body = (
        f"def finalize(self):\n    with open({str(marker)!r}, 'a') as file:\n        file.write('x')\n"
        + execute("x")
    )
    models = tmp_path / "models"

    async def scenario(server):
        await server.ainfer("m", {"X": X})

    serve_one(models, body, scenario, extra="instance_group { kind: KIND_CPU count: 2 }\n")
    assert marker.read_text() == "xx"


def test_another_model_calls_it(tmp_path):
    add_thread_model(tmp_path, "caller", calling("call('m').output_tensors()[0].as_numpy() + 10"))

    async def scenario(server):
        assert (await server.ainfer("caller", {"X": X}))["Y"].tolist() == [12, 13]

    serve_one(tmp_path, execute("x + 1"), scenario)


def test_many_responses(tmp_path):
    body = """
def execute(self, requests):
    for request in requests:
        sender = request.get_response_sender()
        for value in range(3):
            sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("Y", np.array([value], np.float32))]))
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""

    async def scenario(server):
        assert await Ask(server, "m").values() == [[0], [1], [2]]

    serve_one(tmp_path, body, scenario, extra=DECOUPLED)
