"""Requests over HTTP and gRPC as a collector of OpenTelemetry's sees them, sent by the official library."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc as grpc_client
import tritonclient.http as http_client

from bireme.telemetry.tracing import TraceOptions
from e2e_server import RunningServer
from model_dirs import add_fake_ensemble
from otlp_collector import Collector, Exported, collecting
from thread_models import DECOUPLED, add_thread_model, calling, execute

TRACE_ID = "0af7651916cd43dd8448eb211c12666c"
CALLER_ID = "b7ad6b7169242424"
CONTEXT = {"traceparent": f"00-{TRACE_ID}-{CALLER_ID}-01", "tracestate": "vendor=1"}
TELLS_CONTEXT = """
def execute(self, requests):
    return [
        pb_utils.InferenceResponse(
            [pb_utils.Tensor("Y", np.ones(1, np.float32))], parameters={"context": request.trace().get_context() or ""}
        )
        for request in requests
    ]
"""
SENDS_TWO = """
def execute(self, requests):
    for request in requests:
        sender = request.get_response_sender()
        for _ in range(2):
            sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("Y", np.ones(1, np.float32))]))
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
Start = Callable[..., RunningServer]


@pytest.fixture
def collector() -> Iterator[Collector]:
    with collecting() as found:
        yield found


@pytest.fixture
def start(tmp_path: Path, collector: Collector, start_server: Callable[..., RunningServer]) -> Start:
    """A function that starts a server of the models in ``tmp_path`` that sends its traces to ``collector``."""

    def begin(*settings: str) -> RunningServer:
        options = TraceOptions.parse(
            [
                "mode=opentelemetry",
                "level=TIMESTAMPS",
                "rate=1",
                f"opentelemetry,url={collector.url}",
                "opentelemetry,bsp_schedule_delay=20",
                *settings,
            ]
        )
        return start_server(tmp_path, tracing=options)

    return begin


def over_http(server: RunningServer, model: str, headers: dict[str, str] | None = None, **more: str) -> dict:
    body = {"inputs": [{"name": "X", "datatype": "FP32", "shape": [1], "data": [1]}], **more}
    request = urllib.request.Request(
        f"{server.url}/v2/models/{model}/infer", json.dumps(body).encode(), headers or {}
    )
    with urllib.request.urlopen(request, timeout=10) as reply:
        return json.loads(reply.read())


def one_by_one(spans: list[Exported]) -> dict[str, Exported]:
    """Return the spans by name, of which there is one each."""
    by_name = {span.name: span for span in spans}
    assert len(by_name) == len(spans)
    return by_name


def has(*names: str) -> Callable[[list[Exported]], bool]:
    return lambda spans: sorted(span.name for span in spans) == sorted(names)


def test_a_request_over_http(start, tmp_path, collector, monkeypatch):
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment=here")
    add_thread_model(tmp_path, "plus", execute("x + 1"))
    before_ns = time.time_ns()
    over_http(start("opentelemetry,resource=team=blue"), "plus", id="r1")

    spans = one_by_one(collector.wait(has("InferRequest", "plus", "compute")))
    root, model, compute = spans["InferRequest"], spans["plus"], spans["compute"]
    assert root.parent_id == ""
    assert (model.parent_id, compute.parent_id) == (root.span_id, model.span_id)
    assert len({span.trace_id for span in spans.values()}) == 1
    assert root.events == [
        "HTTP_RECV_START",
        "HTTP_RECV_END",
        "INFER_RESPONSE_COMPLETE",
        "HTTP_SEND_START",
        "HTTP_SEND_END",
    ]
    assert model.events == ["REQUEST_START", "QUEUE_START", "REQUEST_END"]
    assert compute.events == ["COMPUTE_START", "COMPUTE_INPUT_END", "COMPUTE_OUTPUT_START", "COMPUTE_END"]
    assert model.attributes.pop("triton.trace_id") > 0
    assert model.attributes == {
        "triton.model_name": "plus",
        "triton.model_version": 1,
        "triton.trace_parent_id": 0,
        "triton.request_id": "r1",
    }
    assert before_ns <= root.start_ns <= model.start_ns <= compute.start_ns
    assert compute.end_ns <= model.end_ns <= root.end_ns <= time.time_ns()
    for span in spans.values():
        assert (span.kind, span.scope) == (2, "triton-server")
        assert span.event_times == sorted(span.event_times)
        assert span.resource["service.name"] == "triton-inference-server"
        assert (span.resource["team"], span.resource["deployment"]) == ("blue", "here")


def test_a_request_over_grpc_that_brings_a_context(start, tmp_path, collector):
    """It is traced whatever the rate, and what called is its parent."""
    add_thread_model(tmp_path, "plus", execute("x + 1"))
    server = start("rate=0")
    given = grpc_client.InferInput("X", [1], "FP32")
    given.set_data_from_numpy(np.ones(1, np.float32))
    client = grpc_client.InferenceServerClient(server.grpc_address)
    client.infer("plus", [given])
    client.infer("plus", [given], headers=CONTEXT)
    client.close()

    spans = one_by_one(collector.wait(has("InferRequest", "plus", "compute")))
    root = spans["InferRequest"]
    assert (root.trace_id, root.parent_id, root.state) == (TRACE_ID, CALLER_ID, "vendor=1")
    assert root.events == [
        "GRPC_WAITREAD_START",
        "GRPC_WAITREAD_END",
        "INFER_RESPONSE_COMPLETE",
        "GRPC_SEND_START",
        "GRPC_SEND_END",
    ]
    assert spans["plus"].parent_id == root.span_id


def test_an_ensemble_and_its_steps(start, tmp_path, collector):
    add_thread_model(tmp_path, "plus", execute("x + 1"))
    add_thread_model(tmp_path, "half", execute("x / 2"))
    add_fake_ensemble(tmp_path, "both", "plus", "half")
    over_http(start(), "both")

    spans = collector.wait(has("InferRequest", "both", "plus", "half", "compute", "compute"))
    by_name = {span.name: span for span in spans if span.name != "compute"}
    parents = {span.parent_id for span in spans if span.name == "compute"}
    assert by_name["both"].parent_id == by_name["InferRequest"].span_id
    assert by_name["plus"].parent_id == by_name["half"].parent_id == by_name["both"].span_id
    assert parents == {by_name["plus"].span_id, by_name["half"].span_id}
    both = by_name["both"].attributes["triton.trace_id"]
    assert by_name["half"].attributes["triton.trace_parent_id"] == both


def test_a_call_and_what_python_models_are_told(start, tmp_path, collector):
    add_thread_model(tmp_path, "tell", TELLS_CONTEXT)
    add_thread_model(
        tmp_path, "top", calling('call("tell", trace=request.trace()).output_tensors()[0].as_numpy()')
    )
    server = start()
    told = over_http(server, "tell", CONTEXT)["parameters"]["context"]
    over_http(server, "top")

    spans = collector.wait(lambda found: len(found) == 3 + 5)
    asked = next(span for span in spans if span.name == "tell" and span.trace_id == TRACE_ID)
    assert json.loads(told) == {
        "traceparent": f"00-{TRACE_ID}-{asked.span_id}-01",
        "tracestate": "vendor=1",
    }
    top = next(span for span in spans if span.name == "top")
    called = next(span for span in spans if span.name == "tell" and span is not asked)
    assert (called.trace_id, called.parent_id) == (top.trace_id, top.span_id)


@pytest.mark.slow
def test_models_in_processes_pass_the_trace_on(start, tmp_path, collector):
    add_thread_model(tmp_path, "tell", TELLS_CONTEXT)
    add_thread_model(
        tmp_path,
        "top",
        calling('(call("tell"), call("tell", trace=request.trace()))[1].output_tensors()[0].as_numpy()'),
    )
    for model in ("tell", "top"):
        config = tmp_path / model / "config.pbtxt"
        config.write_text(config.read_text("utf-8").replace('"thread"', '"process"'), "utf-8")
    over_http(start(), "top", CONTEXT)

    spans = collector.wait(has("InferRequest", "top", "tell", "compute", "compute"))
    top, tell = (next(span for span in spans if span.name == name) for name in ("top", "tell"))
    assert (tell.trace_id, tell.parent_id) == (TRACE_ID, top.span_id)


@pytest.mark.slow
def test_a_collector_that_is_gone_does_not_keep_a_server_from_stopping(
    start_server, start, tmp_path, collector
):
    add_thread_model(tmp_path, "plus", execute("x + 1"))
    server = start()
    collector.close()
    over_http(server, "plus")
    start_s = time.monotonic()
    server.call(server.engine.stop(5))

    assert time.monotonic() - start_s < 8


def test_a_stream_of_responses_and_generate(start, tmp_path, collector):
    add_thread_model(tmp_path, "two", SENDS_TWO, extra=DECOUPLED)
    server = start()
    request = urllib.request.Request(
        f"{server.url}/v2/models/two/generate_stream", b'{"X": [1]}', {"traceparent": CONTEXT["traceparent"]}
    )
    urllib.request.urlopen(request, timeout=10).read()

    spans = one_by_one(collector.wait(has("InferRequest", "two", "compute")))
    assert spans["InferRequest"].trace_id == TRACE_ID
    assert spans["InferRequest"].events.count("HTTP_SEND_START") == 3  # the end of the stream, too


def test_a_failure_is_told(start, tmp_path, collector):
    add_thread_model(tmp_path, "bad", execute("x.nothing"))
    with pytest.raises(urllib.error.HTTPError):
        over_http(start(), "bad")

    spans = one_by_one(collector.wait(has("InferRequest", "bad", "compute")))
    assert "nothing" in (spans["bad"].error or "")
    assert "nothing" in (spans["InferRequest"].error or "")


def test_what_is_left_is_sent_at_the_end(start, tmp_path, collector):
    add_thread_model(tmp_path, "plus", execute("x + 1"))
    server = start("opentelemetry,bsp_schedule_delay=600000")
    over_http(server, "plus")
    server.call(server.engine.stop(5))

    assert has("InferRequest", "plus", "compute")(collector.spans)


def test_official_clients_read_and_change_the_settings(start_server, tmp_path):
    add_thread_model(tmp_path, "plus", execute("x + 1"))
    options = TraceOptions.parse([f"triton,file={tmp_path}/t.json"])
    server = start_server(tmp_path, tracing=options)
    http, grpc = (
        http_client.InferenceServerClient(server.address),
        grpc_client.InferenceServerClient(server.grpc_address),
    )
    everything = {
        "trace_level": ["OFF"],
        "trace_rate": "1000",
        "trace_count": "-1",
        "log_frequency": "0",
        "trace_file": f"{tmp_path}/t.json",
        "trace_mode": "triton",
    }
    assert http.get_trace_settings() == http.get_trace_settings("plus") == everything
    assert _settings(grpc.get_trace_settings()) == _settings(grpc.get_trace_settings("plus")) == everything

    changes = {"trace_level": ["TIMESTAMPS", "TENSORS"], "trace_rate": "4"}
    assert http.update_trace_settings("plus", changes) == {**everything, **changes}
    assert _settings(grpc.get_trace_settings("plus")) == {**everything, **changes}
    assert http.get_trace_settings() == everything
    taken_back = _settings(grpc.update_trace_settings("plus", {"trace_level": [], "trace_rate": "8"}))
    assert taken_back == {**everything, "trace_rate": "8"}
    assert http.update_trace_settings("plus", {"trace_rate": None}) == everything

    for client in (http, grpc):
        with pytest.raises(Exception, match=r"Request for unknown model : nope"):
            client.get_trace_settings("nope")
        with pytest.raises(Exception, match=r"can not be updated through network protocol"):
            client.update_trace_settings(settings={"trace_file": "other"})
        with pytest.raises(Exception, match=r"invalid trace setting :sample rate must be non-zero"):
            client.update_trace_settings(settings={"trace_level": ["TIMESTAMPS"], "trace_rate": "0"})
        client.close()
    assert server.engine.tracing.is_on is False


def _settings(reply: grpc_client.service_pb2.TraceSettingResponse) -> dict[str, object]:
    return {
        key: list(value.value) if key == "trace_level" else value.value[0]
        for key, value in reply.settings.items()
    }
