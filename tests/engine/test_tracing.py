"""A traced request: what is recorded of it and of all that is called for it, and what others notice of that."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from pathlib import Path
from typing import Any

import orjson
import pytest

from bireme.engine import Server
from bireme.telemetry import spans
from bireme.telemetry.spans import TRACE_PARAMETER
from bireme.testing import FakeBackend
from bireme.types import InferenceResponse, InvalidArgument
from model_dirs import add_fake_model
from thread_models import DECOUPLED, Ask, add_thread_model, calling, execute, serve

TIMES = (
    "request_start",
    "queue_start",
    "compute_start",
    "compute_input_end",
    "compute_output_start",
    "compute_end",
    "request_end",
)
TELLS_PARAMETERS = """
def execute(self, requests):
    return [
        pb_utils.InferenceResponse([pb_utils.Tensor("Y", np.ones(1, np.float32))], parameters={"saw": request.parameters()})
        for request in requests
    ]
"""
SENDS_TWO = """
def execute(self, requests):
    for request in requests:
        sender = request.get_response_sender()
        for value in (1, 2):
            sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("Y", np.array([value], np.float32))]))
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
ASKS_ASYNC = """
async def execute(self, requests):
    responses = []
    for request in requests:
        x = pb_utils.get_input_tensor_by_name(request, "X")
        def ask(name):
            return pb_utils.InferenceRequest(model_name=name, inputs=[x], requested_output_names=["Y"]).async_exec()
        answers = await asyncio.gather(ask("plus"), ask("plus"))
        responses.append(pb_utils.InferenceResponse(answers[0].output_tensors()))
    return responses
"""
ENSEMBLE = """
platform: "ensemble"
input [{ name: "X" data_type: TYPE_FP32 dims: [ -1 ] }]
output [{ name: "Y" data_type: TYPE_FP32 dims: [ -1 ] }]
"""


def add_chain(root: Path, name: str, *models: str) -> None:
    """Write an ensemble whose steps are ``models``, one behind the other."""
    tensors = ["X", *(f"t{number}" for number in range(1, len(models))), "Y"]
    steps = "".join(
        f'step {{ model_name: "{model}" model_version: -1 input_map {{ key: "X" value: "{given}" }} '
        f'output_map {{ key: "Y" value: "{made}" }} }}'
        for model, (given, made) in zip(models, pairwise(tensors), strict=True)
    )
    (root / name / "1").mkdir(parents=True)
    (root / name / "config.pbtxt").write_text(f"{ENSEMBLE}ensemble_scheduling {{ {steps} }}", "utf-8")


async def trace_of(server: Server, name: str, **settings: Any) -> dict[str, Any]:
    """Return the trace of one request to ``name``, which may be decoupled."""
    parameters = {TRACE_PARAMETER: True, **settings.pop("parameters", {})}
    responses = await Ask(server, name, parameters=parameters, **settings).all()
    return read(responses[-1])


def read(response: InferenceResponse) -> dict[str, Any]:
    found: dict[str, Any] = orjson.loads(response.parameters[TRACE_PARAMETER])
    return found


def names(record: dict[str, Any]) -> Any:
    """Return the tree of model names: a name, or a name and what it calls."""
    calls = [names(call) for call in record.get("calls", ())]
    return (record["model"], calls) if calls else record["model"]


def test_a_trace_tells_when_what_began(tmp_path):
    add_thread_model(tmp_path, "plus", execute("x + 1"))

    async def scenario(server: Server) -> None:
        record = await trace_of(server, "plus", id="a")

        assert ("plus", 1, "a") == (record["model"], record["version"], record["id"])
        assert record["request_start"] == 0
        assert all(before <= after for before, after in pairwise([record[time] for time in TIMES]))
        assert record["request_end"] < 10e6
        assert (1, 1) == (record["rows"], record["batch_size"])
        assert {"calls", "error", "ensemble", "responses", "dropped_calls"}.isdisjoint(record)

    serve(tmp_path, scenario)


def test_nobody_else_is_traced_and_no_model_sees_the_wish(tmp_path):
    add_thread_model(tmp_path, "tell", TELLS_PARAMETERS)

    async def scenario(server: Server) -> None:
        for parameters, traced, seen in (
            (None, False, {}),
            ({"a": 1}, False, {"a": 1}),
            ({TRACE_PARAMETER: False, "a": 1}, False, {"a": 1}),
            ({TRACE_PARAMETER: True}, True, {}),
            ({TRACE_PARAMETER: True, "a": 1}, True, {"a": 1}),
        ):
            result = await server.ainfer("tell", {"X": [1]}, parameters=parameters)

            assert seen == orjson.loads(result.parameters["saw"] or "{}")
            assert traced == (TRACE_PARAMETER in result.parameters)

    serve(tmp_path, scenario)


def test_the_callers_own_parameters_stay_as_they_are(tmp_path):
    add_thread_model(tmp_path, "plus", execute("x + 1"))

    async def scenario(server: Server) -> None:
        parameters = {TRACE_PARAMETER: True}
        await server.ainfer("plus", {"X": [1]}, parameters=parameters)
        assert parameters == {TRACE_PARAMETER: True}

    serve(tmp_path, scenario)


@pytest.mark.parametrize("wish", ["true", 1, 0.0])
def test_a_wish_that_is_neither_true_nor_false_is_refused(tmp_path, wish):
    add_fake_model(tmp_path, "fake")

    async def main() -> None:
        async with Server(tmp_path, backends={"fake": FakeBackend()}) as server:
            with pytest.raises(InvalidArgument, match="'bireme_trace': expected true or false"):
                await server.ainfer("fake", {"X": [1]}, parameters={TRACE_PARAMETER: wish})

    asyncio.run(main())


def test_calls_are_found_through_any_depth(tmp_path):
    add_thread_model(tmp_path, "plus", execute("x + 1"))
    add_thread_model(tmp_path, "middle", calling('call("plus").output_tensors()[0].as_numpy()'))
    add_thread_model(
        tmp_path, "top", calling('(call("middle"), call("plus"))[1].output_tensors()[0].as_numpy()')
    )

    async def scenario(server: Server) -> None:
        record = await trace_of(server, "top")

        assert names(record) == ("top", [("middle", ["plus"]), "plus"])
        middle, plus = record["calls"]
        (inner,) = middle["calls"]
        assert record["compute_start"] <= middle["request_start"] <= inner["compute_start"]
        assert inner["request_end"] <= middle["compute_end"] <= plus["request_start"]
        assert all(time in inner for time in TIMES)

    serve(tmp_path, scenario)


def test_calls_that_wait_in_queues_are_found(tmp_path):
    add_thread_model(tmp_path, "plus", execute("x + 1"), extra="dynamic_batching {}")
    add_thread_model(tmp_path, "top", ASKS_ASYNC)

    async def scenario(server: Server) -> None:
        record = await trace_of(server, "top")

        assert names(record) == ("top", ["plus", "plus"])
        for call in record["calls"]:
            assert 0 < call["request_start"] <= call["queue_start"] <= call["compute_start"]
            assert call["request_end"] <= record["compute_output_start"]

    serve(tmp_path, scenario)


def test_a_call_belongs_to_every_traced_request_of_its_batch(tmp_path):
    add_thread_model(tmp_path, "plus", execute("x + 1"), extra="max_batch_size: 4")
    once = """
    def execute(self, requests):
        x = pb_utils.get_input_tensor_by_name(requests[0], "X")
        asked = pb_utils.InferenceRequest(model_name="plus", inputs=[x], requested_output_names=["Y"]).exec()
        return [pb_utils.InferenceResponse(asked.output_tensors()) for _ in requests]
    """
    batching = (
        "max_batch_size: 4 dynamic_batching { max_queue_delay_microseconds: 5000000 preferred_batch_size: 3 }"
    )
    add_thread_model(tmp_path, "plus_all", once, extra=batching)

    async def scenario(server: Server) -> None:
        asks = [
            Ask(server, "plus_all", [[1.0]], parameters=parameters)
            for parameters in (None, {TRACE_PARAMETER: True}, {TRACE_PARAMETER: True})
        ]
        plain, *traced = [(await ask.all())[-1] for ask in asks]

        assert not plain.parameters
        for response in traced:
            record = read(response)
            assert names(record) == ("plus_all", ["plus"])
            assert (1, 3, "preferred") == (record["rows"], record["batch_size"], record["close_reason"])
            assert 0 < record["calls"][0]["request_start"] < record["request_end"]

    serve(tmp_path, scenario)


def test_a_call_that_fails_tells_why(tmp_path):
    add_thread_model(tmp_path, "bad", "def execute(self, requests):\n    raise ValueError('no such \\udce4')")
    add_thread_model(
        tmp_path, "other", execute("x"), extra="input { name: 'W' data_type: TYPE_FP32 dims: 1 }"
    )
    add_thread_model(tmp_path, "top", calling('(call("bad"), call("other"), call("none"), x.as_numpy())[3]'))

    async def scenario(server: Server) -> None:
        record = await trace_of(server, "top")

        assert names(record) == ("top", ["bad", "other", "none"])
        bad, other, none = record["calls"]
        assert "no such" in bad["error"]
        assert "compute_end" in bad
        assert "expected 2 inputs" in other["error"]
        assert "compute_start" not in other
        assert "Model 'none' is not ready" in none["error"]
        assert none["request_start"] <= none["request_end"]
        assert "error" not in record

    serve(tmp_path, scenario)


def test_an_error_carries_its_trace_too(tmp_path):
    add_thread_model(tmp_path, "bad", "def execute(self, requests):\n    raise ValueError('no')")

    async def scenario(server: Server) -> None:
        record = await trace_of(server, "bad")
        assert "no" in record["error"]

    serve(tmp_path, scenario)


def test_a_call_that_nobody_waits_for_has_no_end(tmp_path):
    forgets = """
    def execute(self, requests):
        x = pb_utils.get_input_tensor_by_name(requests[0], "X")
        thread = threading.Thread(target=self.ask, args=(x,))
        thread.start()
        while not self.is_asked:
            time.sleep(0.001)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", x.as_numpy())])]

    is_asked = False

    def ask(self, x):
        request = pb_utils.InferenceRequest(model_name="slow", inputs=[x], requested_output_names=["Y"])
        asyncio.run(self.exec(request))

    async def exec(self, request):
        task = asyncio.ensure_future(request.async_exec())
        await asyncio.sleep(0.02)
        self.is_asked = True
        await task
    """
    add_thread_model(tmp_path, "slow", execute("(time.sleep(0.1), x)[1]"))
    add_thread_model(tmp_path, "top", forgets)

    async def scenario(server: Server) -> None:
        record = await trace_of(server, "top")
        (call,) = record["calls"]
        assert "slow" == call["model"]
        assert "request_end" not in call

    serve(tmp_path, scenario)


def test_a_trace_is_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(spans, "MAX_SPANS", 4)
    add_thread_model(tmp_path, "plus", execute("x + 1"))
    add_thread_model(
        tmp_path, "top", calling('[call("plus") for _ in range(10)][-1].output_tensors()[0].as_numpy()')
    )

    async def scenario(server: Server) -> None:
        record = await trace_of(server, "top")
        assert (["plus"] * 3, 7) == ([call["model"] for call in record["calls"]], record["dropped_calls"])

    serve(tmp_path, scenario)


def test_a_trace_is_no_deeper_than_json_can_be(tmp_path, monkeypatch):
    monkeypatch.setattr(spans, "MAX_DEPTH", 2)
    add_thread_model(tmp_path, "plus", execute("x + 1"))
    add_thread_model(tmp_path, "middle", calling('call("plus").output_tensors()[0].as_numpy()'))
    add_thread_model(tmp_path, "top", calling('call("middle").output_tensors()[0].as_numpy()'))

    async def scenario(server: Server) -> None:
        record = await trace_of(server, "top")
        assert names(record) == ("top", ["middle"])
        assert record["calls"][0]["dropped_calls"] == 1

    serve(tmp_path, scenario)


def test_of_many_responses_the_first_and_the_last_are_told(tmp_path):
    add_thread_model(tmp_path, "two", SENDS_TWO, extra=DECOUPLED)

    async def scenario(server: Server) -> None:
        first, second, end = await Ask(server, "two", parameters={TRACE_PARAMETER: True}).all()

        assert not first.parameters
        assert not second.parameters
        assert end.flag_only
        record = read(end)
        assert 2 == record["responses"]
        assert record["compute_start"] <= record["first_response"] <= record["request_end"]
        assert record["request_end"] == record["compute_end"]

    serve(tmp_path, scenario)


def test_a_called_model_with_many_responses_is_one_step(tmp_path):
    add_thread_model(tmp_path, "two", SENDS_TWO, extra=DECOUPLED)
    add_thread_model(
        tmp_path,
        "top",
        calling('[each for each in call("two", decoupled=True)][0].output_tensors()[0].as_numpy()'),
    )

    async def scenario(server: Server) -> None:
        record = await trace_of(server, "top")
        assert names(record) == ("top", ["two"])
        assert record["calls"][0]["responses"] == 2

    serve(tmp_path, scenario)


def test_the_steps_of_ensembles_are_calls(tmp_path):
    """Also of nested ones, whether the loop makes them or, one after the other, a thread; and what their code calls."""
    add_thread_model(tmp_path, "plus", execute("x + 1"))
    add_fake_model(tmp_path, "fake")
    add_thread_model(tmp_path, "script", calling('call("fake").output_tensors()[0].as_numpy()'))
    add_chain(tmp_path, "inner", "plus", "plus")
    add_chain(tmp_path, "outer", "inner", "fake", "script")

    async def scenario(server: Server) -> None:
        record = await trace_of(server, "outer")

        assert names(record) == ("outer", [("inner", ["plus", "plus"]), "fake", ("script", ["fake"])])
        inner, fake, script = record["calls"]
        assert record["ensemble"]
        assert inner["ensemble"]
        assert "ensemble" not in fake
        assert "compute_end" not in record  # its steps are all that computes
        assert record["compute_start"] <= inner["request_start"] <= inner["calls"][0]["request_start"]
        assert inner["request_end"] <= fake["request_start"]
        assert fake["request_end"] <= script["request_start"] <= script["calls"][0]["compute_start"]

    serve(tmp_path, scenario, backends={"fake": FakeBackend()})


def test_a_step_that_its_model_refuses_is_told(tmp_path):
    add_thread_model(
        tmp_path,
        "plus",
        execute("x + 1"),
        extra="dynamic_batching { default_queue_policy { max_queue_size: 1 } }",
    )
    add_chain(tmp_path, "chain", "plus", "bad")
    add_thread_model(tmp_path, "bad", "def execute(self, requests):\n    raise ValueError('no')")

    async def scenario(server: Server) -> None:
        record = await trace_of(server, "chain")

        assert "in ensemble 'chain', step" in record["error"]
        assert names(record) == ("chain", ["plus", "bad"])
        assert "error" not in record["calls"][0]
        assert "no" in record["calls"][1]["error"]

    serve(tmp_path, scenario)
