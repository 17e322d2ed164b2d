"""Ensembles without models: what is called when, with which tensors, and what is answered."""

import gc
import math
import random
import weakref
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, strategies as st

from bireme.config import Condition
from bireme.config.model_config import ModelTensorReshape
from bireme.scheduling.ensemble_run import SequenceFields
from bireme.types import BackendFailed, Internal, InvalidArgument, Tensor
from ensembles import Driven, compile_plan, ensemble, member, step, tensor

A, B, C = member("A"), member("B"), member("C")
JOIN = member("JOIN", "L R")
EITHER = member("EITHER", "L R", optional="L R")
STREAM = member("STREAM", decoupled=True)
STREAM_2 = member("STREAM_2", decoupled=True)
X = {"X": tensor("X", 1)}


def chain():
    return compile_plan(ensemble([step(A, "X=X", "Y=mid"), step(B, "X=mid", "Y=Y")]), A, B)


def diamond():
    steps = [
        step(A, "X=X", "Y=a"),
        step(B, "X=a", "Y=left"),
        step(C, "X=a", "Y=right"),
        step(JOIN, "L=left R=right", "Y=Y"),
    ]
    return compile_plan(ensemble(steps), A, B, C, JOIN)


def test_steps_run_one_after_the_other():
    run = Driven(chain(), X)
    assert run.waiting == ["A"]
    assert run.find("A").inputs["X"].to_numpy() == [1]

    run.respond("A", Y=[2])
    assert run.waiting == ["B"]
    assert run.find("B").inputs["X"].name == "X"

    run.respond("B", Y=[3])
    assert run.values() == {"Y": [3.0]}
    assert run.run.is_over


def test_tensors_are_handed_on_and_not_copied():
    run = Driven(chain(), X)
    assert np.shares_memory(run.find("A").inputs["X"].to_numpy(), X["X"].to_numpy())

    made = tensor("Y", 5)
    run.respond("A", Y=made)
    assert np.shares_memory(run.find("B").inputs["X"].to_numpy(), made.to_numpy())


def test_branches_run_at_the_same_time_and_meet():
    run = Driven(diamond(), X)
    run.respond("A", Y=[2])
    assert run.waiting == ["B", "C"]

    run.respond("C", Y=[30])
    assert run.waiting == ["B"]
    run.respond("B", Y=[20])
    assert {name: each.to_numpy().tolist() for name, each in run.find("JOIN").inputs.items()} == {
        "L": [20],
        "R": [30],
    }


def test_tensor_is_let_go_when_its_last_reader_has_it():
    run = Driven(diamond(), X)
    array = np.zeros(4, np.float32)
    released = weakref.ref(array)
    run.respond("A", Y=Tensor.from_numpy("Y", array))
    del array
    run.respond("B", Y=[1])
    run.respond("C", Y=[1])
    gc.collect()

    assert released() is None


def two_outputs():
    steps = [step(A, "X=X", "Y=Y1"), step(B, "X=Y1", "Y=Y2"), step(C, "X=X", "Y=Y3")]
    return compile_plan(ensemble(steps, outputs="Y1 Y2 Y3"), A, B, C)


@pytest.mark.parametrize(
    ("outputs", "models"),
    [(("Y1",), "A"), (("Y2",), "A B"), (("Y3",), "C"), (("Y3", "Y1"), "A C"), (None, "A C B"), ((), "A C B")],
)
def test_only_what_the_wanted_outputs_need_runs(outputs, models):
    run = Driven(two_outputs(), X, outputs)
    called = []
    while run.calls:
        called += [run.waiting[0]]
        run.respond(run.waiting[0], Y=[len(called)])

    assert called == models.split()
    assert len(run.answers) == 1
    assert list(run.values()) == list(outputs or ("Y1", "Y2", "Y3"))


def test_optional_input_that_is_not_given_is_absent_all_the_way():
    steps = [step(EITHER, "L=X R=extra", "Y=mid"), step(EITHER, "L=mid R=extra", "Y=Y")]
    plan = compile_plan(ensemble(steps, inputs="X extra", optional="extra"), EITHER)
    run = Driven(plan, X)
    assert list(run.find("EITHER").inputs) == ["L"]

    run.respond("EITHER", Y=[2])
    assert list(run.find("EITHER").inputs) == ["L"]


def test_output_that_a_model_does_not_give_is_absent():
    maker = member("MAKER", outputs="Y Z")
    plan = compile_plan(
        ensemble([step(maker, "X=X", "Y=a Z=b"), step(EITHER, "L=a R=b", "Y=Y")], outputs="Y b"),
        maker,
        EITHER,
    )
    run = Driven(plan, X)
    run.respond("MAKER", Y=[1], unknown=[2])
    assert list(run.find("EITHER").inputs) == ["L"]

    run.respond("EITHER", Y=[5])
    assert run.values() == {"Y": [5.0]}


def test_first_error_counts_and_nothing_more_begins():
    run = Driven(diamond(), X)
    run.respond("A", Y=[2])
    run.run.end()
    run.calls.remove(run.find("B"))
    run.run.fail(BackendFailed("first"))
    run.run.fail(BackendFailed("second"))
    assert not run.run.is_over

    run.respond("C", Y=[1])
    assert run.run.is_over
    assert run.run.error.message == "first"
    assert not run.calls
    assert not run.answers


def test_sequence_is_handed_down_until_a_response_says_otherwise():
    plan = compile_plan(
        ensemble([step(A, "X=X", "Y=a"), step(B, "X=a", "Y=b"), step(C, "X=X", "Y=Y")], outputs="b Y"),
        A,
        B,
        C,
    )
    run = Driven(plan, X)
    run.respond("A", {"sequence_id": 7, "sequence_end": True, "other": 1}, Y=[1])
    assert run.find("C").sequence == SequenceFields(0, is_start=False, is_end=False)
    assert run.find("B").sequence == SequenceFields(7, is_start=False, is_end=True)

    run.respond("B", {"sequence_id": "x"}, Y=[1])
    run.respond("C", Y=[1])
    assert run.answers[0].sequence == SequenceFields("x", is_start=False, is_end=False)


def test_sequence_of_a_response_goes_on_to_all_that_comes_of_it():
    run = Driven(chain(), X)
    run.respond("A", {"sequence_id": 7, "sequence_start": True}, Y=[1])
    run.respond("B", Y=[1])

    assert run.answers[0].sequence == SequenceFields(7, is_start=True, is_end=False)


def test_sequence_parameter_of_the_wrong_type():
    run = Driven(chain(), X)
    with pytest.raises(InvalidArgument, match="'sequence_start' to be a bool, got 1"):
        run.respond("A", {"sequence_start": 1}, Y=[1])


# Batching.


def test_batch_dimension_is_taken_away_and_added():
    batching, whole = member("BATCHING", batch=8), member("WHOLE")
    steps = [step(batching, "X=X", "Y=a"), step(whole, "X=a", "Y=b"), step(batching, "X=b", "Y=Y")]
    plan = compile_plan(ensemble(steps, batch=8), batching, whole)
    run = Driven(plan, {"X": tensor("X", 1, 2, shape=(1, 2))})

    run.respond("BATCHING", Y=tensor("Y", 1, 2, shape=(1, 2)))
    assert run.find("WHOLE").inputs["X"].shape == (2,)
    run.respond("WHOLE", Y=tensor("Y", 1, 2))
    assert run.find("BATCHING").inputs["X"].shape == (1, 2)


def test_whole_batch_goes_to_a_model_that_takes_it_as_it_is():
    batching, whole = member("BATCHING", batch=8), member("WHOLE", dims=(-1, -1))
    steps = [step(batching, "X=X", "Y=a"), step(whole, "X=a", "Y=b"), step(batching, "X=b", "Y=Y")]
    plan = compile_plan(ensemble(steps, batch=8), batching, whole)
    run = Driven(plan, {"X": tensor("X", 1, 2, shape=(2, 1))}, batch_size=2)

    run.respond("BATCHING", Y=tensor("Y", 1, 2, shape=(2, 1)))
    assert run.find("WHOLE").inputs["X"].shape == (2, 1)
    run.respond("WHOLE", Y=tensor("Y", 1, 2, shape=(2, 1)))
    assert run.find("BATCHING").inputs["X"].shape == (2, 1)


def test_output_is_bridged_too():
    batching = member("BATCHING", batch=8)
    run = Driven(compile_plan(ensemble([step(batching, "X=X", "Y=Y")]), batching), X)
    assert run.find("BATCHING").inputs["X"].shape == (1, 1)

    run.respond("BATCHING", Y=tensor("Y", 4, shape=(1, 1)))
    assert run.answers[0].outputs[0].shape == (1,)


# Conditions.


def guarded(**parameters):
    """Score decides whether B runs; C reads what B made."""
    score = member("SCORE")
    steps = [step(score, "X=X", "Y=score"), step(B, "X=X", "Y=b"), step(C, "X=b", "Y=c")]
    config = ensemble(steps, outputs="score b c", when={"b": "score > 0.5"}, **parameters)
    return compile_plan(config, score, B, C)


def test_step_runs_if_its_condition_holds():
    run = Driven(guarded(), X)
    assert run.waiting == ["SCORE"]

    run.respond("SCORE", Y=[0.9])
    assert run.waiting == ["B"]
    assert list(run.find("B").inputs) == ["X"]


def test_step_is_skipped_with_all_that_needs_it():
    run = Driven(guarded(), X)
    run.respond("SCORE", Y=[0.1])

    assert run.run.is_over
    assert list(run.values()) == ["score"]


def test_default_takes_the_place_of_a_skipped_output():
    run = Driven(guarded(default={"b": "[7, 8]"}), X)
    run.respond("SCORE", Y=[0.1])

    assert run.find("C").inputs["X"].to_numpy().tolist() == [7, 8]
    run.respond("C", Y=[1])
    assert run.values()["b"] == [7, 8]


def test_default_of_a_batching_model_has_a_row_for_each_of_the_batch():
    score, b = member("SCORE", batch=8), member("B", batch=8)
    config = ensemble(
        [step(score, "X=X", "Y=score"), step(b, "X=X", "Y=Y")],
        batch=8,
        when={"Y": "any(score > 0.5)"},
        default={"Y": "3"},
    )
    run = Driven(compile_plan(config, score, b), {"X": tensor("X", 1, 2, shape=(2, 1))}, batch_size=2)
    run.respond("SCORE", Y=tensor("Y", 0, 0, shape=(2, 1)))

    assert run.answers[0].outputs[0].to_numpy().tolist() == [[3], [3]]


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ('"text"', "is no FP32 tensor"),
        ('"1.5"', "is no FP32 tensor"),
        ("[null]", "is no FP32 tensor"),
        ("[true]", "is no FP32 tensor"),
        ("[[1]]", "has shape \\[1, 1\\]"),
        ("[[1], 2]", "is no FP32"),
    ],
)
def test_default_that_does_not_fit(value, why):
    with pytest.raises(InvalidArgument, match=f"'default:b' of ensemble 'pipeline' {why}"):
        guarded(default={"b": value})


def test_scalar_default_does_not_fill_more_than_a_response_can_hold():
    wide = member("B", dims=(10**12,))
    config = ensemble(
        [step(member("A"), "X=X", "Y=a"), step(wide, "X=a", "Y=Y")], when={"Y": "a > 0"}, default={"Y": "0"}
    )
    with pytest.raises(InvalidArgument, match="'default:Y' of ensemble 'pipeline' would have more than"):
        compile_plan(config, member("A"), wide)


def reshaping(source, target):
    config = ensemble([step(member("A", dims=source), "X=X", "Y=Y")], dims=source)
    output = replace(config.output[0], dims=target, reshape=ModelTensorReshape(shape=source))
    return Driven(compile_plan(replace(config, output=(output,)), member("A", dims=source)), X)


def test_output_is_given_in_the_shape_that_clients_see():
    run = reshaping((-1, 1, -1), (-1, -1))
    run.respond("A", Y=tensor("Y", *range(6), shape=(2, 1, 3)))
    assert run.answers[0].outputs[0].shape == (2, 3)


@pytest.mark.parametrize("shape", [(3,), (2, 3), ()])
def test_output_that_cannot_have_its_shape_is_an_error(shape):
    run = reshaping((-1, 4), (-1, 2, 2))
    run.respond("A", Y=tensor("Y", *range(math.prod(shape)), shape=shape))
    assert isinstance(run.run.error, BackendFailed)
    assert not run.answers


def test_what_nobody_foresaw_becomes_the_answer(monkeypatch):
    run = Driven(guarded(), X)

    def fail(*_):
        raise MemoryError("no room")

    monkeypatch.setattr(Condition, "holds", fail)
    run.respond(run.waiting[0], Y=[1])
    assert isinstance(run.run.error, Internal)
    assert run.run.error.message == "in ensemble 'pipeline': MemoryError: no room"
    assert run.run.is_over


def test_model_with_optional_inputs_takes_whichever_branch_ran():
    score = member("SCORE")
    steps = [
        step(score, "X=X", "Y=score"),
        step(B, "X=X", "Y=b"),
        step(C, "X=X", "Y=c"),
        step(EITHER, "L=b R=c", "Y=Y"),
    ]
    config = ensemble(steps, when={"b": "score > 0.5", "c": "score <= 0.5"})
    for value, branch, fed in ((0.9, "B", "L"), (0.1, "C", "R")):
        run = Driven(compile_plan(config, score, B, C, EITHER), X)
        run.respond("SCORE", Y=[value])
        assert run.waiting == [branch]
        run.respond(branch, Y=[1])
        assert list(run.find("EITHER").inputs) == [fed]


def test_model_all_of_whose_inputs_were_skipped_is_skipped():
    score = member("SCORE")
    steps = [step(score, "X=X", "Y=score"), step(B, "X=X", "Y=b"), step(EITHER, "L=b", "Y=Y")]
    run = Driven(compile_plan(ensemble(steps, when={"b": "score > 0.5"}), score, B, EITHER), X)
    run.respond("SCORE", Y=[0])

    assert run.run.is_over
    assert run.values() == {}


def test_condition_that_does_not_fit_its_tensor_is_the_requests_error():
    run = Driven(guarded(), X)
    run.respond("SCORE", Y=[0.1, 0.9])

    assert run.run.is_over
    assert (
        "in ensemble 'pipeline', step 1 ('B'): the condition 'score > 0.5' needs one value"
        in run.run.error.message
    )


# Decoupled steps.


def streaming():
    """Each response of STREAM goes through A, together with what B made of the input once."""
    steps = [step(STREAM, "X=X", "Y=s"), step(B, "X=X", "Y=b"), step(JOIN, "L=s R=b", "Y=Y")]
    return compile_plan(ensemble(steps), STREAM, B, JOIN)


def test_steps_run_once_for_each_response():
    run = Driven(streaming(), X)
    assert run.plan.is_decoupled
    run.respond("B", Y=[100])
    run.respond("STREAM", Y=[1], final=False)
    run.respond("STREAM", Y=[2], final=False)
    assert run.waiting == ["STREAM", "JOIN", "JOIN"]

    second, first = run.calls[2], run.calls[1]
    assert [each.inputs["L"].to_numpy()[0] for each in (first, second)] == [1, 2]
    assert [each.inputs["R"].to_numpy()[0] for each in (first, second)] == [100, 100]
    run.respond("JOIN", call=second, Y=[102])
    run.respond("JOIN", call=first, Y=[101])
    assert [run.values(index)["Y"] for index in (0, 1)] == [[102], [101]]
    assert not run.run.is_over
    run.finish("STREAM")
    assert run.run.is_over


def test_responses_wait_for_what_exists_once():
    run = Driven(streaming(), X)
    run.respond("STREAM", Y=[1], final=False)
    run.respond("STREAM", Y=[2], final=True)
    assert run.waiting == ["B"]

    run.respond("B", Y=[100])
    assert run.waiting == ["JOIN", "JOIN"]
    run.respond("JOIN", Y=[1])
    run.respond("JOIN", Y=[2])
    assert len(run.answers) == 2
    assert run.run.is_over


def test_no_response_is_no_answer():
    run = Driven(streaming(), X)
    run.respond("B", Y=[1])
    run.finish("STREAM")

    assert run.run.is_over
    assert not run.answers


def test_output_that_exists_once_is_in_each_answer():
    steps = [step(STREAM, "X=X", "Y=s"), step(B, "X=X", "Y=b")]
    run = Driven(compile_plan(ensemble(steps, outputs="s b"), STREAM, B), X)
    run.respond("STREAM", Y=[1], final=False)
    run.respond("B", Y=[9])
    run.respond("STREAM", Y=[2])

    assert [run.values(0), run.values(1)] == [{"s": [1], "b": [9]}, {"s": [2], "b": [9]}]


def test_decoupled_step_behind_a_decoupled_step():
    steps = [step(STREAM, "X=X", "Y=s"), step(STREAM_2, "X=s", "Y=t"), step(JOIN, "L=s R=t", "Y=Y")]
    run = Driven(compile_plan(ensemble(steps), STREAM, STREAM_2, JOIN), X)
    run.respond("STREAM", Y=[1], final=False)
    run.respond("STREAM", Y=[2], final=True)
    first, second = run.calls
    for call, value in ((second, 20), (first, 10), (first, 11)):
        run.respond("STREAM_2", call=call, Y=[value], final=False)
    pairs = [(call.inputs["L"].to_numpy()[0], call.inputs["R"].to_numpy()[0]) for call in run.calls[2:]]

    assert pairs == [(2, 20), (1, 10), (1, 11)]


def test_tensors_of_two_decoupled_models_cannot_be_put_together():
    steps = [step(STREAM, "X=X", "Y=s"), step(STREAM_2, "X=X", "Y=t"), step(JOIN, "L=s R=t", "Y=Y")]
    with pytest.raises(
        InvalidArgument, match="step 2 \\('JOIN'\\) receives inputs originated from different decoupled"
    ):
        compile_plan(ensemble(steps), STREAM, STREAM_2, JOIN)

    steps = [step(STREAM, "X=X", "Y=s"), step(STREAM_2, "X=X", "Y=t")]
    with pytest.raises(InvalidArgument, match="different decoupled models cannot be put together"):
        compile_plan(ensemble(steps, outputs="s t"), STREAM, STREAM_2)


def test_skipped_decoupled_step_has_no_response_or_its_default():
    score = member("SCORE")
    steps = [step(score, "X=X", "Y=score"), step(STREAM, "X=X", "Y=s")]
    config = ensemble(steps, outputs="s", when={"s": "score > 0.5"})
    run = Driven(compile_plan(config, score, STREAM), X)
    run.respond("SCORE", Y=[0])
    assert run.run.is_over
    assert not run.answers

    config = ensemble(steps, outputs="s", when={"s": "score > 0.5"}, default={"s": "5"})
    run = Driven(compile_plan(config, score, STREAM), X)
    run.respond("SCORE", Y=[0])
    assert run.values() == {"s": [5]}


# Properties.


@st.composite
def graphs(draw):
    """Draw for each step the tensors that it reads (-1: the ensemble's input), and maybe the one that decides on it."""
    count = draw(st.integers(1, 7))
    steps = []
    for index in range(count):
        reads = draw(st.lists(st.integers(-1, index - 1), min_size=1, max_size=3, unique=True))
        guard = draw(st.none() | st.integers(-1, index - 1))
        steps.append((reads, guard))
    wanted = draw(st.lists(st.integers(0, count - 1), min_size=1, unique=True))
    return steps, wanted


@given(graphs(), st.integers(0, 5), st.randoms(use_true_random=False))
def test_any_graph_gives_what_running_it_by_hand_gives(graph, value, chance: random.Random):
    steps, wanted = graph
    name = lambda index: "X" if index < 0 else f"t{index}"  # noqa: E731
    models = [
        member(f"M{i}", " ".join(f"I{r}" for r in range(len(reads)))) for i, (reads, _) in enumerate(steps)
    ]
    config = ensemble(
        [
            step(model, " ".join(f"I{n}={name(r)}" for n, r in enumerate(reads)), f"Y=t{i}")
            for i, (model, (reads, _)) in enumerate(zip(models, steps, strict=True))
        ],
        outputs=" ".join(name(i) for i in range(len(steps))),
        when={f"t{i}": f"{name(guard)} >= 3" for i, (_, guard) in enumerate(steps) if guard is not None},
    )
    known = {-1: float(value)}
    for index, (reads, guard) in enumerate(steps):
        if any(r not in known for r in reads) or (guard is not None and known.get(guard, 0) < 3):
            continue
        known[index] = sum(known[r] for r in reads) + index

    run = Driven(compile_plan(config, *models), {"X": tensor("X", value)}, tuple(name(i) for i in wanted))
    called = []
    while run.calls:
        call = chance.choice(run.calls)
        called.append(call.step.index)
        total = sum(each.to_numpy()[0] for each in call.inputs.values()) + call.step.index
        run.respond("", call=call, Y=[total])

    assert run.values() == {name(i): [known[i]] for i in wanted if i in known}
    assert len(called) == len(set(called))
    assert set(called) <= set(known)
    assert run.run.is_over
