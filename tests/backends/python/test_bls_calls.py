"""Calls: what a worker's code gets from the server when it asks other models, loads models, counts and logs."""

import asyncio
import logging

import pytest

from bireme.backends.python.backlog import MOST
from bireme.backends.python.calls import Calls
from bireme.ipc.messages import Call, CancelCall, Infer, LogLine, Reply, Result, Taken
from bireme.types import InferenceResponse, InvalidArgument, NotFound, Unavailable
from worker_fakes import FakeHost, FakeLedger, call_data, make_execution, tensor


class Bench:
    """The calls of one worker that runs batch 7."""

    def __init__(self, loop: asyncio.AbstractEventLoop | None = None) -> None:
        self.host = FakeHost(loop)
        self.ledger = FakeLedger()
        self.sent: list = []
        self.execution = make_execution()
        self.calls = Calls(self.host, self.ledger, self.sent.append, {7: (self.execution, 1, 0)}, "caller")

    def infer(
        self, model: str = "callee", *, number: int = 1, is_decoupled: bool = False, **settings
    ) -> None:
        self.calls.infer(Infer(call_data(model, number, **settings), 7, is_decoupled))

    @property
    def request(self):
        (request,) = self.host.submitted
        return request

    def answer(self, *values: float, **settings) -> None:
        response = InferenceResponse("callee", 2, "id", [tensor("Y", *values)] if values else (), **settings)
        self.request.respond(self.request, response)

    @property
    def reply(self) -> Reply:
        (reply,) = self.sent
        assert isinstance(reply, Reply)
        return reply


@pytest.fixture
def bench():
    return Bench()


def test_a_call_becomes_a_request_of_the_execution_whose_code_asks(bench):
    bench.infer(
        outputs=["Y"],
        parameters={"p": True},
        priority=1,
        timeout_us=5,
        sequence_id=9,
        flags=2,
        trace_context="{}",
        model_version=3,
    )

    request = bench.request
    assert request.parent is bench.execution
    assert (request.model_name, request.model_version, request.id) == ("callee", 3, "id")
    assert (request.outputs, request.parameters, request.priority) == (["Y"], {"p": True}, 1)
    assert (request.timeout_us, request.sequence_id, request.trace_context) == (5, 9, "{}")
    assert (request.sequence_start, request.sequence_end) == (False, True)
    assert request.inputs["X"].to_numpy().tolist() == [3.0]


def test_a_call_of_code_that_runs_beside_its_batch_has_no_parent(bench):
    bench.calls.infer(Infer(call_data(), 8))

    assert bench.request.parent is None


def test_the_answer_goes_back_under_the_calls_number(bench):
    bench.infer(number=41)
    bench.ledger.released.append(6)

    bench.answer(4.0, parameters={"q": 1})

    response = bench.reply.response
    assert bench.reply.call == 41
    assert bench.reply.released == [6]
    assert [data.name for data in response.outputs] == ["Y"]
    assert (response.error, response.parameters, response.is_final, response.is_flag_only) == (
        None,
        {"q": 1},
        True,
        False,
    )
    assert (response.model_name, response.model_version, response.id) == ("callee", 2, "id")


def test_an_error_of_the_called_model_keeps_its_code_and_text(bench):
    bench.infer()

    bench.answer(error=InvalidArgument("too long"))

    assert bench.reply.response.error.code == "INVALID_ARG"
    assert bench.reply.response.error.message == "too long"
    assert bench.reply.response.outputs == []


def test_an_answer_that_cannot_be_lent_is_an_error_of_the_call(bench, monkeypatch):
    def fail(_):
        raise Unavailable("no memory")

    bench.infer()
    monkeypatch.setattr(bench.ledger, "export", fail)
    bench.answer(1.0)

    data = bench.reply.response
    assert (data.error.code, data.error.message, data.is_final) == ("UNAVAILABLE", "no memory", True)
    assert data.outputs == []


def test_a_decoupled_call_gets_every_response(bench):
    bench.infer("stream", is_decoupled=True)

    bench.answer(1.0, final=False)
    bench.answer(2.0, final=False)
    bench.answer(flag_only=True)

    assert [reply.response.is_final for reply in bench.sent] == [False, False, True]
    assert bench.sent[-1].response.is_flag_only


def test_an_answer_within_the_submission_is_no_trouble(bench):
    bench.host.submit = lambda request: request.respond(request, InferenceResponse("callee", 1))

    bench.infer()

    assert bench.reply.response.is_final
    bench.calls.close()
    assert bench.host.cancelled == []


def test_a_model_that_does_not_serve_is_an_error_of_the_call(bench):
    bench.infer("nobody")

    error = bench.reply.response.error
    assert error.code == "INTERNAL"
    assert error.message == (
        "Model nobody - Error when running inference: Failed for execute the inference request. Model 'nobody' is not "
        "ready. Request for unknown model: 'nobody' is not found"
    )


def test_what_the_server_refuses_is_an_internal_error_of_the_call(bench):
    bench.host.refusal = InvalidArgument("unexpected shape")

    bench.infer()

    error = bench.reply.response.error
    assert (error.code, error.message) == (
        "INTERNAL",
        "Model callee - Error when running inference: unexpected shape",
    )


def test_asking_a_decoupled_model_for_one_response_is_answered_with_what_to_do(bench):
    bench.infer("stream")

    assert (
        "Please use 'decoupled=True' argument to the 'exec' or 'async_exec' calls"
        in bench.reply.response.error.message
    )
    assert bench.host.submitted == []


def test_an_ordinary_model_may_be_called_as_a_decoupled_one(bench):
    bench.infer("callee", is_decoupled=True)
    bench.answer(1.0)

    assert bench.reply.response.is_final


def test_cancelling_a_call_takes_its_request_back(bench):
    bench.infer(number=5)

    bench.calls.cancel(CancelCall(5))
    bench.calls.cancel(CancelCall(6))

    assert bench.host.cancelled == [bench.request]


def test_the_calls_of_a_worker_that_is_gone_are_cancelled_and_their_answers_dropped(bench):
    bench.infer()

    bench.calls.close()
    bench.answer(1.0)

    assert bench.host.cancelled == [bench.request]
    assert bench.sent == []


def test_what_a_call_lends_back_is_free(bench):
    bench.calls.infer(Infer(call_data(), 7, False, [3]))

    assert bench.ledger.taken_back == [3]


# Calls by name


def ask(*calls: Call, refusal=None) -> Bench:
    async def scenario() -> Bench:
        bench = Bench(asyncio.get_running_loop())
        bench.host.refusal = refusal
        for call in calls:
            bench.calls.call(call)
        for _ in range(5):
            await asyncio.sleep(0)
        return bench

    return asyncio.run(scenario())


def test_models_are_loaded_and_unloaded_as_asked():
    bench = ask(
        Call(1, "load_model", {"name": "n", "config": "{}", "files": {"file:1/a": b"x"}}),
        Call(2, "load_model", {"name": "n", "config": "", "files": None}),
        Call(3, "unload_model", {"name": "n", "unload_dependents": True}),
    )

    assert bench.host.control == [
        ("load", "n", "{}", {"file:1/a": b"x"}),
        ("load", "n", None, None),
        ("unload", "n", True),
    ]
    assert bench.sent == [Result(1), Result(2), Result(3)]


def test_a_load_that_fails_is_told_with_its_code():
    bench = ask(Call(1, "load_model", {"name": "n"}), refusal=Unavailable("the server is stopping"))

    (result,) = bench.sent
    assert (result.error.code, result.error.message) == ("UNAVAILABLE", "the server is stopping")


def test_readiness_of_the_latest_or_of_one_version():
    bench = ask(
        Call(1, "is_model_ready", {"name": "callee", "version": ""}),
        Call(2, "is_model_ready", {"name": "other", "version": "2"}),
        Call(3, "is_model_ready", {"name": "other", "version": "two"}),
    )

    assert bench.host.control == [("ready", "callee", -1), ("ready", "other", 2)]
    results = {result.call: result for result in bench.sent}
    assert results[1].value is True
    assert results[2].value is False
    assert results[3].error.code == "INVALID_ARG"


def test_metrics_are_the_servers_and_go_with_the_worker():
    bench = Bench()
    family = {"operation": "family", "handle": 1, "name": "hits", "description": "Hits", "kind": "counter"}
    bench.calls.call(Call(1, "metric", family))
    bench.calls.call(
        Call(2, "metric", {"operation": "series", "handle": 2, "family": 1, "labels": None, "buckets": None})
    )
    bench.calls.call(Call(0, "metric", {"operation": "increment", "handle": 2, "value": 2.5}))
    bench.calls.call(Call(3, "metric", {"operation": "value", "handle": 2}))

    assert bench.sent == [Result(1), Result(2), Result(3, None, 2.5)]
    assert "hits 2.5" in list(bench.host.custom_metrics.lines())
    bench.calls.close()
    assert "hits 2.5" not in list(bench.host.custom_metrics.lines())


def test_a_failure_that_nobody_waits_for_is_logged(caplog):
    Bench().calls.call(Call(0, "metric", {"operation": "increment", "handle": 9, "value": 1.0}))

    assert "the metric does not exist any more" in caplog.text


def test_an_unknown_call_is_answered(bench):
    bench.calls.call(Call(4, "dance", {}))

    assert bench.sent[0].error.code == "UNSUPPORTED"


def test_a_broken_argument_is_answered_and_logged(caplog):
    bench = ask(Call(4, "load_model", {}))

    assert bench.sent[0].error.code == "INTERNAL"
    assert "KeyError" in caplog.text


@pytest.mark.parametrize(("level", "expected"), [(5, logging.DEBUG), (20, logging.INFO), (40, logging.ERROR)])
def test_lines_of_a_model_are_in_the_log_with_the_models_own_file_and_line(bench, caplog, level, expected):
    with caplog.at_level(logging.DEBUG, "bireme"):
        bench.calls.log(LogLine(level, "100% done", "/models/m/1/model.py", 12))

    (record,) = caplog.records
    assert (record.levelno, record.getMessage()) == (expected, "100% done")
    assert (record.pathname, record.filename, record.lineno) == ("/models/m/1/model.py", "model.py", 12)


def test_verbose_lines_cost_nothing_while_they_are_off(bench, caplog):
    with caplog.at_level(logging.INFO, "bireme"):
        bench.calls.log(LogLine(5, "detail", "/m.py", 1))

    assert caplog.records == []


def test_not_found_is_as_any_refusal(bench):
    bench.host.refusal = NotFound("Request for unknown model: 'callee' has no available versions")

    bench.infer()

    assert bench.reply.response.error.code == "INTERNAL"


def test_a_callee_is_held_while_its_caller_does_not_read(bench):
    bench.infer("stream", is_decoupled=True)
    for _ in range(MOST + 3):
        bench.answer(1.0, final=False)
    assert set(bench.host.held) == {bench.request}

    bench.calls.take(Taken(1, 10))
    assert bench.host.resumed == []
    bench.calls.take(Taken(1, MOST))

    assert bench.host.resumed == [bench.request]


def test_a_callee_that_nobody_reads_any_more_goes_on(bench):
    bench.infer("stream", is_decoupled=True)
    for _ in range(MOST):
        bench.answer(1.0, final=False)
    assert bench.host.held == [bench.request]

    bench.calls.take(Taken(1, 0))
    for _ in range(2 * MOST):
        bench.answer(1.0, final=False)

    assert (bench.host.held, bench.host.resumed) == ([bench.request], [bench.request])


def test_news_of_a_call_that_is_over_means_nothing(bench):
    bench.infer("stream", is_decoupled=True)
    bench.answer(1.0)

    bench.calls.take(Taken(1, 1))
    bench.calls.take(Taken(7, 0))

    assert (bench.host.held, bench.host.resumed) == ([], [])


def test_a_receipt_is_given_at_once(bench):
    bench.calls.call(Call(3, "receipt", {}))

    assert bench.sent == [Result(3)]
