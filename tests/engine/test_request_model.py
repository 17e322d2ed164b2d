"""Models whose instances take whole requests: any number of responses, instances that die, calls between models."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import numpy as np
import pytest

from bireme.backends.interface import ModelContext
from bireme.config import ModelConfig
from bireme.config.model_config import ModelInput, ModelInstanceGroup, ModelOutput, ModelTransactionPolicy
from bireme.engine import model as model_module
from bireme.engine.loading import load_version
from bireme.engine.model import Model
from bireme.engine.timer import DeadlineTimer
from bireme.telemetry import ModelStatistics
from bireme.testing import FakeRequestBackend, FakeRequestInstance
from bireme.types import (
    BackendFailed,
    Execution,
    InferenceRequest,
    InferenceResponse,
    InvalidArgument,
    Tensor,
    Unavailable,
)

VALUE = {"Y": np.zeros(2, np.float32)}


class Harness:
    def __init__(self, model: Model, backend: FakeRequestBackend) -> None:
        self.model = model
        self.statistics = model.statistics
        self.instances = backend.instances
        self.answers: list[tuple[str, InferenceResponse]] = []

    @property
    def instance(self) -> FakeRequestInstance:
        return self.instances[0]

    def send(self, request_id: str = "a", parent: Execution | None = None) -> InferenceRequest:
        tensor = Tensor.from_numpy("X", np.zeros(2, np.float32))
        request = InferenceRequest("m", {"X": tensor}, self._respond, id=request_id)
        request.parent = parent
        self.model.enqueue(request)
        return request

    def _respond(self, request: InferenceRequest, response: InferenceResponse) -> None:
        self.answers.append((request.id, response))

    def error(self, request_id: str) -> Exception | None:
        return next(response.error for answered, response in self.answers if answered == request_id)


def run(
    scenario: Callable[[Harness], Awaitable[None]],
    *,
    count: int = 1,
    max_concurrent: int = 1,
    decoupled: bool = False,
    ready: bool | None = None,
) -> None:
    async def main() -> None:
        backend = FakeRequestBackend(max_concurrent=max_concurrent, ready=ready)
        config = ModelConfig(
            name="m",
            backend="fake",
            input=(ModelInput("X", "TYPE_FP32", dims=(2,)),),
            output=(ModelOutput("Y", "TYPE_FP32", dims=(2,)),),
            instance_group=(ModelInstanceGroup("m", "KIND_CPU", count),),
            model_transaction_policy=ModelTransactionPolicy(decoupled=True) if decoupled else None,
        )
        prepared = load_version(ModelContext("m", 1, Path(), Path(), config), backend, auto_complete=False)
        loop = asyncio.get_running_loop()
        timer = DeadlineTimer(loop)
        statistics = ModelStatistics("m", 1)
        harness = Harness(Model(prepared, loop=loop, timer=timer, statistics=statistics), backend)
        try:
            await scenario(harness)
            await harness.model.drain_and_close()
        finally:
            timer.close()
        assert harness.model.num_in_flight == statistics.num_executing == statistics.num_pending == 0
        assert statistics.num_accepted == statistics.num_succeeded + statistics.num_failed
        assert all(instance.num_closes == 1 for instance in backend.instances)

    asyncio.run(main())


def test_a_request_is_answered_and_its_instance_takes_the_next_one():
    async def scenario(h: Harness) -> None:
        h.send("a")
        h.send("b")
        assert len(h.instance.executions) == 1

        h.instance.answer(VALUE)
        h.instance.answer(VALUE)

        assert [answered for answered, _ in h.answers] == ["a", "b"]
        assert all(response.final and response.outputs for _, response in h.answers)
        assert h.statistics.num_succeeded == h.statistics.execution_count == 2

    run(scenario)


def test_each_request_of_a_batch_counts_as_its_own_answer_says():
    async def scenario(h: Harness) -> None:
        for request_id in "abc":
            h.send(request_id)
        h.instance.send(h.instance.requests[0], error=BackendFailed("x"), final=True)
        h.instance.finish()
        h.instance.send(h.instance.requests[1], error=InvalidArgument("y"), final=True)
        h.instance.finish()
        h.instance.answer(VALUE)

        assert h.statistics.failures["BACKEND"] == 2
        assert h.statistics.num_succeeded == 1

    run(scenario)


def test_a_batch_that_failed_answers_what_is_still_open():
    async def scenario(h: Harness) -> None:
        h.send("a")
        h.instance.finish(BackendFailed("broken"))

        assert str(h.error("a")) == "broken"
        assert h.statistics.execution_count == 0

    run(scenario)


def test_responses_of_a_decoupled_model_leave_as_they_come():
    async def scenario(h: Harness) -> None:
        request = h.send("a")
        h.instance.send(request, VALUE)
        h.instance.finish()
        h.send("b")  # the instance is free though "a" is open
        h.instance.send(request, VALUE)
        h.instance.send(request)

        assert [(response.final, response.flag_only) for _, response in h.answers] == [
            (False, False),
            (False, False),
            (True, True),
        ]
        h.instance.answer(VALUE)

    run(scenario, decoupled=True)


def test_nothing_comes_after_a_final_response():
    async def scenario(h: Harness) -> None:
        request = h.send("a")
        h.instance.send(request, VALUE, final=True)
        h.instance.send(request, VALUE)
        h.instance.finish(BackendFailed("late"))

        assert len(h.answers) == 1
        assert h.statistics.num_succeeded == 1

    run(scenario, decoupled=True)


def test_an_error_among_the_responses_of_a_stream_makes_it_a_failure():
    async def scenario(h: Harness) -> None:
        request = h.send("a")
        h.instance.send(request, error=BackendFailed("x"))
        h.instance.send(request)
        h.instance.finish()

        assert h.statistics.failures["BACKEND"] == 1

    run(scenario, decoupled=True)


def test_a_model_that_answers_once_is_answered_for_when_it_says_that_no_more_comes():
    async def scenario(h: Harness) -> None:
        request = h.send("a")
        h.instance.send(request, VALUE)
        assert not h.answers
        h.instance.send(request)
        h.instance.finish()

        ((_, response),) = h.answers
        assert response.final
        assert not response.flag_only
        assert response.outputs

    run(scenario)


def test_a_model_that_must_answer_and_does_not_is_told_of():
    async def scenario(h: Harness) -> None:
        h.instances[0].send(h.send("a"))
        h.instance.finish()

        assert str(h.error("a")) == "expected a single response, got 0"

    run(scenario)


def test_an_instance_takes_as_many_executions_as_it_says():
    async def scenario(h: Harness) -> None:
        for request_id in "abcd":
            h.send(request_id)
        assert len(h.instance.executions) == 3

        for _ in range(4):
            h.instance.answer(VALUE)

        assert len(h.answers) == 4

    run(scenario, max_concurrent=3)


def test_instances_share_the_work():
    async def scenario(h: Harness) -> None:
        for request_id in "abcd":
            h.send(request_id)

        assert [len(instance.executions) for instance in h.instances] == [2, 2]
        for instance in h.instances:
            instance.answer(VALUE)
            instance.answer(VALUE)

    run(scenario, count=2, max_concurrent=3)


def test_a_running_request_that_is_cancelled_is_told_to_its_instance():
    async def scenario(h: Harness) -> None:
        request = h.send("a")
        h.model.cancel(request)
        h.model.cancel(request)

        assert h.instance.cancelled == [request]
        assert request.cancelled
        h.instance.answer(VALUE)

    run(scenario)


def test_while_a_process_is_started_again_requests_wait():
    async def scenario(h: Harness) -> None:
        h.send("a")
        h.send("b")
        h.instance.die("died", retry_delay_s=0)
        assert isinstance(h.error("a"), Unavailable)
        assert not h.model.is_up
        assert h.model.away_reason == "died"
        h.send("c")

        h.instance.revive()
        await asyncio.sleep(0)
        assert h.model.is_up
        assert h.statistics.num_restarts == 1
        h.instance.answer(VALUE)
        h.instance.answer(VALUE)

        assert [answered for answered, _ in h.answers] == ["a", "b", "c"]

    run(scenario)


def test_a_process_that_dies_time_and_again_is_not_waited_for():
    async def scenario(h: Harness) -> None:
        h.send("a")
        h.send("b")
        h.instance.die("was killed by signal 11", retry_delay_s=2)
        assert "signal 11" in str(h.error("b"))

        with pytest.raises(Unavailable, match="model 'm' version 1 is not ready: was killed by signal 11"):
            h.send("c")
        h.instance.revive()
        h.send("d")
        h.instance.answer(VALUE)

    run(scenario)


def test_one_instance_that_is_away_does_not_keep_the_others_from_working():
    async def scenario(h: Harness) -> None:
        h.instances[0].die("died", retry_delay_s=5)
        assert h.model.is_up
        h.send("a")
        h.send("b")
        assert len(h.instances[1].executions) == 1
        h.instances[0].revive()
        await asyncio.sleep(0)
        assert len(h.instances[0].executions) == 1
        for instance in h.instances:
            instance.answer(VALUE)

    run(scenario, count=2)


def test_a_model_is_asked_whether_it_is_ready():
    async def scenario(h: Harness) -> None:
        assert h.model.has_ready_hook
        assert not await h.model.check_ready()

    run(scenario, ready=False)


def test_a_retiring_model_ends_what_nobody_waits_for(monkeypatch):
    monkeypatch.setattr(model_module, "_STUCK_S", 0.01)

    async def scenario(h: Harness) -> None:
        request = h.send("a")
        closing = asyncio.create_task(h.model.drain_and_close())
        await asyncio.sleep(0.03)
        assert not h.instance.num_kills  # somebody waits
        h.model.cancel(request)
        await closing

        assert h.instance.num_kills == 1

    run(scenario)


def test_a_model_that_calls_itself_without_a_free_instance_is_refused():
    async def scenario(h: Harness) -> None:
        h.send("a")
        with pytest.raises(Unavailable, match="would never be answered"):
            h.send("b", parent=h.instance.executions[0])
        h.instance.answer(VALUE)

    run(scenario)


def test_a_call_is_forgotten_when_it_is_answered():
    async def scenario(h: Harness) -> None:
        h.send("a")
        caller = h.instances[1].executions[0] if h.instances[1].executions else h.instances[0].executions[0]
        called = h.send("b", parent=caller)
        assert caller.calls == {called}
        for instance in h.instances:
            instance.answer(VALUE)

        assert not caller.calls

    run(scenario, count=2)
