"""Model: every accepted request is answered exactly once, at the right time, and counted where it belongs."""

import asyncio
import gc
import random
import threading
import weakref
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bireme.backends.interface import ModelContext
from bireme.config import ModelConfig
from bireme.config.model_config import (
    ModelDynamicBatching,
    ModelInput,
    ModelInstanceGroup,
    ModelOutput,
    ModelQueuePolicy,
    ModelWarmup,
    WarmupInput,
)
from bireme.engine.loading import load_version
from bireme.engine.model import Model
from bireme.engine.timer import DeadlineTimer
from bireme.telemetry import ModelStatistics, log
from bireme.testing import FakeBackend
from bireme.types import (
    Array,
    BackendFailed,
    Cancelled,
    InferenceRequest,
    InferenceResponse,
    InvalidArgument,
    QueueFull,
    RequestTimedOut,
    Tensor,
    Unavailable,
)


def config(
    *, batching: ModelDynamicBatching | None = None, max_batch_size: int = 0, count: int = 1
) -> ModelConfig:
    return ModelConfig(
        name="m",
        backend="fake",
        max_batch_size=max_batch_size,
        input=(ModelInput("X", "TYPE_FP32", dims=(2,)),),
        output=(ModelOutput("Y", "TYPE_FP32", dims=(2,)),),
        instance_group=(ModelInstanceGroup("m", "KIND_CPU", count),),
        dynamic_batching=batching,
    )


class Harness:
    """One model over a fake backend, and what was answered, in order."""

    def __init__(self, model: Model, backend: FakeBackend, timer: DeadlineTimer) -> None:
        self.model = model
        self.backend = backend
        self.timer = timer
        self.answers: list[tuple[str, InferenceResponse]] = []

    def send(
        self, request_id: str, rows: int | None = None, value: float = 0.0, **options: int
    ) -> InferenceRequest:
        shape = (2,) if rows is None else (rows, 2)
        tensor = Tensor.from_numpy("X", np.full(shape, value, np.float32))
        request = InferenceRequest("m", {"X": tensor}, self._respond, id=request_id, **options)
        self.model.enqueue(request)
        return request

    def _respond(self, request: InferenceRequest, response: InferenceResponse) -> None:
        self.answers.append((request.id, response))

    @property
    def answered(self) -> list[str]:
        return [request_id for request_id, _ in self.answers]

    def error(self, request_id: str) -> Exception | None:
        (found,) = [response.error for answered, response in self.answers if answered == request_id]
        return found

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(5):
            while not condition():  # noqa: ASYNC110 - the condition changes on other threads
                await asyncio.sleep(0.001)

    async def until_executing(self, count: int = 1) -> None:
        await self.until(lambda: self.backend.num_executing == count)

    async def settle(self) -> None:
        self.backend.gate.set()
        await self.until(lambda: self.model.num_in_flight == 0)


def run(
    scenario: Callable[[Harness], Awaitable[None]],
    model_config: ModelConfig,
    backend: FakeBackend | None = None,
) -> None:
    """Run ``scenario`` over a fresh model; afterwards everything must be closed and the books must balance."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        fake = backend or FakeBackend()
        ctx = ModelContext("m", 1, Path(), Path(), model_config)
        prepared = load_version(ctx, fake, auto_complete=False)
        timer = DeadlineTimer(loop)
        statistics = ModelStatistics("m", 1)
        harness = Harness(Model(prepared, loop=loop, timer=timer, statistics=statistics), fake, timer)
        try:
            await scenario(harness)
        finally:
            fake.gate.set()
            await harness.model.drain_and_close()
            timer.close()

        assert fake.num_open_instances == fake.num_open_models == 0
        assert len(set(harness.answered)) == len(harness.answered)
        assert statistics.num_accepted == statistics.num_succeeded + sum(statistics.failures.values())

    asyncio.run(main())


def test_request_is_answered_with_the_models_outputs() -> None:
    async def scenario(h: Harness) -> None:
        h.send("a", value=3)
        await h.settle()
        (response,) = [response for _, response in h.answers]

        assert response.error is None
        assert (response.model_name, response.model_version, response.id, response.final) == (
            "m",
            1,
            "a",
            True,
        )
        assert response.outputs[0].to_numpy().tolist() == [3, 3]

    run(scenario, config())


def test_invalid_request_is_refused_before_it_is_counted() -> None:
    async def scenario(h: Harness) -> None:
        with pytest.raises(InvalidArgument, match="unexpected shape"):
            h.send("a", rows=3)

        assert h.model.statistics.num_accepted == 0

    run(scenario, config())


def test_what_arrives_in_one_loop_iteration_forms_one_batch() -> None:
    async def scenario(h: Harness) -> None:
        for index in range(5):
            h.send(str(index), rows=1, value=index)
        await h.settle()

        assert [shapes["X"] for shapes in h.backend.batches] == [(4, 2), (1, 2)]
        assert [r.outputs[0].to_numpy()[0, 0] for _, r in sorted(h.answers)] == [0, 1, 2, 3, 4]

    run(scenario, config(batching=ModelDynamicBatching((4,)), max_batch_size=4))


def test_verbose_log_tells_of_every_batch_and_why_it_was_closed(capsys: pytest.CaptureFixture[str]) -> None:
    async def scenario(h: Harness) -> None:
        for request_id in ("a", "b"):
            h.send(request_id, rows=1)
        await h.settle()

    log.configure(verbose=2)
    try:
        run(scenario, config(batching=ModelDynamicBatching((2,)), max_batch_size=2))
        written = capsys.readouterr().out
    finally:
        log.settings.uninstall()

    assert "model 'm' version 1: batch of 2 from 2 requests, closed by 'full', took " in written


def test_queue_limit_is_exact_and_running_requests_do_not_count() -> None:
    policy = ModelQueuePolicy(max_queue_size=2)

    async def scenario(h: Harness) -> None:
        h.backend.gate.clear()
        h.send("running", rows=1)
        await h.until_executing()
        h.send("waits 1", rows=1)
        h.send("waits 2", rows=1)
        with pytest.raises(QueueFull, match="Exceeds maximum queue size"):
            h.send("refused", rows=1)
        await h.settle()

        assert h.answered == ["running", "waits 1", "waits 2"]
        assert h.model.statistics.failures["REJECTED"] == 1

    run(scenario, config(batching=ModelDynamicBatching((1,), default_queue_policy=policy), max_batch_size=1))


def test_queue_timeout_fires_while_the_instance_is_busy() -> None:
    policy = ModelQueuePolicy(default_timeout_microseconds=40_000, allow_timeout_override=True)

    async def scenario(h: Harness) -> None:
        h.backend.gate.clear()
        h.send("running", rows=1)
        await h.until_executing()
        h.send("default", rows=1)
        h.send("sooner", rows=1, timeout_us=10_000)
        await h.until(lambda: len(h.answers) == 2)

        assert h.answered == ["sooner", "default"]
        assert isinstance(h.error("sooner"), RequestTimedOut)
        assert h.backend.num_executing == 1
        await h.settle()

        assert h.error("running") is None

    run(scenario, config(batching=ModelDynamicBatching((1,), default_queue_policy=policy), max_batch_size=1))


def test_delayed_request_runs_after_its_timeout() -> None:
    policy = ModelQueuePolicy("DELAY", default_timeout_microseconds=10_000_000, allow_timeout_override=True)

    async def scenario(h: Harness) -> None:
        h.backend.gate.clear()
        h.send("running", rows=1)
        await h.until_executing()
        h.send("delayed", rows=1, timeout_us=1000)
        await asyncio.sleep(0.005)
        h.send("fresh", rows=1)
        await h.settle()

        assert h.answered == ["running", "fresh", "delayed"]
        assert all(response.error is None for _, response in h.answers)

    run(scenario, config(batching=ModelDynamicBatching((1,), default_queue_policy=policy), max_batch_size=1))


def test_partial_batch_leaves_after_the_queue_delay() -> None:
    batching = ModelDynamicBatching((4,), max_queue_delay_microseconds=2000)

    async def scenario(h: Harness) -> None:
        h.send("a", rows=1)
        await asyncio.sleep(0)
        h.send("b", rows=1)
        await h.settle()

        assert [shapes["X"] for shapes in h.backend.batches] == [(2, 2)]
        assert h.answers[0][1].error is None

    run(scenario, config(batching=batching, max_batch_size=4))


def test_cancelled_request_never_runs_and_is_answered_at_once() -> None:
    async def scenario(h: Harness) -> None:
        h.backend.gate.clear()
        running = h.send("running")
        await h.until_executing()
        waiting = h.send("waiting")
        h.model.cancel(waiting)
        h.model.cancel(waiting)

        assert isinstance(h.error("waiting"), Cancelled)
        h.model.cancel(running)
        assert running.cancelled
        await h.settle()

        assert len(h.backend.batches) == 1
        assert h.model.statistics.failures["CANCELED"] == 1
        assert h.model.statistics.num_succeeded == 1

    run(scenario, config())


def test_failed_execution_answers_the_batch_and_the_model_goes_on() -> None:
    async def scenario(h: Harness) -> None:
        h.backend.execute_error = ValueError("no such weight")
        h.send("a", rows=1)
        h.send("b", rows=1)
        await h.settle()
        h.backend.execute_error = None
        h.send("c", rows=1)
        await h.settle()

        assert isinstance(h.error("a"), BackendFailed)
        assert "model 'm' version 1 failed: no such weight" in str(h.error("b"))
        assert h.error("c") is None
        assert h.model.statistics.failures["BACKEND"] == 2

    run(scenario, config(batching=ModelDynamicBatching((4,)), max_batch_size=4))


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), GeneratorExit()])
def test_a_model_that_ends_its_thread_ends_its_batch_alone(error: BaseException) -> None:
    def execute(inputs: dict[str, Array]) -> dict[str, Array]:
        if inputs["X"].any():
            raise error
        return {"Y": inputs["X"]}

    async def scenario(h: Harness) -> None:
        h.send("a", value=1.0)
        await h.settle()
        h.send("b")
        await h.settle()

        assert f"model 'm' version 1 failed: {type(error).__name__}" in str(h.error("a"))
        assert h.error("b") is None

    run(scenario, config(), FakeBackend(execute))


def test_an_input_that_the_instance_refuses_fails_no_other_request() -> None:
    def execute(inputs: dict[str, Array]) -> dict[str, Array]:
        if inputs["X"].max() > 1:
            raise InvalidArgument("too large")
        return {"Y": inputs["X"]}

    async def scenario(h: Harness) -> None:
        for value in range(4):
            h.send(str(value), rows=1, value=value)
        await h.settle()

        assert [h.error(name) is None for name in ("0", "1", "2", "3")] == [True, True, False, False]
        assert str(h.error("2")) == "too large"
        assert {
            shape for name, response in h.answers if name == "1" for shape in [response.outputs[0].shape]
        } == {(1, 2)}

    batching = ModelDynamicBatching((4,), 1_000_000)
    run(scenario, config(batching=batching, max_batch_size=4), FakeBackend(execute))


def test_nothing_keeps_a_requests_tensors_once_it_is_answered() -> None:
    async def scenario(h: Harness) -> None:
        tensor = weakref.ref(h.send("a", rows=1).inputs["X"].to_numpy())
        await h.settle()

        assert tensor() is None

    gc.disable()  # reference counts alone must do: a collection may come much later
    try:
        batching = ModelDynamicBatching((4,))
        model_config = config(batching=batching, max_batch_size=4)
        run(scenario, model_config, FakeBackend(lambda inputs: {"Y": inputs["X"] + 1}))
    finally:
        gc.enable()


def test_warm_up_counts_in_the_statistics() -> None:
    async def scenario(h: Harness) -> None:
        statistics = h.model.statistics

        assert (statistics.num_succeeded, statistics.execution_count) == (6, 3)
        assert statistics.num_pending == statistics.num_executing == 0

    sample = ModelWarmup("zeros", 2, {"X": WarmupInput("TYPE_FP32", (2,), zero_data=True)}, count=3)
    run(scenario, replace(config(max_batch_size=4), model_warmup=(sample,)))


def test_a_caller_that_fails_to_take_its_answer_costs_nobody_else_theirs() -> None:
    async def scenario(h: Harness) -> None:
        bad = InferenceRequest(
            "m", {"X": Tensor.from_numpy("X", np.zeros((1, 2), np.float32))}, lambda *_: 1 / 0, id="bad"
        )
        h.model.enqueue(bad)
        h.send("good", rows=1)
        await h.settle()

        assert h.answered == ["good"]

    run(scenario, config(batching=ModelDynamicBatching((4,)), max_batch_size=4))


def test_responses_keep_the_order_of_arrival_over_two_instances() -> None:
    first_may_end = asyncio.Event()

    def slow_for_zero(inputs):
        if inputs["X"][0, 0] == 0:
            asyncio.run_coroutine_threadsafe(first_may_end.wait(), loop).result(5)
        return {"Y": inputs["X"]}

    async def scenario(h: Harness) -> None:
        nonlocal loop
        loop = asyncio.get_running_loop()
        h.send("first", rows=1, value=0)
        await h.until_executing()
        h.send("second", rows=1, value=1)
        await h.until(lambda: len(h.backend.batches) == 2 and h.backend.num_executing == 1)
        await asyncio.sleep(0.005)

        assert h.answered == []
        first_may_end.set()
        await h.settle()

        assert h.answered == ["first", "second"]

    loop = None
    batching = ModelDynamicBatching((1,), preserve_ordering=True)
    run(scenario, config(batching=batching, max_batch_size=1, count=2), FakeBackend(slow_for_zero))


def test_statistics_tell_what_waits_and_which_instances_are_busy() -> None:
    async def scenario(h: Harness) -> None:
        h.backend.gate.clear()
        h.send("running")
        await h.until_executing()
        h.send("waiting")
        busy = h.model.queue_statistics()

        assert busy["queue"]["waiting"] == 1
        assert (busy["instances"], busy["instances_free"], busy["inline"]) == (1, 0, False)
        assert "1 of 1 instances busy" in repr(h.model)
        await h.settle()

        assert h.model.queue_statistics()["instances_free"] == 1

    run(scenario, config())


def test_draining_model_finishes_what_it_accepted_and_takes_no_more() -> None:
    async def scenario(h: Harness) -> None:
        h.backend.gate.clear()
        h.send("running")
        await h.until_executing()
        h.send("waiting")
        draining = asyncio.ensure_future(h.model.drain_and_close())
        await asyncio.sleep(0)
        with pytest.raises(Unavailable, match="has stopped accepting"):
            h.send("late")
        h.backend.gate.set()
        await asyncio.wait_for(draining, 5)

        assert h.answered == ["running", "waiting"]

    run(scenario, config())


def test_instances_run_in_parallel_and_none_runs_twice_at_once() -> None:
    async def scenario(h: Harness) -> None:
        h.backend.gate.clear()
        for index in range(5):
            h.send(str(index))
        await h.until_executing(3)
        await h.settle()

        assert h.backend.max_executing == 3

    run(scenario, config(count=3))


class AlwaysInline:
    """A policy without a clock."""

    inline = True

    def observe(self, duration_ns: int, cpu_ns: int) -> None:
        pass


def test_a_fast_model_answers_within_the_call() -> None:
    async def scenario(h: Harness) -> None:
        h.model._inline = AlwaysInline()
        h.send("inline")

        assert h.answered == ["inline"]
        assert h.backend.threads == {threading.get_ident()}

    run(scenario, config(), FakeBackend(may_run_inline=True))


def test_only_models_that_say_so_run_inline() -> None:
    async def scenario(h: Harness) -> None:
        h.model._inline = AlwaysInline()
        h.send("on its thread")
        await h.settle()

        assert threading.get_ident() not in h.backend.threads

    run(scenario, config())


def test_a_caller_may_send_the_next_request_from_its_answer_as_often_as_it_likes() -> None:
    async def scenario(h: Harness) -> None:
        h.model._inline = AlwaysInline()
        left = 5000

        def again(_request: InferenceRequest, _response: InferenceResponse) -> None:
            nonlocal left
            left -= 1
            if left:
                h.model.enqueue(InferenceRequest("m", inputs, again))

        inputs = {"X": Tensor.from_numpy("X", np.zeros(2, np.float32))}
        h.model.enqueue(InferenceRequest("m", inputs, again))

        assert left == 0

    run(scenario, config(), FakeBackend(may_run_inline=True))


def test_requests_that_only_wait_for_the_loop_do_not_fill_the_queue() -> None:
    policy = ModelQueuePolicy(max_queue_size=2)

    async def scenario(h: Harness) -> None:
        h.backend.gate.clear()
        for index in range(4):  # two of them find a free instance
            h.send(str(index), rows=1)
        with pytest.raises(QueueFull):
            h.send("refused", rows=1)
        await h.settle()

        assert h.model.statistics.num_succeeded == 4

    batching = ModelDynamicBatching((2,), default_queue_policy=policy)
    run(scenario, config(batching=batching, max_batch_size=2))


@pytest.mark.parametrize("seed", range(3))
def test_under_a_storm_every_request_is_answered_once_with_its_own_answer(seed: int) -> None:
    policy = ModelQueuePolicy(default_timeout_microseconds=1500, max_queue_size=40)
    rng = random.Random(seed)

    def fails_now_and_then(inputs):
        if rng.random() < 0.1:
            raise RuntimeError("now and then")
        return {"Y": inputs["X"] + 1}

    async def scenario(h: Harness) -> None:
        sent: list[InferenceRequest] = []
        refused = 0
        for index in range(600):
            try:
                sent.append(h.send(str(index), rows=rng.choice([1, 1, 2, 3]), value=index))
            except QueueFull:
                refused += 1
            if rng.random() < 0.1 and sent:
                h.model.cancel(rng.choice(sent))
            if rng.random() < 0.3:
                await asyncio.sleep(0)
        await h.settle()

        assert sorted(h.answered) == sorted(request.id for request in sent)
        assert h.model.statistics.num_accepted == len(sent) + refused
        for request_id, response in h.answers:
            if response.error is None:
                assert (response.outputs[0].to_numpy() == int(request_id) + 1).all()

    batching = ModelDynamicBatching((4,), max_queue_delay_microseconds=200, default_queue_policy=policy)
    run(scenario, config(batching=batching, max_batch_size=4, count=2), FakeBackend(fails_now_and_then))
