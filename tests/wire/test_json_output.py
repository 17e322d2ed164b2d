"""Tensors out as JSON `data`."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given, strategies as st

from bireme.types import Tensor, datatypes, encode_bytes
from bireme.wire.http import json_output
from bireme.wire.http.json_output import encode_json_slices


def write(tensor):
    return b"".join(encode_json_slices(tensor))


def tensor_of(datatype, values, shape=None):
    if datatype == "BYTES":
        array = np.empty(len(values), np.object_)
        array[:] = values
    else:
        array = np.array(values, datatypes.NUMPY_DTYPES[datatype])
    array = array if shape is None else array.reshape(shape)
    return Tensor("Y", datatype, array.shape, array)


@pytest.mark.parametrize(
    ("datatype", "values", "expected"),
    [
        ("BOOL", [True, False], b"[true,false]"),
        ("UINT8", [0, 255], b"[0,255]"),
        ("UINT16", [65535], b"[65535]"),
        ("UINT32", [2**32 - 1], b"[4294967295]"),
        ("UINT64", [2**64 - 1], b"[18446744073709551615]"),
        ("INT8", [-128, 127], b"[-128,127]"),
        ("INT16", [-32768], b"[-32768]"),
        ("INT32", [-(2**31)], b"[-2147483648]"),
        ("INT64", [-(2**63)], b"[-9223372036854775808]"),
        ("FP16", [1.5, 65504], b"[1.5,65504.0]"),
        ("BF16", [0x3FC0, 0xC000], b"[1.5,-2.0]"),
        ("FP32", [0.1, -3], b"[0.1,-3.0]"),
        ("FP64", [0.1, -2.5], b"[0.1,-2.5]"),
        ("BYTES", [b"ab", b"", b'"\n\x00', "é".encode()], '["ab","","\\"\\n\\u0000","é"]'.encode()),
    ],
)
def test_elements_are_written_as_their_type_says(datatype, values, expected):
    assert write(tensor_of(datatype, values)) == expected


@pytest.mark.parametrize("datatype", ["FP16", "FP32", "FP64"])
def test_non_finite_numbers_are_bare_tokens(datatype):
    values = [math.nan, 1.0, math.inf, -math.inf, -math.nan, 2.0, math.inf]

    assert write(tensor_of(datatype, values)) == b"[NaN,1.0,Infinity,-Infinity,NaN,2.0,Infinity]"


def test_non_finite_bf16_are_bare_tokens():
    assert write(tensor_of("BF16", [0x7F80, 0x3F80, 0xFF80, 0x7FC0])) == b"[Infinity,1.0,-Infinity,NaN]"


def test_bytes_that_are_no_text_are_replaced():
    assert json.loads(write(tensor_of("BYTES", [b"a\xffb", b"\xed\xa0\x80", b"null"]))) == [
        "a\ufffdb",
        "\ufffd" * 3,
        "null",
    ]


def test_encoded_bytes_are_written_too():
    assert write(Tensor("Y", "BYTES", (2,), None, encode_bytes([b"a", b"b"]))) == b'["a","b"]'


@pytest.mark.parametrize("datatype", sorted(datatypes.NUMPY_DTYPES))
@pytest.mark.parametrize("shape", [(0,), (2, 0, 3)])
def test_nothing_is_an_empty_list(datatype, shape):
    tensor = Tensor("Y", datatype, shape, np.empty(shape, datatypes.NUMPY_DTYPES[datatype]))

    assert write(tensor) == b"[]"


def test_data_is_flat_and_row_major_whatever_the_memory():
    whole = np.arange(24, dtype=np.int32).reshape(2, 3, 4)
    for view in (whole, whole.T, whole[:, ::2, 1:], whole[::-1], np.asfortranarray(whole)):
        assert json.loads(write(Tensor("Y", "INT32", view.shape, view))) == view.flatten().tolist()


def test_a_scalar_is_a_list_of_one():
    assert write(Tensor("Y", "FP64", (), np.array(1.5))) == b"[1.5]"


def test_unaligned_memory_is_read_right():
    memory = b"x" + np.arange(5, dtype="<f8").tobytes()
    array = np.ndarray((5,), "<f8", memory, 1)

    assert not array.flags.aligned
    assert write(Tensor("Y", "FP64", (5,), array)) == b"[0.0,1.0,2.0,3.0,4.0]"


@pytest.mark.parametrize("num_elements", [65535, 65536, 65537, 200_000])
def test_a_large_tensor_comes_in_slices_of_bounded_size(num_elements):
    array = np.arange(num_elements, dtype=np.int32)
    pieces = list(encode_json_slices(Tensor("Y", "INT32", array.shape, array)))

    assert json.loads(b"".join(pieces)) == array.tolist()
    assert max(piece.count(b",") for piece in pieces) <= 65536
    assert len(pieces) == -(-num_elements // 65536) + 1


def test_slices_of_strings_are_bounded_by_their_bytes():
    values = [b"x" * (size % 5000) for size in range(0, 400_000, 317)] + [b"y" * 600_000, b"", b"z"]
    pieces = list(encode_json_slices(tensor_of("BYTES", values)))

    assert json.loads(b"".join(pieces)) == [value.decode() for value in values]
    assert sorted(map(len, pieces))[-2] < 300_000
    assert len(pieces) < 30


@given(st.lists(st.binary(max_size=9), max_size=40), st.integers(1, 20), st.integers(1, 9))
def test_slicing_strings_loses_nothing(values, max_bytes, max_elements):
    whole = write(tensor_of("BYTES", values))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_output, "MAX_SLICE_BYTES", max_bytes)
        patch.setattr(json_output, "MAX_SLICE_ELEMENTS", max_elements)

        assert write(tensor_of("BYTES", values)) == whole


@given(st.lists(st.floats(width=32), max_size=12))
def test_fp32_comes_back_bit_by_bit(values):
    array = np.array(values, np.float32)
    parsed = np.array(json.loads(write(tensor_of("FP32", values))), np.float32)

    np.testing.assert_array_equal(array, parsed)
