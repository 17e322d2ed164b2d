"""Where a config and a model file contradict each other, both are quoted."""

from types import SimpleNamespace

import pytest

from bireme.backends.config_check import find_faults
from bireme.backends.onnxruntime.signature import read_node
from bireme.backends.signature import Signature
from bireme.config.model_config import (
    BatchInput,
    BatchOutput,
    ModelConfig,
    ModelInput,
    ModelOutput,
    ModelSequenceBatching,
    ModelTensorReshape,
    SequenceControlInput,
    SequenceState,
)
from bireme.config.state_tensors import with_state_tensors

FP32 = "tensor(float)"


def signature(inputs=None, outputs=None, initializers=None, **types) -> Signature:
    def tensors(shapes):
        return {
            name: read_node(SimpleNamespace(name=name, type=types.get(name, FP32), shape=shape))
            for name, shape in (shapes or {}).items()
        }

    return Signature(tensors(inputs), tensors(outputs), tensors(initializers))


def faults_of_input(file_shape, dims, max_batch_size=0, **fields) -> list[str]:
    config = ModelConfig(
        name="m", max_batch_size=max_batch_size, input=(ModelInput("X", "TYPE_FP32", dims=dims, **fields),)
    )
    return find_faults(config, signature({"X": file_shape}))


def faults_of_output(file_shape, dims, max_batch_size=0, **fields) -> list[str]:
    config = ModelConfig(
        name="m", max_batch_size=max_batch_size, output=(ModelOutput("X", "TYPE_FP32", dims=dims, **fields),)
    )
    return find_faults(config, signature({}, {"X": file_shape}))


@pytest.mark.parametrize(
    ("file_shape", "dims", "max_batch_size"),
    [
        ((16,), (16,), 0),
        ((-1,), (16,), 0),
        ((-1,), (-1,), 0),
        ((-1, 16), (16,), 8),
        ((-1, -1, 3), (-1, 3), 8),
        ((), (1,), 0),
    ],
)
def test_shapes_that_fit(file_shape, dims, max_batch_size):
    assert faults_of_input(file_shape, dims, max_batch_size) == []
    assert faults_of_output(file_shape, dims, max_batch_size) == []


@pytest.mark.parametrize(
    ("file_shape", "dims", "max_batch_size"),
    [((-1,), (16,), 0), ((16,), (-1,), 0), ((), (5, -1), 0), ((), (5,), 8)],
)
def test_outputs_may_be_fixed_variable_or_of_unknown_rank(file_shape, dims, max_batch_size):
    assert faults_of_output(file_shape, dims, max_batch_size) == []


@pytest.mark.parametrize(
    ("file_shape", "dims", "max_batch_size", "expected"),
    [
        pytest.param((4,), (3,), 0, "the config's dims [3], but the model file has [4]", id="another size"),
        pytest.param((2, 3), (6,), 0, "the config's dims [6], but the model file has [2, 3]", id="another rank"),
        pytest.param(
            (-1, 4), (3,), 8,
            "the config's dims [3] with the batch dimension in front (max_batch_size is 8) make shape [-1, 3], but the "
            "model file has [-1, 4]",
            id="another size in a batch",
        ),
        pytest.param(
            (-1, 4), (-1, 4), 8,
            "the config's dims [-1, 4] with the batch dimension in front (max_batch_size is 8) make shape [-1, -1, 4], but "
            "the model file has [-1, 4]; leave the batch dimension out: dims: [4]",
            id="the batch dimension is in dims",
        ),
        pytest.param(
            (-1, 4), (4,), 0,
            "the config's dims [4], but the model file has [-1, 4]; max_batch_size is 0, so dims must hold every dimension: "
            "dims: [-1, 4]; or set max_batch_size, to let the server batch",
            id="the batch dimension is missing",
        ),
        pytest.param(
            (1, 4), (4,), 8,
            "max_batch_size is 8, so the model file needs a dynamic first dimension, the batch dimension, but its shape is "
            "[1, 4]; set max_batch_size: 0 (and give the whole shape in dims), or export the model with a dynamic batch "
            "dimension",
            id="the file does not batch",
        ),
    ],
)  # fmt: skip
def test_shapes_that_do_not_fit_are_explained(file_shape, dims, max_batch_size, expected):
    assert faults_of_input(file_shape, dims, max_batch_size) == [f"input 'X': {expected}"]
    assert faults_of_output(file_shape, dims, max_batch_size) == [f"output 'X': {expected}"]


@pytest.mark.parametrize(
    ("file_shape", "dims", "max_batch_size", "expected"),
    [
        ((4,), (-1,), 0, "input 'X': the config's dims [-1], but the model file has [4]"),
        ((), (2,), 0, "input 'X' is a scalar in the model file, so the config's dims must be [1], found [2]"),
    ],
)
def test_inputs_must_take_all_that_the_config_admits(file_shape, dims, max_batch_size, expected):
    assert faults_of_input(file_shape, dims, max_batch_size) == [expected]


def test_a_scalar_input_cannot_be_batched():
    (fault,) = faults_of_input((), (1,), 8)

    assert "needs a dynamic first dimension, the batch dimension, but its shape is []" in fault


def test_a_reshape_is_what_the_file_sees():
    reshape = ModelTensorReshape((2, 3))

    assert faults_of_input((-1, 2, 3), (6,), 8, reshape=reshape) == []
    assert faults_of_output((-1,), (1,), 8, reshape=ModelTensorReshape()) == []
    assert faults_of_input((-1, 6), (6,), 8, reshape=reshape) == [
        (
            "input 'X': the config's reshape [2, 3] with the batch dimension in front (max_batch_size is 8) make shape "
            "[-1, 2, 3], but the model file has [-1, 6]"
        )
    ]


def test_a_ragged_input_is_one_dimension_of_any_length():
    assert faults_of_input((-1,), (-1,), 8, allow_ragged_batch=True) == []
    assert faults_of_input((-1, 3), (-1,), 8, allow_ragged_batch=True) == [
        (
            "input 'X' is ragged (allow_ragged_batch), so the model file needs shape [-1] for the elements of all requests, but "
            "it has [-1, 3]"
        )
    ]


@pytest.mark.parametrize(
    ("name", "ending"),
    [
        ("INPUT_0", "; did you mean 'INPUT0'?"),
        ("input0", "; did you mean 'INPUT0'?"),
        ("INPUT0 ", "; the config's name 'INPUT0 ' has blanks around it"),
        ("something", ""),
    ],
)
def test_an_unknown_name_is_answered_with_those_there_are(name, ending):
    known = {"INPUT0": (1,), "MASK": (1,)}
    config = ModelConfig(
        input=(ModelInput(name, "TYPE_FP32", dims=(1,)),), output=(ModelOutput(name, "TYPE_FP32", dims=(1,)),)
    )

    faults = find_faults(config, signature(known, known))

    text = f"'{name}' is in the config, but not in the model file, which has 'INPUT0', 'MASK'{ending}"
    assert faults[0] == f"input {text}"
    assert faults[-1] == f"output {text}"


def test_an_input_that_the_config_forgets_is_named():
    config = ModelConfig(input=(ModelInput("X", "TYPE_FP32", dims=(1,)),))

    assert find_faults(config, signature({"X": (1,), "MASK": (-1, 3)}, MASK="tensor(int64)")) == [
        "the model file needs input 'MASK' (tensor(int64), shape [-1, 3]), which the config does not list; it lists 'X'"
    ]


def test_outputs_may_be_left_out():
    assert find_faults(ModelConfig(), signature({}, {"Y": (1,), "P": ()}, P="seq(tensor(float))")) == []


def test_data_types_are_compared():
    config = ModelConfig(
        input=(ModelInput("X", "TYPE_INT64", dims=(1,)),),
        output=(ModelOutput("Y", "TYPE_STRING", dims=(1,)),),
    )

    assert find_faults(config, signature({"X": (1,)}, {"Y": (1,)}, Y="seq(tensor(float))")) == [
        "input 'X': the config's data_type is TYPE_INT64, but the model file has TYPE_FP32",
        "output 'Y' of the model file is a seq(tensor(float)), which no data type of the protocol holds",
    ]


def test_optional_inputs_are_those_with_an_initializer():
    config = ModelConfig(
        input=(
            ModelInput("X", "TYPE_FP32", dims=(1,), optional=True),
            ModelInput("W", "TYPE_FP32", dims=(2,), optional=True),
        )
    )

    assert find_faults(config, signature({"X": (1,)}, initializers={"W": (2,)})) == [
        "input 'X' is optional in the config, but the model file needs it: only an input with an initializer can be left out"
    ]


def test_batch_inputs_are_inputs_of_the_file():
    def faults(name, kind="BATCH_ELEMENT_COUNT", data_type="TYPE_INT32"):
        entry = BatchInput(kind, (name,), data_type, ("X",))
        return find_faults(ModelConfig(batch_input=(entry,)), signature({"N": (-1,)}, N="tensor(int32)"))

    assert faults("N") == []
    assert faults("M")[0] == "batch_input 'M' is in the config, but not in the model file, which has 'N'"
    assert faults("N", data_type="TYPE_FP32") == [
        "batch_input 'N': the config's data_type is TYPE_FP32, but the model file has TYPE_INT32"
    ]
    assert faults("N", kind="BATCH_ITEM_SHAPE") == [
        "batch_input 'N': kind BATCH_ITEM_SHAPE makes 2 dimensions, but the model file has shape [-1]"
    ]


def test_a_batch_output_has_any_shape():
    config = ModelConfig(
        max_batch_size=8,
        output=(ModelOutput("Y", "TYPE_FP32", dims=(-1,)),),
        batch_output=(BatchOutput(("Y",), source_input=("X",)),),
    )

    assert find_faults(config, signature({}, {"Y": (7,)})) == []


def test_control_inputs_are_inputs_of_the_file():
    sequence = ModelSequenceBatching(control_input=(SequenceControlInput("START"),))

    assert find_faults(ModelConfig(sequence_batching=sequence), signature({"START": (1,)})) == []
    assert find_faults(ModelConfig(sequence_batching=sequence), signature({"IN": (1,)})) == [
        "sequence control input 'START' is in the config, but not in the model file, which has 'IN'",
        (
            "the model file needs input 'IN' (tensor(float), shape [1]), which the config does not list; it lists "
            "'START'"
        ),
    ]


def faults_of_state(state: SequenceState, inputs, outputs, max_batch_size=0, **types) -> list[str]:
    config = ModelConfig(
        max_batch_size=max_batch_size, sequence_batching=ModelSequenceBatching(state=(state,))
    )
    return find_faults(with_state_tensors(config), signature(inputs, outputs, **types))


def test_states_are_inputs_and_outputs_of_the_file():
    state = SequenceState("IN", "OUT", "TYPE_FP32", (2,))

    assert faults_of_state(state, {"IN": (2,)}, {"OUT": (2,)}) == []
    assert faults_of_state(state, {"IN": (-1, 2)}, {"OUT": (-1, 2)}, 8) == []
    assert faults_of_state(state, {}, {"OUT": (2,)}) == [
        "input 'IN' is in the config, but not in the model file, which has none"
    ]
    assert faults_of_state(state, {"IN": (2,)}, {}) == [
        "output 'OUT' is in the config, but not in the model file, which has none"
    ]
    assert faults_of_state(state, {"IN": (2,)}, {"OUT": (2,)}, OUT="tensor(double)") == [
        "output 'OUT': the config's data_type is TYPE_FP32, but the model file has TYPE_FP64"
    ]


def test_a_state_whose_batch_axis_is_not_the_first_cannot_be_batched():
    state = SequenceState("IN", "OUT", "TYPE_FP32", (2, 1, 128))

    assert faults_of_state(state, {"IN": (2, -1, 128)}, {"OUT": (2, -1, 128)}) == []
    found = faults_of_state(state, {"IN": (2, -1, 128)}, {"OUT": (2, -1, 128)}, 8)
    assert [True, True] == ["needs a dynamic first dimension" in fault for fault in found]
