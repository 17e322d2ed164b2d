"""Deadlines of requests: past them callers wait no longer, whether the request waits or runs, or has called others."""

from __future__ import annotations

import asyncio
import time

import numpy as np
import pytest

from bireme import Server
from bireme.backends.python.pb_utils.errors import ErrorCode, error_from_code
from bireme.engine import model as model_module
from bireme.engine.request_deadlines import (
    REQUEST_PARAMETER,
    RequestDeadlines,
    inherit_deadline,
    take_deadline,
)
from bireme.engine.timer import DeadlineTimer
from bireme.frontend.grpc.errors import status_of as grpc_status_of
from bireme.frontend.http.errors import status_of as http_status_of
from bireme.testing import FakeBackend, FakeRequestBackend
from bireme.types import Cancelled, DeadlineExceeded, Execution, InferenceRequest, InvalidArgument, Tensor
from bireme.wire.grpc.status import Status
from model_dirs import add_fake_ensemble, add_fake_model, until
from waiting import make_request

SOON = {REQUEST_PARAMETER: 3000}
X = {"X": np.zeros(2, np.float32)}
DEFAULT = 'parameters { key: "deadline_us" value { string_value: "3000" } }'


def submit(server, name="m", answers=None, **parameters):
    request = InferenceRequest(
        name,
        {"X": Tensor.from_numpy("X", X["X"])},
        lambda _, response: answers.append(response),
        parameters=parameters or None,
    )
    server.submit(request)
    return request


def run(scenario, root, backend, **options):
    async def main():
        async with Server(root, backends={"fake": backend}, **options) as server:
            await scenario(server)

    asyncio.run(main())


def failures(server, name="m"):
    return server.model(name).statistics.failures


def test_a_request_that_waits_leaves_the_queue_and_never_runs(tmp_path):
    add_fake_model(tmp_path, "m")
    backend = FakeRequestBackend()

    async def scenario(server):
        answers = []
        running = submit(server, answers=answers)
        submit(server, answers=answers, **SOON)

        await until(lambda: answers)
        (response,) = answers

        assert isinstance(response.error, DeadlineExceeded)
        assert "the request's deadline has passed while it was queued" in response.error.message
        assert backend.instances[0].requests == [running]
        backend.instances[0].answer({"Y": X["X"]})
        assert len(answers) == 2
        assert server.model("m").num_in_flight == 0
        assert backend.instances[0].requests == [running]

    run(scenario, tmp_path, backend)


def test_the_caller_of_a_request_that_runs_is_answered_and_its_code_is_told(tmp_path):
    add_fake_model(tmp_path, "m")
    backend = FakeRequestBackend()

    async def scenario(server):
        answers = []
        request = submit(server, answers=answers, **SOON)
        await until(lambda: answers)

        assert "while it ran" in answers[0].error.message
        assert backend.instances[0].cancelled == [request]
        assert request.cancelled
        assert server.model("m").num_in_flight == 1  # the instance still has it

        backend.instances[0].answer({"Y": X["X"]})

        assert len(answers) == 1
        assert server.model("m").num_in_flight == 0
        assert server.model("m").statistics.num_succeeded == 0
        assert failures(server)["CANCELED"] == 1

    run(scenario, tmp_path, backend)


def test_code_that_never_ends_after_its_deadline_holds_up_no_unload(tmp_path, monkeypatch):
    monkeypatch.setattr(model_module, "_STUCK_S", 0.01)
    add_fake_model(tmp_path, "m")
    backend = FakeRequestBackend()

    async def scenario(server):
        answers = []
        submit(server, answers=answers, **SOON)
        await until(lambda: answers)

        await server.unload_model("m")

        await until(lambda: backend.instances[0].num_closes)
        assert backend.instances[0].num_kills == 1
        assert len(answers) == 1

    run(scenario, tmp_path, backend, model_control_mode="explicit", load_model=("m",))


def test_late_results_of_tensors_are_dropped_and_count_as_failed(tmp_path):
    add_fake_model(tmp_path, "m")
    backend = FakeBackend()
    backend.gate.clear()

    async def scenario(server):
        answers = []
        submit(server, answers=answers, **SOON)
        await until(lambda: answers)
        backend.gate.set()
        await until(lambda: server.model("m").num_in_flight == 0)

        assert isinstance(answers[0].error, DeadlineExceeded)
        assert len(answers) == 1
        assert failures(server)["CANCELED"] == 1

    run(scenario, tmp_path, backend)


def test_an_answer_in_time_is_as_ever_and_leaves_nothing_behind(tmp_path):
    add_fake_model(tmp_path, "m", extra=DEFAULT)
    backend = FakeRequestBackend()

    async def scenario(server):
        answers = []
        submit(server, answers=answers, **{REQUEST_PARAMETER: 10_000_000})
        backend.instances[0].answer({"Y": X["X"]})

        assert answers[0].error is None
        assert len(server.model("m")._answers.deadlines) == 0

    run(scenario, tmp_path, backend)


def test_the_model_sees_no_parameter_and_its_own_default_gives_way(tmp_path):
    add_fake_model(tmp_path, "m", extra=DEFAULT)
    backend = FakeRequestBackend()

    async def scenario(server):
        answers = []
        for_ever = submit(server, answers=answers, **{REQUEST_PARAMETER: 0, "mine": 1})
        default = submit(server, answers=answers)
        await until(lambda: answers)

        assert [response.id for response in answers] == [default.id]
        assert backend.instances[0].requests == [for_ever]
        assert for_ever.parameters == {"mine": 1}
        backend.instances[0].answer({"Y": X["X"]})

    run(scenario, tmp_path, backend)


@pytest.mark.parametrize("value", [True, -1, 1.5, "soon", "-1", 10**16, "9" * 30])
def test_a_wrong_value_is_refused(value):
    request = make_request("a")
    request.parameters = {REQUEST_PARAMETER: value}

    with pytest.raises(InvalidArgument, match="'bireme_deadline_us': expected microseconds"):
        take_deadline(request)


def test_a_forwarded_header_is_a_deadline_too():
    request = make_request("a")
    request.parameters = {REQUEST_PARAMETER: "1000"}
    before_ns = time.monotonic_ns()

    take_deadline(request)

    assert before_ns + 10**6 <= request.deadline_ns <= time.monotonic_ns() + 10**6
    assert request.parameters is None


def test_a_wrong_default_fails_the_load(tmp_path):
    add_fake_model(tmp_path, "m", extra=DEFAULT.replace("3000", "3 ms"))

    async def main():
        async with Server(tmp_path, backends={"fake": FakeBackend()}, exit_on_error=False) as server:
            (entry,) = server.repository_index()
            assert "parameter 'deadline_us' of m: expected microseconds" in entry["reason"]

    asyncio.run(main())


@pytest.mark.parametrize(
    ("callers", "own", "expected"),
    [
        ([5], 0, 5),
        ([5], 3, 3),
        ([5], 9, 5),
        ([5], -1, 5),
        ([5, 8], 0, 8),
        ([5, 0], 0, 0),
        ([5, -1], 3, 3),
        ([], 3, 3),
    ],
)
def test_a_call_has_the_time_that_is_left_for_the_last_of_those_it_is_made_for(callers, own, expected):
    requests = [make_request() for _ in callers]
    for request, deadline in zip(requests, callers, strict=True):
        request.deadline_ns = deadline
    call = make_request()
    call.deadline_ns = own

    inherit_deadline(call, Execution(requests, 1, "single"))

    assert call.deadline_ns == expected


def test_a_call_ends_with_its_caller(tmp_path):
    add_fake_model(tmp_path, "caller")
    add_fake_model(tmp_path, "m")
    backend = FakeRequestBackend()

    async def scenario(server):
        answers, called = [], []
        caller = submit(server, "caller", answers, **SOON)
        call = InferenceRequest("m", {"X": Tensor.from_numpy("X", X["X"])}, lambda _, r: called.append(r))
        call.parent = caller.execution
        server._running()._loader._host.submit(call)
        await until(lambda: called and answers)

        assert isinstance(called[0].error, DeadlineExceeded)
        assert isinstance(answers[0].error, DeadlineExceeded)
        for instance in backend.instances:
            assert len(instance.cancelled) == 1
            instance.answer({"Y": X["X"]})

    run(scenario, tmp_path, backend)


def test_who_gives_up_a_request_gives_up_the_calls_that_are_made_for_it(tmp_path):
    for name in ("caller", "m", "other"):
        add_fake_model(tmp_path, name)
    backend = FakeRequestBackend()

    async def scenario(server):
        answers, called = [], []
        caller = submit(server, "caller", answers)
        submit(server, "other", answers)
        host = server._running()._loader._host
        for name in ("m", "other"):
            call = InferenceRequest(
                name, {"X": Tensor.from_numpy("X", X["X"])}, lambda _, r: called.append(r)
            )
            call.parent = caller.execution
            host.submit(call)

        server.cancel(caller)

        (refused,) = called  # the one that waited
        assert isinstance(refused.error, Cancelled)
        told = {instance.model.ctx.name for instance in backend.instances if instance.cancelled}
        assert told == {"caller", "m"}
        for instance in backend.instances:
            instance.answer({"Y": X["X"]})
        assert len(called) == len(answers) == 2

    run(scenario, tmp_path, backend)


def test_calls_for_a_batch_go_on_while_somebody_waits_for_it(tmp_path):
    batching = "max_batch_size: 2 dynamic_batching { }"
    add_fake_model(tmp_path, "caller", extra=batching)
    add_fake_model(tmp_path, "m")
    backend = FakeRequestBackend()

    async def scenario(server):
        answers, called = [], []
        x = Tensor.from_numpy("X", np.zeros((1, 2), np.float32))
        batch = [InferenceRequest("caller", {"X": x}, lambda _, r: answers.append(r)) for _ in range(2)]
        for request in batch:
            server.submit(request)
        await until(lambda: batch[1].execution)
        call = InferenceRequest("m", {"X": Tensor.from_numpy("X", X["X"])}, lambda _, r: called.append(r))
        call.parent = batch[0].execution
        server._running()._loader._host.submit(call)

        server.cancel(batch[0])
        assert not call.cancelled
        server.cancel(batch[1])
        assert call.cancelled

        backend.instances[0].answer({"Y": np.zeros((1, 2), np.float32)})
        backend.instances[1].answer({"Y": X["X"]})

    run(scenario, tmp_path, backend)


def test_an_ensemble_and_its_steps_end_together(tmp_path):
    add_fake_model(tmp_path, "m")
    add_fake_ensemble(tmp_path, "e", "m", "m")
    backend = FakeRequestBackend()

    async def scenario(server):
        answers = []
        submit(server, "e", answers, **SOON)
        await until(lambda: answers)

        assert isinstance(answers[0].error, DeadlineExceeded)
        assert len(backend.instances[0].cancelled) == 1
        backend.instances[0].answer({"Y": X["X"]})
        await until(lambda: not server.model("e").num_in_flight)
        assert len(backend.instances[0].requests) == 1  # the second step never began
        assert len(answers) == 1

    run(scenario, tmp_path, backend)


def test_one_alarm_serves_all_requests_in_the_order_of_their_deadlines():
    async def main():
        timer = DeadlineTimer(asyncio.get_running_loop())
        expired = []
        deadlines = RequestDeadlines(timer, 0, expired.append)
        now_ns = time.monotonic_ns()
        requests = [make_request(name) for name in "abcd"]
        for request, delay_ms in zip(requests, (6, 2, 4, 3), strict=True):
            request.deadline_ns = now_ns + delay_ms * 10**6
            deadlines.add(request, now_ns)
        deadlines.discard(requests[3])

        await until(lambda: len(expired) == 3)

        assert "".join(request.id for request in expired) == "bca"
        deadlines.close()
        timer.close()

    asyncio.run(main())


def test_the_protocols_say_deadline_exceeded():
    assert grpc_status_of(DeadlineExceeded("")) is Status.DEADLINE_EXCEEDED
    assert http_status_of(DeadlineExceeded("")) == 503


@pytest.mark.parametrize("whose", ["own", "parameter", "caller", "model"])
def test_a_call_with_a_deadline_does_not_go_past_the_queue(tmp_path, whose):
    add_fake_model(tmp_path, "m", extra=DEFAULT.replace("3000", "9000000") if whose == "model" else "")

    async def scenario(server):
        request = InferenceRequest("m", {"X": Tensor.from_numpy("X", X["X"])}, lambda *_: None)
        caller = make_request()
        request.parent = Execution([caller], 1, "single")
        calls = server.model("m").direct_calls
        if whose == "own":
            request.deadline_ns = 10**18
        elif whose == "parameter":
            request.parameters = dict(SOON)
        elif whose == "caller":
            caller.deadline_ns = 10**18
        assert calls.call(request) is None
        if whose != "model":
            request.deadline_ns = caller.deadline_ns = 0
            request.parameters = None
            assert calls.call(request).error is None

    run(scenario, tmp_path, FakeBackend())


def test_models_know_of_no_such_error_code():
    error = error_from_code(DeadlineExceeded.code, "late")

    assert error.code() is ErrorCode.UNAVAILABLE
