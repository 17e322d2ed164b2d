"""The classification extension."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, strategies as st

from bireme.types import InvalidArgument, Tensor, datatypes
from bireme.wire import classification
from bireme.wire.classification import classify


def run(array, count, labels=(), *, datatype=None, batches=False):
    tensor = Tensor("Y", datatype or datatypes.from_numpy(array.dtype), array.shape, array)
    *pauses, result = classify(tensor, count, labels, has_batch_dim=batches)
    assert not any(pauses)
    assert (result.name, result.datatype) == ("Y", "BYTES")
    assert result.to_numpy().shape == result.shape
    return result


def strings(result):
    return [element.decode() for element in result.to_numpy().reshape(-1)]


def test_the_highest_come_first_with_their_labels():
    result = run(np.array([0.1, 0.9, 0.5], np.float32), 2, ["cat", "dog", "owl"])

    assert result.shape == (2,)
    assert strings(result) == ["0.900000:1:dog", "0.500000:2:owl"]


def test_each_batch_item_is_sorted_alone():
    result = run(np.array([[1, 3, 2], [9, 7, 8]], np.int32), 2, batches=True)

    assert result.shape == (2, 2)
    assert strings(result) == ["3:1", "2:2", "9:0", "8:2"]


def test_without_a_batch_all_dimensions_are_classes():
    result = run(np.array([[1, 3], [9, 7]], np.int32), 3)

    assert result.shape == (3,)
    assert strings(result) == ["9:2", "7:3", "3:1"]


def test_all_dimensions_after_the_batch_are_classes():
    result = run(np.arange(8, dtype=np.uint8).reshape(2, 2, 2), 1, batches=True)

    assert result.shape == (2, 1)
    assert strings(result) == ["3:3", "7:3"]


def test_no_more_classes_than_elements():
    assert run(np.array([[1, 2]], np.int8), 2**64 - 1, batches=True).shape == (1, 2)


@pytest.mark.parametrize(
    ("shape", "batches", "expected"),
    [
        ((), False, (1,)),
        ((0,), False, (0,)),
        ((0, 5), True, (0, 3)),
        ((2, 0), True, (2, 0)),
        ((3,), True, (3, 1)),
    ],
)
def test_small_and_empty_outputs(shape, batches, expected):
    assert run(np.zeros(shape, np.float32), 3, batches=batches).shape == expected


def test_equal_values_come_in_index_order():
    assert strings(run(np.array([5, 7, 5, 7, 5], np.int64), 4)) == ["7:1", "7:3", "5:0", "5:2"]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (
            np.array([2**64 - 1, 0, 2**63], np.uint64),
            ["18446744073709551615:0", "9223372036854775808:2", "0:1"],
        ),
        (np.array([-(2**63), 2**63 - 1], np.int64), ["9223372036854775807:1", "-9223372036854775808:0"]),
        (np.array([-128, 127], np.int8), ["127:1", "-128:0"]),
        (np.array([0.1, 1e20], np.float32), ["100000002004087734272.000000:1", "0.100000:0"]),
        (np.array([1e-9, -0.5]), ["0.000000:0", "-0.500000:1"]),
        (np.array([math.nan, -math.inf, math.inf, 1.0]), ["inf:2", "1.000000:3", "nan:0", "-inf:1"]),
    ],
)
def test_values_look_like_cpp_to_string(values, expected):
    assert strings(run(values, 9)) == expected


@pytest.mark.parametrize("labels", [[], ["", "", ""], ["only the first"]])
def test_a_missing_label_is_left_out(labels):
    assert strings(run(np.array([1, 2, 3], np.int32), 1, labels)) == ["3:2"]


def test_labels_are_utf8():
    assert run(np.array([1], np.int32), 1, ["été"]).to_numpy()[0] == "1:0:été".encode()


@pytest.mark.parametrize("datatype", sorted(datatypes.NUMPY_DTYPES))
def test_only_ordered_types_can_be_classified(datatype):
    array = np.zeros(3, datatypes.NUMPY_DTYPES[datatype])
    if datatype in {"BOOL", "FP16", "BF16", "BYTES"}:
        with pytest.raises(InvalidArgument) as caught:
            run(array, 1, datatype=datatype)
        assert caught.value.message.startswith(
            f"class result not available for output due to unsupported type '{datatype}': output 'Y' "
        )
    else:
        assert len(strings(run(array, 1, datatype=datatype))) == 1


def test_too_many_elements_for_one_item_are_refused():
    run(np.zeros((2, 1_000_000), np.int8), 1, batches=True)
    with pytest.raises(InvalidArgument) as caught:
        run(np.zeros((1, 1_000_001), np.int8), 1, batches=True)

    assert caught.value.message == (
        "classification output tensor too large: output 'Y' has 1000001 elements, at most 1000000 can be classified"
    )


def test_large_work_is_done_in_steps():
    tensor = Tensor("Y", "FP32", (8, 40_000), np.zeros((8, 40_000), np.float32))
    steps = list(classify(tensor, 2, has_batch_dim=True))

    assert len(steps) == 5
    assert steps[-1].shape == (8, 2)
    assert len(list(classify(Tensor("Y", "INT8", (200_000,), np.zeros(200_000, np.int8)), 200_000))) >= 4


@given(
    st.lists(st.integers(0, 9) | st.just(math.nan), max_size=30),
    st.integers(1, 35),
)
def test_is_a_stable_descending_sort(values, count):
    array = np.array(values, np.float64)
    order = sorted(
        range(len(values)), key=lambda i: -math.inf if math.isnan(array[i]) else array[i], reverse=True
    )

    found = [int(string.split(":")[1]) for string in strings(run(array, count))]
    # reverse=True keeps the order of equal elements
    assert found == order[:count]


def test_the_step_size_does_not_change_the_result(monkeypatch):
    values = np.random.default_rng(1).integers(0, 50, (3, 100)).astype(np.int16)
    whole = strings(run(values, 90, batches=True))
    monkeypatch.setattr(classification, "_MAX_STEP_ELEMENTS", 7)

    assert strings(run(values, 90, batches=True)) == whole
