"""Sampled requests: what is written of them, of the steps of ensembles and of the calls that they are passed on to."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bireme.engine import Server
from bireme.telemetry import spans
from bireme.telemetry.spans import TRACE_PARAMETER
from bireme.telemetry.tracing import TraceOptions
from bireme.testing import FakeBackend
from bireme.types import InvalidArgument
from model_dirs import add_fake_ensemble, add_fake_model
from thread_models import DECOUPLED, Ask, add_thread_model, calling, execute

WHOLE_WAY = [
    "REQUEST_START",
    "QUEUE_START",
    "COMPUTE_START",
    "COMPUTE_INPUT_END",
    "COMPUTE_OUTPUT_START",
    "COMPUTE_END",
    "REQUEST_END",
]
Scenario = Callable[[Server], Awaitable[None]]


def traced(root: Path, scenario: Scenario, *settings: str, **more: Any) -> None:
    """Run ``scenario`` with a server of the models in ``root`` that writes traces to ``root/t.json``."""
    options = TraceOptions.parse(["level=TIMESTAMPS", "rate=1", f"triton,file={root}/t.json", *settings])

    async def main() -> None:
        async with Server(root, tracing=options, backends={"fake": FakeBackend()}, **more) as server:
            await scenario(server)

    asyncio.run(main())


class Trace:
    """What a file tells of one span."""

    def __init__(self, objects: list[dict[str, Any]]) -> None:
        first, *rest = objects
        self.number = first["id"]
        self.parent = first.get("parent_id", 0)
        self.model = first["model_name"]
        self.first = first
        self.events = [each["timestamps"][0]["name"] for each in rest if "timestamps" in each]
        times = [each["timestamps"][0]["ns"] for each in rest if "timestamps" in each]
        assert times == sorted(times)
        self.tensors = [(each["activity"], each["tensor"]) for each in rest if "tensor" in each]


def read(path: Path) -> list[Trace]:
    """Return the spans in a file, whose objects stand together."""
    found: dict[int, list[dict[str, Any]]] = {}
    last = 0
    for each in json.loads(path.read_bytes()):
        assert each["id"] == last or each["id"] not in found
        last = each["id"]
        found.setdefault(last, []).append(each)
    return [Trace(objects) for objects in found.values()]


async def flush(server: Server) -> None:
    await asyncio.to_thread(server.tracing.flush)


def test_a_sampled_request_is_written(tmp_path):
    add_fake_model(tmp_path, "plus")

    async def scenario(server: Server) -> None:
        await server.ainfer("plus", {"X": [1]}, id='r"1')
        await flush(server)
        (trace,) = read(tmp_path / "t.json")

        assert trace.first["model_version"] == 1
        assert (trace.model, trace.first["request_id"]) == ("plus", 'r"1')
        assert "parent_id" not in trace.first
        assert trace.events == WHOLE_WAY

    traced(tmp_path, scenario)


def test_nothing_is_written_while_tracing_is_off(tmp_path):
    add_fake_model(tmp_path, "plus")

    async def scenario(server: Server) -> None:
        assert not server.tracing.is_on
        result = await server.ainfer("plus", {"X": [1]})
        assert result.parameters == {}

    traced(tmp_path, scenario, "level=OFF")
    assert not (tmp_path / "t.json").exists()


def test_a_count_that_has_run_out_turns_tracing_off(tmp_path):
    """A full set of traces goes to a file with a number."""
    add_fake_model(tmp_path, "plus")

    async def scenario(server: Server) -> None:
        for _ in range(5):
            await server.ainfer("plus", {"X": [1]})
        assert not server.tracing.is_on
        assert server.tracing.describe("")["trace_count"] == ["0"]
        await flush(server)
        assert len(read(tmp_path / "t.json.0")) == 2

    traced(tmp_path, scenario, "count=2", "rate=2")
    assert not (tmp_path / "t.json").exists()


def test_a_log_frequency_makes_files_of_so_many_traces(tmp_path):
    add_fake_model(tmp_path, "plus")

    async def scenario(server: Server) -> None:
        for _ in range(5):
            await server.ainfer("plus", {"X": [1]})

    traced(tmp_path, scenario, "triton,log-frequency=2")
    assert [len(read(tmp_path / name)) for name in ("t.json.0", "t.json.1", "t.json")] == [2, 2, 1]


def test_what_was_collected_is_written_when_the_setting_is_replaced(tmp_path):
    add_fake_model(tmp_path, "plus")

    async def scenario(server: Server) -> None:
        await server.ainfer("plus", {"X": [1]})
        server.tracing.update("plus", {"log_frequency": 3, "trace_rate": 1})
        await server.ainfer("plus", {"X": [1]})
        server.tracing.update("plus", {"log_frequency": None, "trace_rate": None})
        await server.ainfer("plus", {"X": [1]})
        await flush(server)
        assert len(read(tmp_path / "t.json")) == 3

    traced(tmp_path, scenario)


def test_a_model_s_own_setting_counts_its_requests_alone(tmp_path):
    add_fake_model(tmp_path, "plus")
    add_fake_model(tmp_path, "other")

    async def scenario(server: Server) -> None:
        server.tracing.update("plus", {"trace_level": ("TIMESTAMPS",), "trace_rate": 2})
        assert server.tracing.is_on
        for _ in range(4):
            await server.ainfer("plus", {"X": [1]})
            await server.ainfer("other", {"X": [1]})

    traced(tmp_path, scenario, "level=OFF")
    assert [trace.model for trace in read(tmp_path / "t.json")] == ["plus", "plus"]


def test_the_steps_of_an_ensemble_are_children(tmp_path):
    add_fake_model(tmp_path, "plus")
    add_fake_ensemble(tmp_path, "twice", "plus", "plus")
    add_fake_ensemble(tmp_path, "outer", "twice", "plus")

    async def scenario(server: Server) -> None:
        await server.ainfer("outer", {"X": [1]}, id="r")

    traced(tmp_path, scenario)
    traces = read(tmp_path / "t.json")
    outer, twice, first, second, last = traces
    assert [trace.model for trace in traces] == ["outer", "twice", "plus", "plus", "plus"]
    assert [trace.parent for trace in traces] == [
        0,
        outer.number,
        twice.number,
        twice.number,
        outer.number,
    ]
    assert outer.events == twice.events == ["REQUEST_START", "QUEUE_START", "REQUEST_END"]
    assert first.events == second.events == last.events == WHOLE_WAY
    assert {trace.first["request_id"] for trace in traces} == {"r"}


def test_a_call_is_a_child_where_it_passes_the_trace_on(tmp_path):
    """As with Triton; the record that a client asks for has every call."""
    add_thread_model(tmp_path, "plus", execute("x + 1"))
    add_thread_model(
        tmp_path,
        "top",
        calling('(call("plus"), call("plus", trace=request.trace()))[1].output_tensors()[0].as_numpy()'),
    )

    async def scenario(server: Server) -> None:
        result = await server.ainfer("top", {"X": [1]})
        assert TRACE_PARAMETER not in result.parameters
        both = await server.ainfer("top", {"X": [1]}, parameters={TRACE_PARAMETER: True})
        calls = json.loads(both.parameters[TRACE_PARAMETER])["calls"]
        assert [call["model"] for call in calls] == ["plus", "plus"]

    traced(tmp_path, scenario)
    traces = read(tmp_path / "t.json")
    assert [trace.model for trace in traces] == ["top", "plus"] * 2
    assert [traces[0].number, traces[2].number] == [traces[1].parent, traces[3].parent]
    assert not spans._sampled


def test_a_call_after_execute_belongs_to_its_request_while_that_is_open(tmp_path):
    add_thread_model(tmp_path, "plus", execute("x + 1"))
    later = """
    def execute(self, requests):
        for request in requests:
            threading.Thread(target=self.answer, args=(request, request.get_response_sender())).start()
    def answer(self, request, sender):
        time.sleep(0.02)
        x = pb_utils.get_input_tensor_by_name(request, "X")
        asked = pb_utils.InferenceRequest(
            model_name="plus", inputs=[x], requested_output_names=["Y"], trace=request.trace()
        ).exec()
        sender.send(pb_utils.InferenceResponse(asked.output_tensors()))
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
    """
    add_thread_model(tmp_path, "later", later, extra=DECOUPLED)

    async def scenario(server: Server) -> None:
        ask = Ask.__new__(Ask)
        server_submit = server.submit

        class Offering:
            def submit(self, request: Any) -> None:
                server.tracing.offer(request)
                server_submit(request)

        ask.__init__(Offering(), "later")  # type: ignore[misc, arg-type]
        assert await ask.values() == [[2.0]]

    traced(tmp_path, scenario)
    later_trace, plus = read(tmp_path / "t.json")
    assert (later_trace.model, plus.model) == ("later", "plus")
    assert plus.parent == later_trace.number
    assert later_trace.events == WHOLE_WAY


def test_python_models_get_no_context_while_traces_go_to_a_file(tmp_path):
    add_thread_model(tmp_path, "tell", execute('np.full(1, request.trace().get_context() is None, "f")'))

    async def scenario(server: Server) -> None:
        assert (await server.ainfer("tell", {"X": [1]}))["Y"].tolist() == [1]

    traced(tmp_path, scenario)


def test_tensors_are_written_where_the_level_says_so(tmp_path):
    add_fake_model(tmp_path, "plus")

    async def scenario(server: Server) -> None:
        await server.ainfer("plus", {"X": np.array([1, 2.5, 0.1], np.float32)})

    traced(tmp_path, scenario, "level=TENSORS")
    (trace,) = read(tmp_path / "t.json")
    told = {"data": "1,2.5,0.1", "shape": "3", "dtype": "FP32"}
    assert trace.tensors == [
        ("TENSOR_QUEUE_INPUT", {"name": "X", **told}),
        ("TENSOR_BACKEND_OUTPUT", {"name": "Y", **told}),
    ]


def test_tensors_alone_bring_no_times(tmp_path):
    add_fake_model(tmp_path, "plus")

    async def scenario(server: Server) -> None:
        server.tracing.update("", {"trace_level": ("TENSORS",)})
        await server.ainfer("plus", {"X": [1]})

    traced(tmp_path, scenario, "level=OFF")
    (trace,) = read(tmp_path / "t.json")
    assert trace.events == []
    assert len(trace.tensors) == 2


def test_a_request_that_is_refused_is_traced(tmp_path):
    add_fake_model(tmp_path, "plus")

    async def scenario(server: Server) -> None:
        with pytest.raises(InvalidArgument):
            await server.ainfer("plus", {"Z": np.ones(1, np.float32)})

    traced(tmp_path, scenario)
    (trace,) = read(tmp_path / "t.json")
    assert trace.events == ["REQUEST_START", "REQUEST_END"]
    assert not spans._sampled


def test_a_file_that_cannot_be_written_costs_only_the_traces(tmp_path, caplog):
    add_fake_model(tmp_path, "plus")

    async def scenario(server: Server) -> None:
        await server.ainfer("plus", {"X": [1]})
        assert (await server.ainfer("plus", {"X": [1]}))["Y"].tolist() == [1]

    with caplog.at_level("ERROR", "bireme"):
        traced(tmp_path, scenario, f"triton,file={tmp_path}/none/t.json")
    assert "failed creating trace file" in caplog.text


def test_a_server_that_starts_again_traces_again(tmp_path):
    add_fake_model(tmp_path, "plus")

    async def main() -> None:
        options = TraceOptions.parse(["level=TIMESTAMPS", "rate=1", f"triton,file={tmp_path}/t.json"])
        server = Server(tmp_path, tracing=options, backends={"fake": FakeBackend()})
        for _ in range(2):
            async with server:
                await server.ainfer("plus", {"X": [1]})

    asyncio.run(main())
    assert len(read(tmp_path / "t.json")) == 1


def test_the_library_of_opentelemetry_must_be_there(tmp_path, monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    add_fake_model(tmp_path, "plus")

    async def scenario(_: Server) -> None:
        raise AssertionError("it has started")

    with pytest.raises(InvalidArgument, match="pip install opentelemetry-sdk opentelemetry-exporter"):
        traced(tmp_path, scenario, "mode=opentelemetry")
