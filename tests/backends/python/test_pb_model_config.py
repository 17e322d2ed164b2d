"""ModelConfig: what auto_complete_config may fill in, and looking things up in a config."""

import copy
import json

import pytest

from bireme.backends.python import pb_utils

X = {"name": "X", "data_type": "TYPE_FP32", "dims": [4]}
KINDS = pytest.mark.parametrize("kind", ["input", "output"])


def config(**fields):
    base = {"name": "m", "max_batch_size": 0, "input": [], "output": []}
    return pb_utils.ModelConfig(json.dumps(base | fields))


def add(made, kind, tensor):
    getattr(made, f"add_{kind}")(tensor)


def refused(text):
    return pytest.raises(ValueError, match=text)


def test_the_dictionary_is_the_config():
    made = config()
    made.as_dict()["max_batch_size"] = 3

    assert made.as_dict()["max_batch_size"] == 3


@pytest.mark.parametrize("existing", [0, 4, 8])
def test_the_batch_size_may_grow(existing):
    made = config(max_batch_size=existing)
    made.set_max_batch_size(8)

    assert made.as_dict()["max_batch_size"] == 8


def test_the_batch_size_does_not_shrink():
    with refused(
        "configuration specified max_batch_size 16, but in auto-complete-config function for model 'm' specified "
        "max_batch_size 8"
    ):
        config(max_batch_size=16).set_max_batch_size(8)


def test_dynamic_batching_is_set_where_nothing_is():
    made = config()
    made.set_dynamic_batching()

    assert made.as_dict()["dynamic_batching"] == {}
    made = config(dynamic_batching={"preferred_batch_size": [4]})
    made.set_dynamic_batching()

    assert made.as_dict()["dynamic_batching"] == {"preferred_batch_size": [4]}


@pytest.mark.parametrize("scheduler", ["sequence_batching", "ensemble_scheduling"])
def test_another_scheduler_stays(scheduler):
    with refused(
        f"Configuration specified scheduling_choice as '{scheduler}', but auto-complete-config function for model 'm' "
        f"tries to set scheduling_choice as 'dynamic_batching'"
    ):
        config(**{scheduler: {}}).set_dynamic_batching()


@KINDS
def test_tensors_are_added(kind):
    made = config()
    add(made, kind, X)

    assert made.as_dict()[kind] == [X]
    add(made, kind, X | {"name": "other", "dims": [1]})

    assert [tensor["name"] for tensor in made.as_dict()[kind]] == ["X", "other"]


@KINDS
@pytest.mark.parametrize("gap", [{"data_type": "TYPE_INVALID"}, {"dims": []}])
def test_gaps_are_filled(kind, gap):
    made = config(**{kind: [X | gap | {"reshape": {"shape": [2, 2]}}]})
    add(made, kind, X)

    assert made.as_dict()[kind] == [X | {"reshape": {"shape": [2, 2]}}]


def test_inputs_may_be_optional():
    made = config(input=[copy.deepcopy(X)])
    made.add_input(X | {"optional": True})

    assert made.as_dict()["input"] == [X | {"optional": True}]
    with refused(
        "model 'm', tensor 'X': the model expects optional False but the model configuration specifies "
    ):
        made.add_input(X | {"optional": False})


@KINDS
@pytest.mark.parametrize(
    ("change", "text"),
    [
        (
            {"data_type": "TYPE_INT8"},
            "unable to load model 'm', configuration expects datatype TYPE_FP32 for {kind} 'X', model provides TYPE_INT8",
        ),
        (
            {"dims": [5]},
            r"model 'm', tensor 'X': the model expects dims \[5\] but the model configuration specifies dims \[4\]",
        ),
    ],
)
def test_disagreement_with_the_config(kind, change, text):
    made = config(**{kind: [X]})

    with refused(text.format(kind=kind)):
        add(made, kind, X | change)
    assert made.as_dict()[kind] == [X]


@KINDS
@pytest.mark.parametrize(
    ("missing", "text"),
    [
        ("name", "{kind} in auto-complete-config function for model 'm' is missing 'name' property."),
        (
            "data_type",
            "{kind} 'X' in auto-complete-config function for model 'm' is missing 'data_type' property.",
        ),
        ("dims", "{kind} 'X' in auto-complete-config function for model 'm' is missing 'dims' property."),
    ],
)
def test_properties_that_are_missing(kind, missing, text):
    with refused(text.format(kind=kind)):
        add(config(), kind, {key: value for key, value in X.items() if key != missing})


def test_properties_that_are_unknown():
    with refused("contains property other than 'name', 'data_type', 'dims' and 'optional'."):
        config().add_input(X | {"format": 1})
    with refused(
        "output 'X' in auto-complete-config function for model 'm' contains property other than 'name', 'data_type' and "
        "'dims'."
    ):
        config().add_output(X | {"optional": True})


@pytest.mark.parametrize("decoupled", [True, False])
def test_the_transaction_policy(decoupled):
    made = config()
    made.set_model_transaction_policy({"decoupled": decoupled})
    made.set_model_transaction_policy({"decoupled": decoupled})
    made.set_model_transaction_policy({})

    assert made.as_dict()["model_transaction_policy"] == {"decoupled": decoupled}
    with refused(
        f"trying to change decoupled property in auto-complete-config for model 'm', which is already set to '{decoupled}'"
    ):
        made.set_model_transaction_policy({"decoupled": not decoupled})


def test_other_transaction_policies():
    with refused(
        "model transaction property in auto-complete-config function for model 'm' contains property other than "
        "'decoupled'."
    ):
        config().set_model_transaction_policy({"coupled": True})


def test_tensors_of_a_config_by_name():
    found = config(input=[X], output=[X | {"name": "Y"}]).as_dict()

    assert pb_utils.get_input_config_by_name(found, "X") == X
    assert pb_utils.get_output_config_by_name(found, "Y")["dims"] == [4]
    assert pb_utils.get_input_config_by_name(found, "Y") is None
    assert pb_utils.get_output_config_by_name({}, "Y") is None


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ({}, False),
        ({"model_transaction_policy": {"decoupled": True}}, True),
        ({"model_transaction_policy": {"decoupled": False}}, False),
    ],
)
def test_whether_a_config_is_decoupled(policy, expected):
    assert pb_utils.using_decoupled_model_transaction_policy(policy) is expected
