"""An ensemble against its composing models: every disagreement is told, with step and tensor."""

from dataclasses import replace

import pytest

from bireme.config import find_faults, find_member_faults, normalise
from ensembles import ensemble, member, step

A, B = member("A"), member("B")


def faults(config, *models):
    """Return the faults of ``config`` against ``models``, found by name."""
    by_name = {model.name: model for model in models}
    members = [by_name[each.model_name] for each in config.ensemble_scheduling.step]
    return list(find_member_faults(config, members))


def static_faults(config):
    """Return the faults that show without the models."""
    return find_faults(normalise(config), name=config.name, require_io=True)


def chain(**changes):
    return ensemble([step(A, "X=X", "Y=mid"), step(B, "X=mid", "Y=Y")], **changes)


def test_chain_that_fits():
    assert static_faults(chain()) == []
    assert faults(chain(), A, B) == []


def test_names_that_the_model_does_not_have():
    config = ensemble([step(A, "Z=X", "Q=Y")])
    where = "in ensemble 'pipeline', step 0 ('A'): "

    assert faults(config, A) == [
        f"{where}ensemble tensor 'X' is mapping to non-existing input 'Z' in model 'A', which has 'X'",
        f"{where}input 'X' in model 'A' is not mapped to any ensemble tensors",
        f"{where}ensemble tensor 'Y' is mapped from non-existing output 'Q' in model 'A', which has 'Y'",
    ]


def test_optional_input_need_not_be_mapped():
    model = member("M", "X Z", optional="Z")
    assert faults(ensemble([step(model, "X=X", "Y=Y")]), model) == []


def test_two_outputs_to_one_tensor():
    model = member("M", outputs="Y Z")
    (fault,) = faults(ensemble([step(model, "X=X", "Y=Y Z=Y")]), model)

    assert "multiple outputs in model 'M' are mapped to the same ensemble tensor 'Y': 'Y' and 'Z'" in fault


def test_data_types_that_differ():
    odd = replace(B, input=(replace(B.input[0], data_type="TYPE_INT64"),))
    (fault,) = faults(chain(), A, odd)
    assert fault == (
        "in ensemble 'pipeline', step 1 ('B'): ensemble tensor 'mid': inconsistent data type: TYPE_FP32 is inferred from "
        "model 'A' while TYPE_INT64 is inferred from model 'B'"
    )


def test_shapes_that_differ():
    (fault,) = faults(chain(dims=(4,)), member("A", dims=(4,)), member("B", dims=(-1, 3)))[:1]

    assert "ensemble tensor 'mid': inconsistent shape: [4] is inferred from model 'A' while [-1,3]" in fault


@pytest.mark.parametrize(
    ("batch", "dims", "fits"), [(8, (3,), True), (0, (3,), True), (0, (-1, 3), True), (0, (4,), False)]
)
def test_batching_member_beside_one_that_takes_the_batch_as_it_is(batch, dims, fits):
    config = ensemble([step(A, "X=X", "Y=mid"), step(B, "X=mid", "Y=Y")], batch=8, dims=(3,))
    models = (
        member("A", batch=8, dims=(3,)),
        replace(member("B", batch=batch, dims=dims), output=member("B", dims=(3,)).output),
    )

    assert (faults(config, *models) == []) is fits


def test_batch_size_above_that_of_a_member():
    (fault,) = faults(ensemble([step(A, "X=X", "Y=Y")], batch=16), member("A", batch=8))

    assert fault == (
        "ensemble 'pipeline' allows maximum batch size to be 16, but it contains model 'A' (step 0) which only allows "
        "maximum batch size to be 8"
    )


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ({"when": {"mid": "X > 1"}}, None),
        ({"when": {"Y": "mid > 1"}}, None),
        (
            {"when": {"other": "X > 1"}},
            "'when:other' of ensemble 'pipeline' names no tensor that a step writes; there are 'Y', 'mid'",
        ),
        ({"default": {"other": "1"}}, "'default:other' of ensemble 'pipeline' names no tensor"),
        ({"when": {"mid": "X >"}}, "'when:mid' of ensemble 'pipeline' is no condition"),
        (
            {"when": {"mid": "nothing > 1"}},
            "'nothing' is unused in ensemble 'pipeline': nothing ever writes it",
        ),
        ({"when": {"mid": "Y > 1"}}, "output 'Y' for ensemble 'pipeline' is not written"),
    ],
)
def test_conditions_are_part_of_the_flow(parameters, words):
    found = static_faults(chain(**parameters))

    assert found == [] if words is None else any(words in fault for fault in found)


def test_tensor_that_only_a_condition_reads_is_used():
    score = member("S")
    config = ensemble([step(score, "X=X", "Y=score"), step(A, "X=X", "Y=Y")], when={"Y": "score > 0.5"})

    assert static_faults(config) == []


def test_step_with_two_conditions():
    model = member("M", outputs="Y Z")
    config = ensemble([step(model, "X=X", "Y=Y Z=Z")], outputs="Y Z", when={"Y": "X > 1", "Z": "X > 2"})
    (fault,) = static_faults(config)

    assert (
        "step 0 ('M') of ensemble 'pipeline' has several conditions, of 'Y' and 'Z': join them by 'and'"
        in fault
    )


def test_step_without_a_version_takes_the_latest():
    config = chain()
    steps = tuple(replace(each, model_version=0) for each in config.ensemble_scheduling.step)
    config = replace(config, ensemble_scheduling=replace(config.ensemble_scheduling, step=steps))

    assert [each.model_version for each in normalise(config).ensemble_scheduling.step] == [-1, -1]
