"""Outputs straight into the caller's memory: the same results as without, and only where that can be known."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from onnx import helper

from bireme.backends.onnxruntime import direct_output
from onnx_models import save_add, save_graph, save_identity, save_plus_one, tensor_info


def memory_of(array: np.ndarray) -> memoryview:
    return array.data.cast("B")


def lies_in(array: np.ndarray, memory: memoryview) -> bool:
    return array.ctypes.data == np.frombuffer(memory, np.uint8).ctypes.data


def save_nonzero(path):
    """Its output's shape depends on the values."""
    return save_graph(
        path,
        [helper.make_node("NonZero", ["X"], ["Y"])],
        [tensor_info("X", "FP32", [-1])],
        [tensor_info("Y", "INT64", [1, -1])],
    )


@pytest.fixture
def target():
    """Room for 16 numbers."""
    return memoryview(bytearray(64))


def test_from_the_second_run_of_a_shape_on_the_output_is_there(open_model, target):
    instance = open_model(save_plus_one).instance
    for turn, size in enumerate((4, 4, 8, 4, 8)):
        array = np.arange(size, dtype=np.float32) + turn
        (result,) = instance.execute_into({"X": array}, {"Y": target}).values()

        np.testing.assert_array_equal(result, array + 1)
        assert lies_in(result, target) == (turn in {1, 3, 4})


def test_outputs_may_be_mixed(open_model, target):
    instance = open_model(save_add).instance
    inputs = {"INPUT0": np.arange(16, dtype=np.float32), "INPUT1": np.full(16, 2, np.float32)}
    expected = {"OUTPUT0": inputs["INPUT0"] + 2, "OUTPUT1": inputs["INPUT0"] - 2}
    for names in (("OUTPUT0",), ("OUTPUT0",), ("OUTPUT1",), ("OUTPUT0", "OUTPUT1"), (), ("OTHER",)):
        targets = {name: memoryview(bytearray(64)) for name in names}
        results = instance.execute_into(dict(inputs), targets)
        for name, array in expected.items():
            np.testing.assert_array_equal(results[name], array)
        assert set(results) == set(expected)
    results = instance.execute_into(inputs, {"OUTPUT1": target})
    assert lies_in(results["OUTPUT1"], target)
    assert not lies_in(results["OUTPUT0"], target)


@pytest.mark.parametrize(("offset", "size"), [(0, 60), (1, 64), (3, 80)])
def test_what_does_not_fit_or_is_not_aligned_goes_elsewhere(open_model, offset, size):
    instance = open_model(save_plus_one).instance
    array = np.arange(16, dtype=np.float32)
    memory = memory_of(np.zeros(100, np.float32))[offset : offset + size]
    for _ in range(2):
        (result,) = instance.execute_into({"X": array}, {"Y": memory}).values()

        np.testing.assert_array_equal(result, array + 1)
        assert not lies_in(result, memory)
    assert bytes(memory) == bytes(size)


@pytest.mark.parametrize("datatype", ["BOOL", "UINT8", "INT16", "INT64", "FP16", "FP64"])
def test_every_type_of_numbers(open_model, datatype):
    instance = open_model(partial(save_identity, datatype=datatype)).instance
    array = np.array([0, 1, 1], {"BOOL": bool, "FP16": "f2", "FP64": "f8"}.get(datatype, datatype.lower()))
    memory = memory_of(np.zeros(8, np.int64))
    for is_there in (False, True):
        (result,) = instance.execute_into({"X": array}, {"Y": memory}).values()

        np.testing.assert_array_equal(result, array)
        assert result.dtype == array.dtype
        assert lies_in(result, memory) == is_there


def test_shapes_that_depend_on_the_data_are_found_out_and_left_alone(open_model):
    instance = open_model(save_nonzero).instance
    memory = memory_of(np.zeros(16, np.int64))
    for values in ([1, 0, 1, 0], [1, 1, 1, 0], [0, 0, 0, 1], [1, 0, 1, 0], [0, 0, 0, 0]):
        array = np.array(values, np.float32)
        (result,) = instance.execute_into({"X": array}, {"Y": memory}).values()

        np.testing.assert_array_equal(result, [np.flatnonzero(array)])
    assert list(instance.execute_into._known.values()) == [()]


def test_errors_are_those_of_an_ordinary_run(open_model, target):
    instance = open_model(save_add).instance
    good = {name: np.zeros(16, np.float32) for name in ("INPUT0", "INPUT1")}
    bad = {"INPUT0": np.zeros(16, np.float32), "INPUT1": np.zeros(7, np.float32)}
    for _ in range(2):
        instance.execute_into(good, {"OUTPUT0": target})
        with pytest.raises(Exception, match="INPUT1"):
            instance.execute_into(bad, {"OUTPUT0": target})


def test_strided_inputs_are_packed(open_model, target):
    instance = open_model(save_plus_one).instance
    for _ in range(2):
        array = np.arange(8, dtype=np.float32)[::2]
        (result,) = instance.execute_into({"X": array}, {"Y": target}).values()

        np.testing.assert_array_equal(result, array + 1)


def test_an_empty_output_needs_no_memory(open_model, target):
    instance = open_model(save_plus_one).instance
    for _ in range(2):
        (result,) = instance.execute_into({"X": np.zeros(0, np.float32)}, {"Y": target}).values()
        assert result.shape == (0,)


@pytest.mark.parametrize(
    "save",
    [
        partial(save_identity, datatype="BYTES"),
        partial(save_identity, datatype="BF16"),
        partial(save_identity, dims=()),
    ],
)
def test_models_of_other_things_than_arrays_of_numbers_have_no_direct_way(open_model, save):
    assert open_model(save).instance.execute_into is None


def test_a_closed_instance_has_no_direct_way(open_model):
    instance = open_model(save_plus_one).instance
    instance.close()

    assert instance.execute_into is None


def test_the_table_of_shapes_is_bounded(open_model, target, monkeypatch):
    monkeypatch.setattr(direct_output, "_MAX_KNOWN", 3)
    instance = open_model(save_plus_one).instance
    for size in range(1, 9):
        instance.execute_into({"X": np.zeros(size, np.float32)}, {"Y": target})

    assert len(instance.execute_into._known) <= 3
