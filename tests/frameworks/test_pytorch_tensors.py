"""Memory: what is copied between the server and torch, and who owns the results."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

from bireme.backends.pytorch.runtime import torch
from bireme.backends.pytorch.tensors import DTYPES, OutputReader, take, to_bf16_tensor, to_tensor
from bireme.types import datatypes
from pytorch_models import (
    Halves,
    Identity,
    OpenModel,
    Same,
    Transposed,
    Writer,
    save_eager,
    save_torchscript,
    tensors,
)

VECTOR = tensors("x:FP32:-1", "y:FP32:-1")
KEEPER = """
class Keeper(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(3))
        self.last = None

    def forward(self, x):
        self.last = x + 1
        return self.last, self.weight, x
"""


def readonly(array):
    array.flags.writeable = False
    return array


def address(array):
    return array.__array_interface__["data"][0]


@pytest.mark.parametrize("datatype", [name for name in DTYPES if name != "BF16"])
def test_a_tensor_is_on_the_memory_of_its_array(datatype):
    array = np.ones((2, 3), datatypes.NUMPY_DTYPES[datatype])

    tensor = to_tensor(array)

    assert tensor.dtype is DTYPES[datatype]
    assert tensor.data_ptr() == address(array)


@pytest.mark.parametrize(
    "array",
    [
        readonly(np.ones((2, 3), np.float32)),
        np.ones((3, 2), np.float32).T,
        np.ones((4, 3), np.float32)[::2],
        np.frombuffer(b"\0" * 24, np.float32),
        np.ones((), np.float32),
    ],
    ids=["readonly", "transposed", "strided", "bytes", "scalar"],
)
def test_memory_of_any_sort_is_taken_without_a_copy_or_a_warning(array):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tensor = to_tensor(array)

    assert tensor.data_ptr() == address(array)
    assert tuple(tensor.shape) == array.shape


def test_negative_strides_cost_a_copy():
    array = np.arange(4, dtype=np.int32)[::-1]

    assert to_tensor(array).tolist() == [3, 2, 1, 0]


def test_an_empty_array_keeps_its_shape():
    assert tuple(to_tensor(np.empty((0, 3), np.float32)).shape) == (0, 3)


def test_bf16_is_its_bits_both_ways(tmp_path):
    bits = np.array([0x3F80, 0xC000, 0x7F80], np.uint16)
    tensor = to_bf16_tensor(bits)

    assert tensor.tolist() == [1.0, -2.0, float("inf")]
    assert tensor.data_ptr() == address(bits)
    save_torchscript(tmp_path, Same())
    with OpenModel(tmp_path, tensors("x:BF16:-1", "y:BF16:-1")) as model:
        result = model.execute(x=bits)["y"]
    assert result.dtype == np.uint16
    assert bits.tolist() == result.tolist()


# Results


def read(value, datatype="FP32", target=None):
    return OutputReader("y", datatype, 1)(take(value), target)


def test_a_result_is_the_tensors_own_memory():
    tensor = torch.ones(4)
    pointer = tensor.data_ptr()
    taken = take(tensor)
    del tensor

    array = OutputReader("y", "FP32", 1)(taken)

    assert pointer == address(array)
    assert array.flags.writeable


def test_a_result_that_somebody_holds_is_copied():
    held = torch.ones(4)

    array = read(held)

    assert held.data_ptr() != address(array)


def test_strides_are_made_straight():
    assert read(torch.arange(6.0).reshape(2, 3).T).flags.c_contiguous


def test_a_scalar_has_the_dimensions_of_the_config():
    assert read(torch.tensor(3.0)).shape == (1,)
    assert OutputReader("y", "FP32", 2)(torch.tensor(3.0)).shape == (1, 1)
    assert read(2, "INT64").tolist() == [2]


def test_a_target_takes_the_result_in_one_copy():
    memory = bytearray(64)

    array = read(torch.arange(6.0).reshape(2, 3).T, target=memoryview(memory))

    assert array.tolist() == [[0, 3], [1, 4], [2, 5]]
    assert np.shares_memory(array, np.frombuffer(memory, np.uint8))


@pytest.mark.parametrize(("datatype", "dtype"), [("BF16", torch.bfloat16), ("BOOL", torch.bool)])
def test_a_target_takes_any_type(datatype, dtype):
    memory = bytearray(16)

    array = read(torch.ones(3, dtype=dtype), datatype, memoryview(memory))

    assert array.dtype == datatypes.NUMPY_DTYPES[datatype]
    assert np.shares_memory(array, np.frombuffer(memory, np.uint8))


def test_a_target_that_is_too_small_is_left_alone():
    memory = bytearray(b"\x07" * 8)

    assert read(torch.ones(3), target=memoryview(memory)).tolist() == [1, 1, 1]
    assert memory == b"\x07" * 8


@pytest.mark.parametrize("module", [Identity(), Same(), Halves(), Transposed()])
def test_results_of_a_run_belong_to_the_caller(tmp_path, module):
    save_torchscript(tmp_path, module)
    text = tensors("x:FP32:4,2", "y:FP32:-1,-1")
    given = np.arange(8, dtype=np.float32).reshape(4, 2)

    with OpenModel(tmp_path, text) as model:
        for _ in range(3):
            before = given.copy()
            result = model.execute(x=given)["y"]
            result += 1

    assert before.tolist() == given.tolist()
    assert result.flags.c_contiguous


def test_nothing_of_an_eager_model_is_handed_out(tmp_path):
    save_eager(tmp_path, KEEPER)
    text = 'runtime: "model.py"' + tensors("x:FP32:3", "a:FP32:3 b:FP32:3 c:FP32:3")
    given = np.ones(3, np.float32)

    with OpenModel(tmp_path, text) as model:
        for _ in range(3):
            results = model.execute(x=given)
            module = model.module()
            pointers = {module.last.data_ptr(), module.weight.data_ptr(), address(given)}
            assert not pointers & {address(array) for array in results.values()}


def test_a_fresh_result_is_not_copied(tmp_path, monkeypatch):
    save_torchscript(tmp_path, Same())
    copies = []

    with OpenModel(tmp_path, VECTOR) as model:
        model.execute(x=np.ones(4, np.float32))
        for name in ("clone", "contiguous", "cpu", "copy_"):
            original = getattr(torch.Tensor, name)
            monkeypatch.setattr(
                torch.Tensor,
                name,
                lambda *args, original=original, name=name: copies.append(name) or original(*args),
            )
        model.execute(x=readonly(np.ones(4, np.float32)))

    assert copies == []


# Inputs that are written to


def test_a_model_that_writes_to_its_inputs_is_given_copies(tmp_path, caplog):
    save_torchscript(tmp_path, Writer())
    caplog.set_level("INFO", "bireme")
    given = readonly(np.ones(4, np.float32))

    with OpenModel(tmp_path, VECTOR) as model:
        results = [model.execute(x=given)["y"].tolist() for _ in range(3)]

    assert [[4, 4, 4, 4]] * 3 == results
    assert given.tolist() == [1, 1, 1, 1]
    assert caplog.text.count("forward() writes to its inputs, so it is given copies of them") == 1


def test_a_model_that_does_not_is_given_the_array_itself(tmp_path):
    save_eager(
        tmp_path,
        """
class Pointer(torch.nn.Module):
    def forward(self, x):
        return torch.tensor([x.data_ptr()])
""",
    )
    given = np.ones(4, np.float32)

    with OpenModel(tmp_path, 'runtime: "model.py"' + tensors("x:FP32:-1", "y:INT64:1")) as model:
        model.execute(x=given)
        assert address(given) == model.execute(x=given)["y"].item()


def test_execute_into_writes_to_the_memory_it_is_given(tmp_path):
    save_torchscript(tmp_path, Same())
    memory = bytearray(1024)

    with OpenModel(tmp_path, VECTOR) as model:
        execute_into = model.instances[0].execute_into
        result = execute_into({"x": np.arange(4, dtype=np.float32)}, {"y": memoryview(memory)})["y"]

    assert np.frombuffer(memory, np.float32)[:4].tolist() == result.tolist() == [0, 1, 2, 3]
    assert np.shares_memory(result, np.frombuffer(memory, np.uint8))
