"""Calls between models of one process: run by the caller's thread where that is possible, and counted all the same."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path

import numpy as np
import pytest

from bireme.backends.interface import ModelContext, Placement
from bireme.config import ModelConfig
from bireme.config.model_config import ModelDynamicBatching, ModelInput, ModelInstanceGroup, ModelOutput
from bireme.engine import model as model_module
from bireme.engine.loading import load_version
from bireme.engine.model import Model
from bireme.engine.timer import DeadlineTimer
from bireme.telemetry import ModelStatistics
from bireme.testing import FakeBackend, FakeRequestBackend, FakeRequestInstance, FakeRequestModel
from bireme.types import (
    BackendFailed,
    Execution,
    InferenceRequest,
    InferenceResponse,
    InvalidArgument,
    Tensor,
)
from model_dirs import until


def request(num_elements: int = 2) -> InferenceRequest:
    return InferenceRequest("m", {"X": Tensor.from_numpy("X", np.ones(num_elements, np.float32))}, print)


def run(
    scenario: Callable[[Model, FakeBackend], Awaitable[None]],
    backend: FakeBackend | None = None,
    **settings: object,
) -> None:
    async def main() -> None:
        fake = backend or FakeBackend()
        config = ModelConfig(
            name="m",
            backend="fake",
            input=(ModelInput("X", "TYPE_FP32", dims=(2,)),),
            output=(ModelOutput("Y", "TYPE_FP32", dims=(2,)),),
            instance_group=(ModelInstanceGroup("m", "KIND_CPU", 1),),
            **settings,
        )
        prepared = load_version(ModelContext("m", 1, Path(), Path(), config), fake, auto_complete=False)
        loop = asyncio.get_running_loop()
        timer = DeadlineTimer(loop)
        model = Model(prepared, loop=loop, timer=timer, statistics=ModelStatistics("m", 1))
        try:
            await scenario(model, fake)
        finally:
            await model.drain_and_close()
            timer.close()

    asyncio.run(main())


def test_the_calling_thread_runs_a_free_instance():
    async def scenario(model: Model, fake: FakeBackend) -> None:
        response = await asyncio.to_thread(model.direct_calls.call, request())

        assert response.error is None
        assert response.outputs[0].to_numpy().tolist() == [1, 1]
        assert fake.threads
        assert threading.get_ident() not in fake.threads
        assert len(model.pool.free) == 1

    run(scenario)


def test_direct_calls_are_counted():
    async def scenario(model: Model, _: FakeBackend) -> None:
        for _call in range(3):
            model.direct_calls.call(request())
        model.direct_calls.settle()

        assert model.statistics.num_accepted == model.statistics.num_succeeded == 3
        assert model.statistics.execution_count == 3

    run(scenario)


def test_they_are_counted_without_being_asked_for():
    async def scenario(model: Model, _: FakeBackend) -> None:
        model.direct_calls.call(request())
        await until(lambda: model.statistics.num_succeeded == 1)

    run(scenario)


def test_a_failure_is_a_response_and_counts_as_one():
    async def scenario(model: Model, fake: FakeBackend) -> None:
        fake.execute_error = ValueError("broken")
        response = model.direct_calls.call(request())
        model.direct_calls.settle()

        assert isinstance(response.error, BackendFailed)
        assert model.statistics.failures["BACKEND"] == 1

    run(scenario)


def test_a_request_that_does_not_fit_takes_no_instance():
    async def scenario(model: Model, _: FakeBackend) -> None:
        with pytest.raises(InvalidArgument):
            model.direct_calls.call(request(3))
        assert len(model.pool.free) == 1

    run(scenario)


def test_without_a_free_instance_a_call_has_to_wait_like_any_other():
    async def scenario(model: Model, fake: FakeBackend) -> None:
        fake.gate.clear()
        first = asyncio.create_task(asyncio.to_thread(model.direct_calls.call, request()))
        await until(lambda: fake.num_executing == 1)

        assert model.direct_calls.call(request()) is None
        answers = []
        queued = request()
        queued.respond = lambda _, response: answers.append(response)
        model.enqueue(queued)
        fake.gate.set()
        await first
        await until(lambda: bool(answers))

    run(scenario)


def test_a_model_that_retires_takes_no_calls_and_waits_for_those_it_has():
    async def scenario(model: Model, fake: FakeBackend) -> None:
        fake.gate.clear()
        calls = model.direct_calls
        running = asyncio.create_task(asyncio.to_thread(calls.call, request()))
        await until(lambda: fake.num_executing == 1)
        closing = asyncio.create_task(model.drain_and_close())
        await asyncio.sleep(0.01)

        assert calls.call(request()) is None
        assert not closing.done()
        fake.gate.set()
        await asyncio.gather(running, closing)
        assert fake.num_open_instances == 0

    run(scenario)


def test_a_model_that_retires_leaves_a_call_alone_that_is_stuck_and_nobody_waits_for(monkeypatch):
    monkeypatch.setattr(model_module, "_STUCK_S", 0.03)

    async def scenario(model: Model, fake: FakeBackend) -> None:
        fake.gate.clear()
        call = request()
        running = asyncio.create_task(asyncio.to_thread(model.direct_calls.call, call))
        await until(lambda: fake.num_executing == 1)
        closing = asyncio.create_task(model.drain_and_close())
        await asyncio.sleep(0.06)
        assert not closing.done()  # somebody waits for it
        call.cancelled = True
        await closing
        assert fake.num_open_instances == 0

        fake.gate.set()
        await running  # it comes to an end after all, and nobody minds
        assert model.pool.executions == []

    run(scenario)


def test_batching_models_and_processes_are_never_called_directly():
    async def scenario(model: Model, _: FakeBackend) -> None:
        assert model.direct_calls is None

    run(scenario, max_batch_size=2, dynamic_batching=ModelDynamicBatching())
    run(scenario, FakeRequestBackend())  # type: ignore[arg-type]


class SharedModel(FakeRequestModel):
    """Its instance is as an ensemble's."""

    def create_instance(self, placement: Placement) -> FakeRequestInstance:
        instance = super().create_instance(placement)
        instance.can_be_called = True
        return instance


class SharedBackend(FakeRequestBackend):
    def load(self, ctx: ModelContext) -> SharedModel:
        return SharedModel(self, ctx)


def test_an_ensemble_takes_any_number_of_direct_calls_and_stays_free_meanwhile():
    """A call from a step of one of them would otherwise wait for that one to end, which waits for the step."""

    async def scenario(model: Model, backend: FakeRequestBackend) -> None:
        both = threading.Barrier(3)
        (instance,) = backend.instances

        def call(execution: Execution) -> InferenceResponse:
            both.wait(10)
            both.wait(10)
            execution.compute_input_end_ns = execution.compute_output_start_ns = execution.compute_start_ns
            execution.compute_end_ns = execution.compute_start_ns
            return InferenceResponse("m", 1, "")

        instance.call = call
        calls = asyncio.gather(*(asyncio.to_thread(model.direct_calls.call, request()) for _ in range(2)))
        await asyncio.to_thread(both.wait, 10)
        assert len(model.pool.executions) == 2
        assert len(model.pool.free) == 1
        await asyncio.to_thread(both.wait, 10)

        assert [response.error for response in await calls] == [None, None]
        assert len(model.pool.free) == 1

    run(scenario, SharedBackend(max_concurrent=1000))
