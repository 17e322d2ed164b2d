"""Calls that would wait for themselves are found; calls that only wait are not."""

from __future__ import annotations

import pytest

from bireme.engine.waiting_calls import would_wait_forever
from bireme.types import Execution, InferenceRequest


class FakeModel:
    def __init__(self, name: str, num_instances: int = 1) -> None:
        self.name = name
        self.num_instances = num_instances
        self.executions: list[Execution] = []

    @property
    def can_start(self) -> bool:
        return len(self.executions) < self.num_instances

    def run(self, call: InferenceRequest | None = None) -> Execution:
        execution = Execution([], 1, "single")
        execution.holder = self
        self.executions.append(execution)
        if call is not None:
            call.execution = execution
        return execution


def call(caller: Execution, model: FakeModel) -> InferenceRequest:
    request = InferenceRequest(model.name, {}, print)
    request.owner = model
    caller.calls = {*(caller.calls or ()), request}
    return request


def test_a_model_with_one_instance_that_calls_itself_would_wait_forever():
    a = FakeModel("a")

    assert would_wait_forever(a, a.run())


def test_a_second_instance_lets_a_model_call_itself():
    a = FakeModel("a", num_instances=2)

    assert not would_wait_forever(a, a.run())


def test_the_last_of_several_self_calls_is_refused():
    a = FakeModel("a", num_instances=2)
    first, second = a.run(), a.run()
    call(first, a)  # waits in the queue

    assert would_wait_forever(a, second)


def test_a_busy_model_that_waits_for_nobody_is_only_waited_for():
    a, b = FakeModel("a"), FakeModel("b")
    b.run()

    assert not would_wait_forever(b, a.run())


def test_two_models_that_call_each_other_are_found():
    a, b = FakeModel("a"), FakeModel("b")
    in_a, in_b = a.run(), b.run()
    call(in_a, b)

    assert would_wait_forever(a, in_b)


@pytest.mark.parametrize("length", [2, 3, 10])
def test_a_ring_is_found_at_its_last_call(length):
    models = [FakeModel(str(index)) for index in range(length)]
    execution = models[0].run()
    for model in models[1:]:
        assert not would_wait_forever(model, execution)
        execution = model.run(call(execution, model))

    assert would_wait_forever(models[0], execution)


def test_a_chain_without_a_ring_goes_on():
    models = [FakeModel(str(index)) for index in range(10)]
    execution = models[0].run()
    for model in models[1:]:
        busy = model.run()
        assert not would_wait_forever(model, execution)
        model.executions.remove(busy)
        execution = model.run(call(execution, model))


def test_a_call_that_was_answered_holds_up_nobody():
    a, b = FakeModel("a"), FakeModel("b")
    in_a, in_b = a.run(), b.run()
    call(in_a, b).owner = None

    assert not would_wait_forever(a, in_b)


def test_a_decoupled_call_that_goes_on_without_an_instance_holds_up_nobody():
    a, b, c = FakeModel("a"), FakeModel("b"), FakeModel("c")
    in_a, in_b = a.run(), b.run()
    streamed = call(in_a, c)
    streamed.execution = c.run()
    streamed.execution.holder = None

    assert not would_wait_forever(a, in_b)
