"""JSON `data` in: what each data type takes, and what becomes of it."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given, strategies as st

from bireme.types import InvalidArgument, datatypes
from bireme.wire.http import Limits
from bireme.wire.http.json_input import decode_json_data
from infer_bodies import DATATYPES, decode

INT64_MAX = 2**63 - 1
UINT64_MAX = 2**64 - 1


def read(datatype, data, shape=None):
    """Decode one input; ``data`` may be JSON text. The shape is that of a flat list unless given."""
    text = data if isinstance(data, str) else json.dumps(data)
    dims = json.dumps([len(data)] if shape is None else list(shape))
    document = f'{{"inputs":[{{"name":"X","datatype":"{datatype}","shape":{dims},"data":{text}}}]}}'
    return decode(document.encode()).inputs["X"].to_numpy()


@pytest.mark.parametrize(
    ("datatype", "data", "expected"),
    [
        ("BOOL", [True, False], [True, False]),
        ("UINT8", [0, 255, 256, 300], [0, 255, 0, 44]),
        ("UINT16", [65535, 65537], [65535, 1]),
        ("UINT32", [2**32 - 1, 2**32 + 5], [2**32 - 1, 5]),
        ("UINT64", [UINT64_MAX, INT64_MAX, 0], [UINT64_MAX, INT64_MAX, 0]),
        ("UINT8", [UINT64_MAX, 1], [255, 1]),
        ("INT8", [-128, 127, 128, -129, 300], [-128, 127, -128, 127, 44]),
        ("INT16", [32768, -1], [-32768, -1]),
        ("INT32", [2**31, -(2**31) - 1], [-(2**31), 2**31 - 1]),
        ("INT64", [INT64_MAX, -(2**63)], [INT64_MAX, -(2**63)]),
        ("FP16", [1.5, 1, 1e9, -1e9, 65504, 1e-9], [1.5, 1.0, math.inf, -math.inf, 65504.0, 0.0]),
        ("FP32", [1, 0.1, 1e300, UINT64_MAX], [1.0, np.float32(0.1), math.inf, 2.0**64]),
        ("FP64", [1, 0.1, -3, UINT64_MAX, 1e300], [1.0, 0.1, -3.0, 2.0**64, 1e300]),
        ("BF16", [1.5, 1e9, 1, 1e300], [0x3FC0, 0x4E6E, 0x3F80, 0x7F80]),
        ("BYTES", ["", "ab", "é\U0001f600"], [b"", b"ab", "é\U0001f600".encode()]),
    ],
)
def test_values_are_stored_as_the_type_says(datatype, data, expected):
    array = read(datatype, data)

    assert array.dtype == datatypes.NUMPY_DTYPES[datatype]
    assert array.tolist() == [value.item() if isinstance(value, np.generic) else value for value in expected]


@pytest.mark.parametrize(
    ("datatype", "expected"), [("FP16", math.inf), ("FP32", math.inf), ("FP64", math.inf), ("BF16", 0x7F80)]
)
def test_floats_may_be_bare_tokens(datatype, expected):
    array = read(datatype, "[Infinity,-Inf,NaN,1]", [4])

    assert array[0] == expected
    assert array[2] == 0x7FC0 if datatype == "BF16" else math.isnan(array[2])


INTEGERS = ["UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64"]
FLOATS = ["FP16", "BF16", "FP32", "FP64"]
WRONG = [
    *[(t, e, f) for t in INTEGERS for e, f in [("1.0", "the number 1.0"), ("true", "the boolean true")]],
    *[
        (t, e, f)
        for t in INTEGERS
        for e, f in [('"1"', 'the string "1"'), ("null", "null"), ("{}", "an object")]
    ],
    *[
        (t, e, f)
        for t in FLOATS
        for e, f in [("true", "the boolean true"), ('"1"', 'the string "1"'), ("null", "null")]
    ],
    *[
        ("BOOL", e, f)
        for e, f in [("1", "the integer 1"), ("0.0", "the number 0.0"), ('"true"', 'the string "true"')]
    ],
    *[("BYTES", e, f) for e, f in [("1", "the integer 1"), ("null", "null"), ("false", "the boolean false")]],
    *[(t, "-1", "the integer -1") for t in INTEGERS if t[0] == "U"],
    *[(t, str(2**63), f"the integer {2**63}") for t in INTEGERS if t[0] == "I"],
    *[(t, str(2**64), "the number 1.8446744073709552e+19") for t in INTEGERS],
    ("INT32", "NaN", "the number NaN"),
]
GOOD = {"BOOL": "true", "BYTES": '"a"'}


@pytest.mark.parametrize(("datatype", "element", "found"), WRONG)
def test_a_wrong_element_is_named(datatype, element, found):
    good = GOOD.get(datatype, "1")
    with pytest.raises(InvalidArgument) as caught:
        read(datatype, f"[{good},{good},{element},{good}]", [4])

    message = caught.value.message
    assert message.startswith(f"Unable to parse 'data': input 'X' of type {datatype} expects ")
    assert message.endswith(f", found {found} at element 2")


def test_unsigned_types_refuse_a_negative_value_beside_a_huge_one():
    with pytest.raises(
        InvalidArgument, match="expects an unsigned integer, found the integer -5 at element 1"
    ):
        read("UINT64", [UINT64_MAX, -5])


@pytest.mark.parametrize("data", ["null", "5", '"12"', '{"0":1}', "true"])
def test_data_must_be_an_array(data):
    with pytest.raises(InvalidArgument, match="Unable to parse 'data': input 'X' expects an array, found "):
        read("INT32", data, [2])


@pytest.mark.parametrize(
    "data",
    [
        [1, 2, 3, 4, 5, 6],
        [[1, 2, 3], [4, 5, 6]],
        [[[1], [2]], [[3, 4, 5], [6]]],
        [1, [2, [3, [], 4]], [[5, 6]]],
    ],
)
@pytest.mark.parametrize("shape", [[6], [2, 3], [3, 1, 2]])
def test_any_nesting_is_flattened_in_order(data, shape):
    np.testing.assert_array_equal(read("INT32", data, shape), np.arange(1, 7).reshape(shape))


@pytest.mark.parametrize(
    ("data", "shape", "num_found"),
    [
        ([1, [2, 3]], [2], 3),
        ([], [1], 0),
        ([[], [[]]], [2], 0),
        ([1, 2, 3], [2, 2], 3),
        ([[1, 2], [3]], [], 3),
    ],
)
@pytest.mark.parametrize("datatype", ["INT32", "BYTES", "BF16"])
def test_the_number_of_elements_must_be_the_shapes(datatype, data, shape, num_found):
    with pytest.raises(InvalidArgument) as caught:
        read(datatype, data, shape)

    dims = ",".join(map(str, shape))
    assert caught.value.message == (
        "Unable to parse 'data': shape does not match true shape of 'data' field of input 'X': shape "
        f"[{dims}] has {math.prod(shape)} elements, 'data' has {num_found}"
    )


def nested(depth, inner="1"):
    return "[" * depth + inner + "]" * depth


@pytest.mark.parametrize(
    ("make", "count"),
    [
        (nested, 1),
        (lambda depth: f"[[],{nested(depth - 1)}]", 1),
        (lambda depth: f"[1,{nested(depth - 1)}]", 2),
    ],
)
def test_nesting_is_limited(make, count):
    assert read("INT32", make(100), [count]).tolist() == [1] * count
    with pytest.raises(InvalidArgument) as caught:
        read("INT32", make(101), [count])

    assert caught.value.message == (
        "Unable to parse 'data': input 'X': JSON nesting depth exceeds maximum allowed limit (100)"
    )


def test_a_ragged_list_may_be_long_and_deep():
    num_ones = 50_000
    array = read("INT8", f"[{'1,' * num_ones}{nested(90, '2')},3]", [num_ones + 2])

    assert array[-3:].tolist() == [1, 2, 3]


@pytest.mark.parametrize(
    ("datatype", "data"),
    [("FP32", [1] * 26), ("FP64", [1] * 13), ("BYTES", ["x" * 9] * 8), ("BYTES", [""] * 26)],
)
def test_the_decoded_size_is_limited(datatype, data):
    shape = (len(data),)
    decode_json_data("X", datatype, shape, data, Limits(max_input_size=104))
    with pytest.raises(InvalidArgument) as caught:
        decode_json_data("X", datatype, shape, data, Limits(max_input_size=103))

    assert caught.value.message == (
        "JSON input 'X' has a byte_size (104 bytes) that exceeds the maximum allowed value of 103 bytes. Use "
        "--http-max-input-size to increase the limit."
    )


def test_a_shape_larger_than_the_limit_is_refused_before_its_data_is_read():
    with pytest.raises(InvalidArgument, match=r"byte_size \(4398046511104 bytes\) that exceeds"):
        read("FP32", "[1]", [2**40])


@given(st.data())
def test_every_value_survives(data):
    datatype = data.draw(st.sampled_from(DATATYPES))
    dtype = datatypes.NUMPY_DTYPES[datatype]
    if datatype == "BYTES":
        element = st.text(max_size=6)
    elif datatype == "BOOL":
        element = st.booleans()
    elif dtype.kind == "f" or datatype == "BF16":
        element = st.integers(-256, 256).map(lambda value: value / 2)
    else:
        limits = np.iinfo(dtype)
        element = st.integers(int(limits.min), int(limits.max))
    elements = data.draw(st.lists(element, min_size=1, max_size=6))

    array = read(datatype, elements)

    if datatype == "BYTES":
        assert array.tolist() == [text.encode() for text in elements]
    elif datatype == "BF16":
        np.testing.assert_array_equal((array.astype(np.uint32) << 16).view(np.float32), elements)
    else:
        assert array.tolist() == elements
