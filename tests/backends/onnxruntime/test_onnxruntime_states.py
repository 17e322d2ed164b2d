"""Implicit state with real model files: what the config need not list, and what the session returns for the server."""

import numpy as np
import pytest
from onnx import helper

from bireme.config.model_config import (
    ModelInput,
    ModelOutput,
    ModelSequenceBatching,
    SequenceControlInput,
    SequenceState,
)
from bireme.types import InvalidArgument
from onnx_models import save_graph, tensor_info

SUM = SequenceState("sum_in", "sum_out", "TYPE_FP32", (2,))
SEQUENCES = ModelSequenceBatching(state=(SUM,))


def save_sum(path, *, batch: bool = True, datatype: str = "FP32", name: str = "sum_in"):
    """Write a model whose output is the input added to a state, which is also the new state."""
    nodes = [
        helper.make_node("Add", ["x", name], ["sum_out"]),
        helper.make_node("Identity", ["sum_out"], ["y"]),
    ]
    inputs = [tensor_info(each, datatype, (2,), batch=batch) for each in ("x", name)]
    outputs = [tensor_info(each, datatype, (2,), batch=batch) for each in ("y", "sum_out")]
    return save_graph(path, nodes, inputs, outputs)


def test_states_are_filled_in_neither_as_inputs_nor_as_outputs(open_model):
    model = open_model(save_sum, sequence_batching=SEQUENCES)

    assert ["x"] == [tensor.name for tensor in model.config.input]
    assert ["y"] == [tensor.name for tensor in model.config.output]
    assert model.config.dynamic_batching is None
    assert SEQUENCES == model.config.sequence_batching


@pytest.mark.parametrize("max_batch_size", [0, 4])
def test_a_session_returns_states_that_the_config_does_not_list(open_model, max_batch_size):
    model = open_model(
        lambda path: save_sum(path, batch=max_batch_size > 0),
        max_batch_size=max_batch_size,
        sequence_batching=SEQUENCES,
        input=(ModelInput("x", "TYPE_FP32", dims=(2,)),),
        output=(ModelOutput("y", "TYPE_FP32", dims=(2,)),),
    )
    shape = (1, 2) if max_batch_size else (2,)

    results = model.execute(x=np.ones(shape, np.float32), sum_in=np.full(shape, 2, np.float32))

    assert {"y", "sum_out"} == set(results)
    np.testing.assert_array_equal(np.full(shape, 3), results["sum_out"])


def test_a_control_tensor_is_filled_in_neither(open_model):
    control = SequenceControlInput("sum_in")
    model = open_model(save_sum, sequence_batching=ModelSequenceBatching(control_input=(control,)))

    assert ["x"] == [tensor.name for tensor in model.config.input]
    assert ["y", "sum_out"] == [tensor.name for tensor in model.config.output]


def test_a_state_of_another_type_than_the_files_is_refused(open_model):
    with pytest.raises(
        InvalidArgument, match=r"'sum_in': the config's data_type is TYPE_FP32, .* has TYPE_FP64"
    ):
        open_model(lambda path: save_sum(path, datatype="FP64"), sequence_batching=SEQUENCES)


def test_a_state_that_the_file_does_not_have_is_named(open_model):
    with pytest.raises(InvalidArgument, match=r"'sum_in' is in the config, .* did you mean 'sum_inn'"):
        open_model(lambda path: save_sum(path, name="sum_inn"), sequence_batching=SEQUENCES)
