"""Which argument an input is, and which result an output: by name, by position, by order."""

from __future__ import annotations

import pytest

from bireme.backends.pytorch.interface import Argument, Interface
from bireme.backends.pytorch.naming import bind, describe_missing, find_type_faults, position_in
from bireme.config import parse_text
from bireme.types import InvalidArgument

IMAGE_AND_SIZE = Interface(
    (Argument(("image",)), Argument(("size",), "int")), outputs=((), ()), output_types=("Tensor", "List[str]")
)


def config(inputs="image size", outputs="OUTPUT__0", *, more="", types=None, dims="[1]"):
    types = types or {}
    lines = [more]
    for kind, names in (("input", inputs), ("output", outputs)):
        lines += [
            f'{kind} {{ name: "{name}" data_type: TYPE_{types.get(name, "FP32")} dims: {dims} }}'
            for name in names.split()
        ]
    return parse_text("\n".join(['name: "m"', *lines]), "m")


def positions(configuration, interface=IMAGE_AND_SIZE):
    bindings = bind(configuration, interface)
    return {each.name: each.position for each in bindings.inputs}


@pytest.mark.parametrize(
    ("name", "position"),
    [
        ("INPUT__0", 0),
        ("x__12", 12),
        ("__3", 3),
        ("INPUT_0", None),
        ("INPUT__", None),
        ("INPUT___0", None),
        ("a__b__0", None),
        ("INPUT__x", None),
        ("INPUT__²", None),
        ("image", None),
    ],
)
def test_the_position_stands_after_the_first_double_underscore(name, position):
    assert position == position_in(name)


@pytest.mark.parametrize(
    "inputs", ["image size", "size image", "INPUT__0 INPUT__1", "image b__1", "size a__0"]
)
def test_inputs_are_found_by_name_and_by_position(inputs):
    found = positions(config(inputs))

    assert {0, 1} == set(found.values())
    assert found.get("image", 0) == 0
    assert found.get("size", 1) == 1


def test_names_that_say_nothing_count_in_the_configs_order():
    assert {"picture": 0, "pixels": 1} == positions(config("picture pixels"))
    assert {"image": 0, "other": 1} == positions(config("image other"))
    assert ("picture", "pixels") == bind(config("picture pixels"), IMAGE_AND_SIZE).by_order


def test_an_order_that_contradicts_a_name_is_refused_with_what_forward_takes():
    with pytest.raises(InvalidArgument) as caught:
        bind(config("imagee image"), IMAGE_AND_SIZE)

    assert "input 'imagee' is in the config, but is no argument of forward(); did you mean 'image'?" in str(
        caught.value
    )
    assert "the model file has forward(image: Tensor, size: int)" in str(caught.value)


@pytest.mark.parametrize(
    ("inputs", "fault"),
    [
        ("image", "forward() needs argument 'size' (int), which the config does not list; it lists 'image'"),
        (
            "INPUT__0 INPUT__2",
            "input 'INPUT__2' is argument 2, counted from 0, but forward() takes 2 arguments",
        ),
        ("INPUT__0 x__0", "inputs 'INPUT__0' and 'x__0' are the same argument of forward()"),
        ("a b c", "input 'a' is in the config, but is no argument of forward() and gives no position either"),
    ],
)
def test_inputs_that_do_not_fit_are_told(inputs, fault):
    with pytest.raises(InvalidArgument) as caught:
        bind(config(inputs), IMAGE_AND_SIZE)

    assert fault in str(caught.value)


def test_arguments_with_default_values_may_be_left_out():
    interface = Interface(
        (Argument(("x",)), Argument(("n",), "int", is_required=False, default=3)), outputs=((),)
    )

    assert {"x": 0} == positions(config("x"), interface)
    assert interface.describe() == "forward(x: Tensor, n: int = 3)"


def test_a_dictionary_takes_any_input():
    interface = Interface((Argument(("batch",), "Dict[str, Tensor]"),), outputs=((),), takes_dictionary=True)

    assert {"a": 0, "b": 1} == positions(config("a b"), interface)
    faults = find_type_faults(config("a", types={"a": "STRING"}), bind(config("a"), interface), interface)
    assert faults == ["input 'a': a dictionary of tensors holds no strings"]


def test_more_arguments_than_are_declared_may_be_given_where_forward_takes_any():
    interface = Interface((Argument(("x",), "Any"),), takes_any=True)

    assert {"INPUT__0": 0, "INPUT__3": 3} == positions(config("INPUT__0 INPUT__3"), interface)


def test_controls_states_and_batch_inputs_are_arguments_too():
    interface = Interface(tuple(Argument((name,)) for name in ("x", "start", "state")), outputs=((), ()))
    more = """
        sequence_batching {
          control_input { name: "START__1" control { kind: CONTROL_SEQUENCE_START fp32_false_true: [0, 1] } }
          state { input_name: "state" output_name: "OUT__1" data_type: TYPE_FP32 dims: [1] }
        }
    """
    bindings = bind(config("x", "OUT__0", more=more), interface)

    assert {"x": 0, "state": 2, "START__1": 1} == {each.name: each.position for each in bindings.inputs}
    assert {"OUT__0": 0, "OUT__1": 1} == {each.name: each.position for each in bindings.outputs}


# Outputs


def outputs(names, interface=IMAGE_AND_SIZE):
    return {each.name: each.position for each in bind(config(outputs=names), interface).outputs}


def test_outputs_are_found_by_position_and_else_by_order():
    assert {"b__1": 1, "a__0": 0} == outputs("b__1 a__0")
    assert {"boxes": 0, "scores": 1} == outputs("boxes scores")


def test_an_output_that_forward_does_not_return_is_refused():
    with pytest.raises(
        InvalidArgument, match="output 'OUTPUT__2' in the config refers to output 2, counted from 0, which"
    ):
        outputs("OUTPUT__2")


def test_unknown_names_are_refused_where_the_file_has_names_with_the_near_one():
    interface = Interface(
        (Argument(("image", "ARGS[0]")), Argument(("size",))),
        outputs=(("logits", "OUTPUT__0"),),
        is_strict=True,
    )

    assert {"ARGS[0]": 0, "INPUT__1": 1} == positions(config("ARGS[0] INPUT__1", "logits"), interface)
    with pytest.raises(InvalidArgument, match=r"did you mean 'image'\?"):
        bind(config("imag size", "logits"), interface)
    with pytest.raises(
        InvalidArgument, match=r"not in the model file, which has 'logits'; did you mean 'logits'\?"
    ):
        bind(config("image size", "logit"), interface)


def test_outputs_of_a_dictionary_are_found_by_key():
    interface = Interface((Argument(("image",)), Argument(("size",))), by_key=True)
    (scores, second) = bind(config(outputs="scores OUTPUT__1"), interface).outputs

    assert scores.key == "scores"
    assert second.position == 1


# Types


@pytest.mark.parametrize(
    ("types", "fault"),
    [
        ({"image": "STRING"}, "argument 'image' of forward() is a Tensor"),
        (
            {"OUTPUT__0": "STRING"},
            "output 'OUTPUT__0': the config's data_type is TYPE_STRING, but forward() returns Tensor",
        ),
        (
            {"OUTPUT__1": "FP32"},
            "output 'OUTPUT__1': the config's data_type is TYPE_FP32, but forward() returns List[str]",
        ),
    ],
)
def test_strings_are_lists_and_nothing_else(types, fault):
    configuration = config(outputs="OUTPUT__0 OUTPUT__1", types={"OUTPUT__1": "STRING"} | types)

    faults = find_type_faults(configuration, bind(configuration, IMAGE_AND_SIZE), IMAGE_AND_SIZE)

    assert any(fault in each for each in faults), faults


def test_strings_have_one_dimension_the_batch_included():
    configuration = config(outputs="OUTPUT__1", types={"OUTPUT__1": "STRING"}, more="max_batch_size: 4")

    (fault,) = find_type_faults(configuration, bind(configuration, IMAGE_AND_SIZE), IMAGE_AND_SIZE)

    assert "they have one dimension, the batch included; write dims: [ 1 ] reshape { shape: [ ] }" in fault


def test_what_a_config_without_tensors_has_to_say_is_told():
    text = describe_missing(config("", ""), IMAGE_AND_SIZE)

    assert "the config lists no input and no output" in text
    assert 'input [ { name: "image" data_type: TYPE_FP32 dims: [ ... ] }, { name: "size"' in text
    assert 'output [ { name: "OUTPUT__0"' in text
    assert "forward(image: Tensor, size: int)" in text
