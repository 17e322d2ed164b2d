"""The instance of an ensemble: requests to its models, their responses, and one answer in every case. No models here."""

import asyncio
import threading
import time
from dataclasses import replace

import numpy as np
import pytest

from bireme.backends.ensemble import direct_runs, instance, limits
from bireme.backends.ensemble.backend import EnsembleBackend
from bireme.backends.ensemble.instance import EnsembleInstance
from bireme.backends.interface import ModelContext, Placement, RequestInstance
from bireme.config import ModelConfig
from bireme.types import (
    BackendFailed,
    Cancelled,
    Execution,
    InferenceRequest,
    InferenceResponse,
    Internal,
    InvalidArgument,
    NotFound,
    QueueFull,
    Unavailable,
)
from ensembles import compile_plan, ensemble, member, step, tensor

A, B, C = member("A"), member("B"), member("C")
JOIN = member("JOIN", "L R")
STREAM = member("STREAM", decoupled=True)


class FakeHost:
    """Keeps what is submitted until the test answers; models in ``direct`` are functions, called at once."""

    def __init__(self, loop, *models):
        self.loop = loop
        self.models = {model.name: model for model in models}
        self.open = []
        self.refusals = {}
        self.direct = {}
        self.inline = set()
        self.held = set()
        self.cancelled = []
        self.expected = []

    def submit(self, request):
        if request.model_name in self.refusals:
            raise self.refusals[request.model_name]
        self.open.append(request)

    def call_directly(self, request):
        function = self.direct.get(request.model_name)
        if function is None:
            return None
        return InferenceResponse(request.model_name, 1, request.id, function(request))

    def way_to(self, name, version):
        assert version == -1
        if name in self.inline:
            return "inline"
        return "thread" if name in self.direct else "queue"

    def cancel(self, request):
        self.cancelled.append(request.model_name)
        request.cancelled = True

    def expect(self, name, version):
        assert version == -1
        self.expected.append(name)

    def hold(self, request):
        self.held.add(request)

    def resume(self, request):
        self.held.discard(request)

    def find_config(self, name, version):
        if name not in self.models:
            raise NotFound(f"Request for unknown model: '{name}' is not found")
        return self.models[name]

    def answer(self, model, *, final=True, error=None, flag_only=False, parameters=None, **outputs):
        request = next(each for each in self.open if each.model_name == model)
        if final:
            self.open.remove(request)
        self.respond(request, final=final, error=error, flag_only=flag_only, parameters=parameters, **outputs)

    def respond(self, request, *, final=True, error=None, flag_only=False, parameters=None, **outputs):
        model = request.model_name
        made = [tensor(name, *value) for name, value in outputs.items()]
        response = InferenceResponse(
            model, 1, request.id, made, error=error, final=final, flag_only=flag_only, parameters=parameters
        )
        request.respond(request, response)

    @property
    def waiting(self):
        return [request.model_name for request in self.open]


class Sink:
    """What the engine's model is to the instance."""

    def __init__(self):
        self.responses = []
        self.finished = []
        self.has_waiting = False

    def respond(self, request, response):
        self.responses.append((request.id, response))

    def finish(self, execution, error=None):
        if error is not None:
            for request in execution.requests:
                self.respond(request, InferenceResponse("pipeline", 1, request.id, error=error))
        self.finished.append(execution)

    @property
    def errors(self):
        return [response.error for _, response in self.responses if response.error is not None]

    def values(self):
        """Return what was answered: a dict of lists for each response, or its error."""
        return [
            response.error or {each.name: each.to_numpy().tolist() for each in response.outputs}
            for _, response in self.responses
        ]


class Bench:
    """An instance with its host and its sink."""

    def __init__(self, config, *models, loop=None, host=None):
        self.host = host or FakeHost(loop, *models)
        self.sink = Sink()
        self.instance = EnsembleInstance(compile_plan(config, *models), self.host, 1)
        self.instance.start(self.sink)

    def ask(self, *values, name="r", **settings):
        request = InferenceRequest(
            "pipeline", {"X": tensor("X", *(values or (1,)))}, print, id=name, **settings
        )
        execution = Execution([request], 1, "single")
        execution.compute_start_ns = time.monotonic_ns()
        request.execution = execution
        self.instance.execute_requests(execution)
        return request


def chain(**changes):
    return ensemble([step(A, "X=X", "Y=mid"), step(B, "X=mid", "Y=Y")], **changes)


def diamond():
    return ensemble([step(A, "X=X", "Y=a"), step(B, "X=X", "Y=b"), step(JOIN, "L=a R=b", "Y=Y")])


def on_loop(test):
    """Run an async test; its argument is the loop."""

    def run(*args, **kwargs):
        async def main():
            await asyncio.wait_for(test(asyncio.get_running_loop(), *args, **kwargs), 20)

        asyncio.run(main())

    run.__name__ = test.__name__
    return run


async def until(condition):
    """Wait for what another thread does."""
    while not condition():  # noqa: ASYNC110
        await asyncio.sleep(0.001)


def test_it_is_a_request_instance():
    assert isinstance(Bench(chain(), A, B).instance, RequestInstance)


def test_steps_are_requests_that_inherit_what_the_request_says():
    bench = Bench(chain(), A, B)
    asked = bench.ask(
        4, name="r7", parameters={"p": 1}, priority=2, timeout_us=5, sequence_id=9, sequence_start=True
    )
    (request,) = bench.host.open

    assert (request.model_name, request.model_version, request.id) == ("A", -1, "r7")
    assert (request.parameters, request.priority, request.timeout_us) == ({"p": 1}, 2, 5)
    assert (request.sequence_id, request.sequence_start, request.sequence_end) == (9, True, False)
    assert request.parent is asked.execution
    assert list(request.outputs) == ["Y"]


def test_fault_behind_a_step_takes_back_the_others():
    """A step that can't be made, as its condition is not made for these tensors, fails the request like one that fails."""
    steps = [
        step(A, "X=X", "Y=a"),
        step(B, "X=X", "Y=b"),
        step(C, "X=a", "Y=c"),
        step(JOIN, "L=b R=c", "Y=Y"),
    ]
    bench = Bench(ensemble(steps, when={"c": "a > 1"}), A, B, C, JOIN)
    bench.ask()
    bench.host.answer("A", Y=[1, 2])
    assert bench.host.cancelled == ["B"]
    assert not bench.sink.responses

    bench.host.answer("B", error=Cancelled("taken back"))
    (error,) = bench.sink.errors
    assert "step 2 ('C'): the condition 'a > 1' needs one value" in error.message


def test_answer():
    bench = Bench(chain(), A, B)
    bench.ask()
    bench.host.answer("A", Y=[2])
    bench.host.answer("B", Y=[3])

    ((request_id, response),) = bench.sink.responses
    assert (request_id, response.model_name, response.model_version, response.final) == (
        "r",
        "pipeline",
        1,
        True,
    )
    assert bench.sink.values() == [{"Y": [3]}]
    assert len(bench.sink.finished) == 1


def test_any_number_of_requests_at_a_time():
    bench = Bench(chain(), A, B)
    for number in range(5):
        bench.ask(name=str(number))
    for _ in range(5):
        bench.host.answer("A", Y=[2])
    for _ in range(5):
        bench.host.answer("B", Y=[3])

    assert sorted(request_id for request_id, _ in bench.sink.responses) == list("01234")


def test_times_are_the_sums_of_the_steps():
    bench = Bench(chain(), A, B)
    asked = bench.ask()
    for model, output in (("A", 2), ("B", 3)):
        (request,) = bench.host.open
        request.execution = execution = Execution([request], 1, "single")
        execution.compute_start_ns, execution.compute_input_end_ns = 1000, 1010
        execution.compute_output_start_ns, execution.compute_end_ns = 1110, 1115
        bench.host.answer(model, Y=[output])

    took = asked.execution
    start_ns = took.compute_start_ns
    assert took.compute_input_end_ns - start_ns == 20
    assert took.compute_output_start_ns - start_ns == 220
    assert took.compute_end_ns - start_ns == 230


def test_model_of_the_next_step_is_woken_while_a_short_step_runs(monkeypatch):
    bench = Bench(chain(), A, B)
    bench.ask()
    assert bench.host.expected == ["B"]

    monkeypatch.setattr(instance, "_SHORT_NS", 0)
    bench.host.answer("A", Y=[2])
    bench.host.answer("B", Y=[3])
    bench.ask()
    assert bench.host.expected == ["B"]


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (BackendFailed("it broke"), BackendFailed),
        (QueueFull("full"), QueueFull),
        (InvalidArgument("no"), InvalidArgument),
        (NotFound("no such row"), NotFound),
    ],
)
def test_error_of_a_step_is_answered_with_the_steps_name(error, kind):
    bench = Bench(chain(), A, B)
    bench.ask()
    bench.host.answer("A", Y=[2])
    bench.host.answer("B", error=error)
    (answered,) = bench.sink.errors

    assert type(answered) is kind
    assert answered.message == f"in ensemble 'pipeline', step 1 ('B'): {error.message}"


@pytest.mark.parametrize(
    ("error", "kind"),
    [(QueueFull("full"), QueueFull), (NotFound("gone"), Unavailable), (ValueError("a bug"), Internal)],
)
def test_step_that_is_refused(error, kind):
    bench = Bench(chain(), A, B)
    bench.host.refusals["A"] = error
    bench.ask()
    (answered,) = bench.sink.errors

    assert answered.message.startswith("in ensemble 'pipeline', step 0 ('A'): ")
    assert type(answered) is kind
    assert len(bench.sink.finished) == 1


def test_error_waits_for_the_other_branch_which_is_taken_back():
    bench = Bench(diamond(), A, B, JOIN)
    bench.ask()
    bench.host.answer("A", error=BackendFailed("it broke"))
    assert bench.host.cancelled == ["B"]
    assert not bench.sink.responses

    bench.host.answer("B", error=Cancelled("taken back"))
    (answered,) = bench.sink.errors
    assert answered.message == "in ensemble 'pipeline', step 0 ('A'): it broke"


def test_cancel_takes_back_what_runs_and_begins_nothing_more():
    bench = Bench(chain(), A, B)
    asked = bench.ask()
    bench.instance.cancel(asked)
    assert bench.host.cancelled == ["A"]
    assert not bench.sink.responses

    bench.host.answer("A", Y=[2])
    assert bench.host.waiting == []
    (answered,) = bench.sink.errors
    assert isinstance(answered, Cancelled)
    bench.instance.cancel(asked)


def test_kill_answers_at_once_and_drops_what_comes_later():
    bench = Bench(chain(), A, B)
    bench.ask()
    bench.instance.kill()
    (answered,) = bench.sink.errors
    assert isinstance(answered, Unavailable)

    bench.host.answer("A", Y=[2])
    assert len(bench.sink.responses) == len(bench.sink.finished) == 1


def test_steps_that_answer_within_the_call_do_not_pile_up_on_the_stack():
    models = [member(f"M{index}") for index in range(500)]
    steps = [
        step(model, f"X={'X' if not index else f't{index}'}", f"Y={'Y' if index == 499 else f't{index + 1}'}")
        for index, model in enumerate(models)
    ]
    bench = Bench(ensemble(steps), *models)

    def answer_at_once(request):
        request.respond(request, InferenceResponse(request.model_name, 1, request.id, [tensor("Y", 1)]))

    bench.host.submit = answer_at_once
    bench.ask()
    assert bench.sink.values() == [{"Y": [1]}]


# Decoupled steps, and the limit on what is in flight.


def streaming(limit=0):
    return ensemble([step(STREAM, "X=X", "Y=s"), step(A, "X=s", "Y=Y")], limit=limit)


def test_one_response_for_each_of_a_decoupled_step():
    bench = Bench(streaming(), STREAM, A)
    bench.ask()
    bench.host.answer("STREAM", Y=[1], final=False)
    bench.host.answer("A", Y=[10])
    bench.host.answer("STREAM", flag_only=True)

    assert [(each.final, each.flag_only) for _, each in bench.sink.responses] == [
        (False, False),
        (True, True),
    ]


def test_last_response_is_final_if_nothing_else_is_in_flight():
    bench = Bench(streaming(), STREAM, A)
    bench.ask()
    bench.host.answer("STREAM", Y=[1])
    bench.host.answer("A", Y=[10])

    assert [(each.final, each.flag_only) for _, each in bench.sink.responses] == [(True, False)]


def test_decoupled_step_without_a_response():
    bench = Bench(streaming(), STREAM, A)
    bench.ask()
    bench.host.answer("STREAM", flag_only=True)

    assert [(each.final, each.flag_only) for _, each in bench.sink.responses] == [(True, True)]


def test_error_in_the_middle_ends_the_stream():
    bench = Bench(streaming(), STREAM, A)
    bench.ask()
    bench.host.answer("STREAM", Y=[1], final=False)
    bench.host.answer("A", Y=[10])
    bench.host.answer("STREAM", error=BackendFailed("it broke"), final=False)
    assert bench.host.cancelled == ["STREAM"]

    bench.host.answer("STREAM", flag_only=True)
    assert isinstance(bench.sink.values()[-1], BackendFailed)
    assert len(bench.sink.responses) == 2


@on_loop
async def test_limit_holds_the_producer_until_there_is_room(loop):
    bench = Bench(streaming(limit=2), STREAM, A, loop=loop)
    bench.ask()
    for value in range(4):
        bench.host.answer("STREAM", Y=[value], final=False)
    assert bench.host.waiting.count("A") == 2
    assert len(bench.host.held) == 1

    bench.host.answer("A", Y=[0])
    bench.host.answer("A", Y=[1])
    assert not bench.host.held
    assert bench.host.waiting.count("A") == 2
    for value in (2, 3):
        bench.host.answer("A", Y=[value])
    bench.host.answer("STREAM", flag_only=True)
    assert [each.get("Y") for each in bench.sink.values()[:-1]] == [[0], [1], [2], [3]]


@on_loop
async def test_producer_is_not_held_by_a_step_that_needs_its_model(loop):
    steps = [step(STREAM, "X=X", "Y=s"), step(A, "X=s", "Y=a"), step(STREAM, "X=a", "Y=Y")]
    bench = Bench(ensemble(steps, limit=1), STREAM, A, loop=loop)
    bench.ask()
    bench.host.answer("STREAM", Y=[0], final=False)
    bench.host.answer("A", Y=[0])
    bench.host.answer("STREAM", Y=[1], final=False)
    bench.host.answer("A", Y=[1])
    assert bench.host.waiting == ["STREAM", "STREAM"]
    assert not bench.host.held


@on_loop
async def test_limit_holds_only_what_leads_to_the_step(loop):
    """What comes after the step that is full has to go on: else neither would ever end."""
    second = member("SECOND", decoupled=True)
    steps = [step(STREAM, "X=X", "Y=s"), step(second, "X=s", "Y=u"), step(A, "X=u", "Y=Y")]
    bench = Bench(ensemble(steps, limit=1), STREAM, second, A, loop=loop)
    asked = bench.ask()
    for value in range(2):
        bench.host.answer("STREAM", Y=[value], final=False)
    assert {request.model_name for request in bench.host.held} == {"STREAM"}
    for value in range(2):
        bench.host.answer("SECOND", Y=[value], final=False)
    assert {request.model_name for request in bench.host.held} == {"STREAM", "SECOND"}

    bench.host.answer("A", Y=[0])
    assert {request.model_name for request in bench.host.held} == {"STREAM"}
    bench.instance.hold(asked)
    bench.instance.resume(asked)
    assert {request.model_name for request in bench.host.held} == {"STREAM"}
    bench.host.answer("SECOND", flag_only=True)
    assert not bench.host.held


def beside(*names):
    """Each response of STREAM waits for what the other models, one behind the other, make of the input."""
    tensors = ["X", *(f"t{index}" for index in range(len(names)))]
    side = [
        step(member(name), f"X={tensors[index]}", f"Y={tensors[index + 1]}")
        for index, name in enumerate(names)
    ]
    steps = [step(STREAM, "X=X", "Y=s"), *side, step(JOIN, f"L=s R={tensors[-1]}", "Y=Y")]
    return ensemble(steps, limit=2)


@on_loop
async def test_limit_holds_a_producer_whose_responses_wait_for_another_step(loop):
    bench = Bench(beside("A"), STREAM, A, JOIN, loop=loop)
    bench.ask()
    bench.host.answer("STREAM", Y=[0], final=False)
    assert not bench.host.held
    bench.host.answer("STREAM", Y=[1], final=False)
    assert [request.model_name for request in bench.host.held] == ["STREAM"]

    bench.host.answer("A", Y=[5])
    assert not bench.host.held
    for _ in range(2):
        bench.host.answer("JOIN", Y=[1])
    bench.host.answer("STREAM", flag_only=True)
    assert len(bench.sink.responses) == 3
    assert len(bench.sink.finished) == 1


@on_loop
async def test_producer_is_not_held_for_a_step_that_needs_its_model(loop):
    """The other step may wait for the very instance."""
    config = beside("STREAM_TOO")
    other = ensemble([step(STREAM, "X=X", "Y=Y")])
    bench = Bench(config, STREAM, replace(other, name="STREAM_TOO"), JOIN, loop=loop)
    bench.ask()
    for value in range(3):
        bench.host.answer("STREAM", Y=[value], final=False)
    assert not bench.host.held


@on_loop
async def test_failure_ends_the_hold_of_a_producer_whose_responses_wait(loop):
    bench = Bench(beside("A"), STREAM, A, JOIN, loop=loop)
    bench.ask()
    for value in range(2):
        bench.host.answer("STREAM", Y=[value], final=False)
    bench.host.answer("A", error=BackendFailed("broken"))
    bench.host.answer("STREAM", error=Cancelled("taken back"))
    assert not bench.host.held
    (error,) = bench.sink.errors
    assert "broken" in error.message


@on_loop
async def test_producer_is_not_held_for_a_step_that_calls_its_model(loop):
    """Only the code of the step's model knows that it does (BLS)."""
    bench = Bench(streaming(limit=1), STREAM, A, loop=loop)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits, "_WATCH_S", 0.001)
        bench.ask()
        for value in range(2):
            bench.host.answer("STREAM", Y=[value], final=False)
        assert bench.host.held
        stream, step_request = bench.host.open
        call = InferenceRequest("STREAM", {}, print)
        call.owner = stream.owner = object()
        step_request.execution = Execution([step_request], 1, "single")
        step_request.execution.calls = {call}

        await until(lambda: not bench.host.held)
        bench.host.answer("STREAM", Y=[2], final=False)
        assert not bench.host.held


def two_streams(*orders):
    """Ask two ensembles of the same decoupled models, of which the second has both instances' work in its way."""
    first, second = member("FIRST", decoupled=True), member("SECOND", decoupled=True)
    models = {"FIRST": object(), "SECOND": object()}
    host = FakeHost(asyncio.get_running_loop(), first, second)
    for names in orders:
        one, other = (first, second) if names == "12" else (second, first)
        steps = [step(one, "X=X", "Y=s"), step(other, "X=s", "Y=Y")]
        bench = Bench(ensemble(steps, limit=1), first, second, host=host)
        bench.ask()
        (request,) = [each for each in host.open if each.owner is None]
        request.owner = models[one.name]
        if all(each.execution is None for each in host.open if each.owner is request.owner):
            request.execution = Execution([request], 1, "single")
            for value in range(2):
                host.respond(request, Y=[value], final=False)
            host.open[-1].owner = models[other.name]
    return host


@on_loop
async def test_ensembles_that_hold_what_the_other_one_needs_let_go_of_it(loop):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits, "_WATCH_S", 0.001)
        host = two_streams("12", "21")
        assert len(host.held) == 2

        await until(lambda: len(host.held) == 1)
        await asyncio.sleep(0.01)
        assert len(host.held) == 1


@on_loop
async def test_a_producer_that_only_later_requests_need_is_held_on(loop):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits, "_WATCH_S", 0.001)
        host = two_streams("12", "12")
        assert len(host.held) == 1

        await asyncio.sleep(0.02)
        assert len(host.held) == 1


@on_loop
async def test_limit_is_one_for_all_requests(loop):
    bench = Bench(chain(limit=1), A, B, loop=loop)
    for number in range(3):
        bench.ask(name=str(number))
    assert bench.host.waiting == ["A"]

    for _ in range(3):
        bench.host.answer("A", Y=[1])
        bench.host.answer("B", Y=[1])
    assert [request_id for request_id, _ in bench.sink.responses] == ["0", "1", "2"]


@on_loop
async def test_request_that_fails_gives_its_waiting_calls_up(loop):
    bench = Bench(streaming(limit=1), STREAM, A, loop=loop)
    first = bench.ask(name="first")
    for value in range(3):
        bench.host.answer("STREAM", Y=[value], final=False)
    bench.instance.cancel(first)
    bench.host.answer("STREAM", error=Cancelled("taken back"))
    bench.host.answer("A", Y=[0])
    assert isinstance(bench.sink.errors[0], Cancelled)

    bench.ask(name="second")
    bench.host.answer("STREAM", Y=[1])
    bench.host.answer("A", Y=[5])
    assert bench.sink.values()[-1] == {"Y": [5]}


@on_loop
async def test_producer_is_not_held_for_ever(loop):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits, "_LONGEST_HOLD_S", 0.0)
        await produce_too_much(loop)


async def produce_too_much(loop):
    bench = Bench(streaming(limit=1), STREAM, A, loop=loop)
    bench.ask()
    for value in range(2):
        bench.host.answer("STREAM", Y=[value], final=False)
    assert bench.host.held
    for _ in range(3):
        await asyncio.sleep(0)

    assert not bench.host.held


@on_loop
async def test_holding_the_ensemble_holds_its_decoupled_steps(loop):
    bench = Bench(streaming(), STREAM, A, loop=loop)
    asked = bench.ask()
    bench.instance.hold(asked)
    assert [request.model_name for request in bench.host.held] == ["STREAM"]

    bench.instance.resume(asked)
    assert not bench.host.held


# Models that are called on a thread.


async def answered(bench, count=1):
    """Wait until so many responses have come."""
    await until(lambda: len(bench.sink.responses) >= count)


def plus(number):
    return lambda request: [tensor("Y", *(request.inputs["X"].to_numpy() + number))]


@on_loop
async def test_in_process_steps_run_on_one_thread(loop):
    bench = Bench(chain(), A, B, loop=loop)
    bench.host.direct = {"A": plus(1), "B": plus(10)}
    for number in range(20):
        bench.ask(number)
        await answered(bench, number + 1)
    bench.instance.close()

    assert [each["Y"] for each in bench.sink.values()] == [[number + 11] for number in range(20)]
    assert len(bench.sink.finished) == 20


@on_loop
async def test_run_belongs_to_its_thread_after_a_step_that_answers_at_once(loop):
    bench = Bench(chain(), A, B, loop=loop)
    may_go_on = threading.Event()
    seen = []

    def answer_at_once(request):
        request.respond(request, InferenceResponse("A", 1, request.id, [tensor("Y", 1)]))

    def wait(request):
        seen.append(request)
        may_go_on.wait(10)
        return [tensor("Y", 2)]

    bench.host.submit = answer_at_once
    bench.host.direct = {"B": wait}
    bench.ask()
    may_go_on.set()
    await answered(bench)
    bench.instance.close()

    assert bench.sink.values() == [{"Y": [2]}]
    assert len(seen) == 1


@on_loop
async def test_when_all_threads_are_busy_steps_go_by_the_loop(loop):
    bench = Bench(chain(), A, B, loop=loop)
    is_free = threading.Event()

    def wait(request):
        is_free.wait(10)
        return [tensor("Y", 1)]

    bench.host.direct = {"A": wait}
    for number in range(6):
        bench.ask(number)
    assert bench.host.waiting == ["A", "A"]

    is_free.set()
    for _ in range(2):
        bench.host.answer("A", Y=[1])
    await until(lambda: bench.host.waiting == ["B"] * 6)
    bench.instance.close()


@on_loop
async def test_model_that_is_busy_gets_its_request_by_the_loop(loop):
    bench = Bench(chain(), A, B, loop=loop)
    bench.host.direct = {"A": plus(1), "B": None}
    bench.ask()
    await until(lambda: bench.host.waiting)
    assert bench.host.waiting == ["B"]

    bench.host.answer("B", Y=[7])
    bench.instance.close()
    assert bench.sink.values() == [{"Y": [7]}]


def test_inline_steps_run_where_the_loop_is():
    bench = Bench(chain(), A, B)
    bench.host.direct = {"A": plus(1), "B": plus(10)}
    bench.host.inline = {"A", "B"}
    bench.ask(1)

    assert bench.sink.values() == [{"Y": [12]}]
    assert len(bench.sink.finished) == 1


@on_loop
async def test_inline_step_before_one_in_a_process_and_behind_one_on_a_thread(loop):
    steps = [step(A, "X=X", "Y=a"), step(B, "X=a", "Y=b"), step(C, "X=b", "Y=Y")]
    bench = Bench(ensemble(steps), A, B, C, loop=loop)
    bench.host.direct = {"A": plus(1), "C": plus(100)}
    bench.host.inline = {"A"}
    bench.ask(1)
    assert bench.host.waiting == ["B"]

    bench.host.answer("B", Y=[5])
    await answered(bench)
    bench.instance.close()
    assert bench.sink.values() == [{"Y": [105]}]


def test_inline_model_that_is_busy_gets_its_request_by_its_queue():
    bench = Bench(chain(), A, B)
    bench.host.direct = {"A": None, "B": plus(10)}
    bench.host.inline = {"A", "B"}
    bench.ask(1)
    assert bench.host.waiting == ["A"]

    bench.host.answer("A", Y=[2])
    assert bench.sink.values() == [{"Y": [12]}]


def test_error_of_an_inline_step():
    def fail(request):
        raise InvalidArgument("does not fit")

    bench = Bench(chain(), A, B)
    bench.host.direct = {"A": plus(1), "B": fail}
    bench.host.inline = {"A", "B"}
    bench.ask(1)
    assert bench.sink.errors[0].message == "in ensemble 'pipeline', step 1 ('B'): does not fit"


@on_loop
async def test_error_on_the_thread(loop):
    def fail(request):
        raise InvalidArgument("does not fit")

    bench = Bench(chain(), A, B, loop=loop)
    bench.host.direct = {"A": plus(1), "B": fail}
    bench.ask()
    await answered(bench)
    bench.instance.close()

    assert bench.sink.errors[0].message == "in ensemble 'pipeline', step 1 ('B'): does not fit"


@on_loop
async def test_close_does_not_wait_for_a_thread_that_is_stuck_in_a_step(loop):
    bench = Bench(chain(), A, B, loop=loop)
    is_free = threading.Event()
    bench.host.direct = {"A": lambda _: is_free.wait(20) and [tensor("Y", 1)]}
    bench.ask()
    bench.instance.kill()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(direct_runs, "_STUCK_S", 0.01)
        bench.instance.close()
    is_free.set()

    assert isinstance(bench.sink.errors[0], Unavailable)


@on_loop
async def test_cancel_stops_the_thread_before_its_next_step(loop):
    bench = Bench(chain(), A, B, loop=loop)
    seen = []

    def cancel_meanwhile(request):
        loop.call_soon_threadsafe(lambda: bench.instance.cancel(asked))
        while not request.cancelled:
            time.sleep(0.001)
        return [tensor("Y", 1)]

    bench.host.direct = {"A": cancel_meanwhile, "B": seen.append}
    asked = bench.ask()
    await answered(bench)
    bench.instance.close()

    assert isinstance(bench.sink.errors[0], Cancelled)
    assert not seen


@on_loop
async def test_cancel_reaches_the_step_that_an_ensemble_called_as_a_step_is_at(loop):
    inner, outer = Bench(chain(), A, B, loop=loop), Bench(chain(), A, B, loop=loop)
    seen = []

    def call_inner(request):
        request.instance = inner.instance
        execution = Execution([request], 1, "single")
        execution.compute_start_ns = time.monotonic_ns()
        return inner.instance.call(execution).outputs

    def cancel_meanwhile(request):
        loop.call_soon_threadsafe(lambda: outer.instance.cancel(asked))
        deadline_s = time.monotonic() + 10
        while not request.cancelled:
            assert time.monotonic() < deadline_s
            time.sleep(0.001)
        return [tensor("Y", 1)]

    inner.host.direct = {"A": cancel_meanwhile, "B": seen.append}
    outer.host.direct = {"A": call_inner, "B": seen.append}
    asked = outer.ask()
    await answered(outer)
    for bench in (outer, inner):
        bench.instance.close()

    assert isinstance(outer.sink.errors[0], Cancelled)
    assert not seen


@on_loop
async def test_ensemble_is_called_like_a_function(loop):
    bench = Bench(chain(), A, B, loop=loop)
    bench.host.direct = {"A": plus(1), "B": plus(10)}
    request = InferenceRequest("pipeline", {"X": tensor("X", 1)}, print)
    execution = Execution([request], 1, "single")
    execution.compute_start_ns = time.monotonic_ns()

    response = bench.instance.call(execution)
    assert response.outputs[0].to_numpy().tolist() == [12]
    assert not bench.sink.responses


@on_loop
async def test_called_ensemble_waits_for_a_model_that_is_busy(loop):
    bench = Bench(chain(), A, B, loop=loop)
    bench.host.direct = {"A": plus(1), "B": None}
    request = InferenceRequest("pipeline", {"X": tensor("X", 1)}, print)
    execution = Execution([request], 1, "single")
    execution.compute_start_ns = time.monotonic_ns()
    call = loop.run_in_executor(None, bench.instance.call, execution)
    await until(lambda: bench.host.waiting)
    bench.host.answer("B", Y=[9])

    response = await call
    assert response.outputs[0].to_numpy().tolist() == [9]
    assert not bench.sink.responses
    assert not bench.sink.finished


# Loading.


def load(config, *models):
    context = ModelContext("pipeline", 1, None, None, config, host=FakeHost(None, *models))
    return EnsembleBackend().load(context)


def test_config_says_what_the_steps_are():
    model = load(streaming(), STREAM, A)
    assert model.complete_config(streaming()).model_transaction_policy.decoupled

    config = load(chain(), A, B).complete_config(chain())
    assert not config.model_transaction_policy.decoupled


def test_model_that_does_not_serve_is_named():
    with pytest.raises(
        InvalidArgument, match=r"in ensemble 'pipeline', step 1 \('B'\): Request for unknown model: 'B'"
    ):
        load(chain(), A).complete_config(chain())


def test_all_faults_are_told():
    odd = member("B", "Q")
    with pytest.raises(InvalidArgument, match=r"non-existing input 'X'.*'Q' in model 'B' is not mapped"):
        load(chain(), A, odd).complete_config(chain())


def test_without_a_server_there_are_no_steps():
    with pytest.raises(Unavailable, match="cannot be loaded without a server"):
        EnsembleBackend().load(ModelContext("pipeline", 1, None, None, chain()))


def test_ensemble_is_no_backend():
    context = ModelContext("odd", 1, None, None, ModelConfig("odd", backend="ensemble"), host=FakeHost(None))
    with pytest.raises(InvalidArgument, match="model 'odd': 'ensemble' is no backend but a platform"):
        EnsembleBackend().load(context)


def test_memory_of_a_request_goes_when_it_is_answered():
    bench = Bench(chain(), A, B)
    model = load(chain(), A, B)
    model.complete_config(chain())
    assert repr(model.create_instance(Placement("pipeline"))) == "EnsembleInstance('pipeline', 0 requests)"
    bench.ask()
    bench.host.answer("A", Y=[2])
    bench.host.answer("B", Y=[3])

    assert repr(bench.instance) == "EnsembleInstance('pipeline', 0 requests)"
    assert np.all(bench.sink.responses[0][1].outputs[0].to_numpy() == 3)
