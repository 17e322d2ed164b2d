"""Auto-completion of a config from what the file declares."""

from types import SimpleNamespace

import pytest

from bireme.backends.onnxruntime.signature import read_node
from bireme.backends.signature import Signature, complete
from bireme.config.model_config import (
    BatchInput,
    ModelConfig,
    ModelDynamicBatching,
    ModelInput,
    ModelOutput,
    ModelSequenceBatching,
    ModelTensorReshape,
)
from bireme.types import InvalidArgument, Unsupported


def signature(
    inputs: dict[str, tuple[int, ...]], outputs: dict[str, tuple[int, ...]], **types: str
) -> Signature:
    def tensors(shapes):
        return {
            name: read_node(SimpleNamespace(name=name, type=types.get(name, "tensor(float)"), shape=shape))
            for name, shape in shapes.items()
        }

    return Signature(tensors(inputs), tensors(outputs))


BATCHING = signature({"X": (-1, 3)}, {"Y": (-1,)})
FIXED = signature({"X": (1, 3)}, {"Y": (1,)})


def test_a_file_that_batches():
    completed = complete(ModelConfig(name="m"), BATCHING, 4)

    assert completed == ModelConfig(
        name="m",
        max_batch_size=4,
        dynamic_batching=ModelDynamicBatching(),
        input=(ModelInput("X", "TYPE_FP32", dims=(3,)),),
        output=(ModelOutput("Y", "TYPE_FP32", dims=(1,), reshape=ModelTensorReshape()),),
    )


def test_a_file_that_does_not_batch():
    completed = complete(ModelConfig(name="m"), signature({"X": (1, -1)}, {"Y": ()}, Y="tensor(string)"), 4)

    assert completed == ModelConfig(
        name="m",
        input=(ModelInput("X", "TYPE_FP32", dims=(1, -1)),),
        output=(ModelOutput("Y", "TYPE_STRING", dims=(1,)),),
    )


@pytest.mark.parametrize("one_fixed", [{"Z": (3,)}, {"Z": ()}])
def test_one_tensor_without_a_batch_dimension_is_enough(one_fixed):
    assert (
        complete(ModelConfig(), signature({"X": (-1, 3), **one_fixed}, {"Y": (-1,)}), 4).max_batch_size == 0
    )
    assert (
        complete(ModelConfig(), signature({"X": (-1, 3)}, {"Y": (-1,), **one_fixed}), 4).max_batch_size == 0
    )


@pytest.mark.parametrize(
    ("given", "default", "expected", "batching"),
    [
        (0, 4, 4, True),
        (0, 1, 1, False),
        (0, 0, 0, False),
        (0, -1, 0, False),
        (8, 4, 8, True),
        (1, 4, 1, False),
    ],
)
def test_the_batch_size_is_the_configs_or_else_the_default(given, default, expected, batching):
    completed = complete(ModelConfig(max_batch_size=given), BATCHING, default)

    assert completed.max_batch_size == expected
    assert (completed.dynamic_batching is not None) == batching
    assert completed.input[0].dims == ((3,) if expected else (-1, 3))


def test_a_scheduling_choice_is_kept():
    dynamic = ModelDynamicBatching(max_queue_delay_microseconds=5)
    sequence = ModelSequenceBatching()

    assert complete(ModelConfig(dynamic_batching=dynamic), BATCHING, 4).dynamic_batching == dynamic
    assert complete(ModelConfig(sequence_batching=sequence), BATCHING, 4).dynamic_batching is None


def test_a_config_that_lists_both_sides_is_left_alone():
    config = ModelConfig(input=(ModelInput("A"),), output=(ModelOutput("B"),))

    assert complete(config, BATCHING, 4) is config


def test_batch_inputs_count_as_inputs():
    config = ModelConfig(batch_input=(BatchInput(),), output=(ModelOutput("B"),))

    assert complete(config, BATCHING, 4) is config


def test_only_the_missing_side_is_filled_in():
    inputs, outputs = (ModelInput("A"),), (ModelOutput("B"),)

    without_outputs = complete(ModelConfig(input=inputs), BATCHING, 4)
    without_inputs = complete(ModelConfig(output=outputs), BATCHING, 4)

    assert (without_outputs.input, without_outputs.output[0].name) == (inputs, "Y")
    assert (without_inputs.input[0].name, without_inputs.output) == ("X", outputs)


def test_asking_a_file_to_batch_that_cannot_is_an_error():
    with pytest.raises(InvalidArgument) as caught:
        complete(ModelConfig(name="m", max_batch_size=8), FIXED, 4)

    assert caught.value.message == (
        "autofill failed for model 'm': model does not support batching while non-zero max_batch_size is specified: "
        "max_batch_size is 8, but the first dimension of 'X' [1, 3], 'Y' [1] is not dynamic in the model file; set "
        "max_batch_size: 0, or export the model with a dynamic batch dimension"
    )


def test_what_is_no_tensor_cannot_be_filled_in():
    found = signature({"X": (3,)}, {"L": (1,), "P": ()}, P="seq(map(int64,tensor(float)))")

    with pytest.raises(Unsupported) as caught:
        complete(ModelConfig(name="m"), found, 4)

    assert caught.value.message == (
        "model 'm': output 'P' of the model file is a seq(map(int64,tensor(float))), which no data type of the protocol "
        "holds; list the outputs to serve in config.pbtxt ('L'), or export the model without it"
    )


@pytest.mark.parametrize("onnx_type", ["seq(tensor(float))", "tensor(complex64)", "tensor(float8e4m3fn)"])
def test_an_input_of_no_data_type_cannot_be_filled_in(onnx_type):
    with pytest.raises(
        Unsupported, match=r"input 'X' of the model file is a .* which no data type of the protocol holds$"
    ):
        complete(ModelConfig(), signature({"X": (3,)}, {"Y": (3,)}, X=onnx_type), 4)
