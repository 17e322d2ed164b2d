"""Data types by number and name, constants, and the wire form of BYTES."""

import struct

import numpy as np
import pytest
from tritonclient.utils import deserialize_bytes_tensor, serialize_byte_tensor

from bireme.backends.python import pb_utils

NUMBERS = {
    1: np.bool_,
    2: np.uint8,
    3: np.uint16,
    4: np.uint32,
    5: np.uint64,
    6: np.int8,
    7: np.int16,
    8: np.int32,
    9: np.int64,
    10: np.float16,
    11: np.float32,
    12: np.float64,
    13: np.object_,
}


@pytest.mark.parametrize(("number", "kind"), NUMBERS.items())
def test_numbers_of_data_types(number, kind):
    assert pb_utils.triton_to_numpy_type(number) is kind
    assert pb_utils.numpy_to_triton_type(kind) == number
    assert pb_utils.numpy_to_triton_type(np.dtype(kind)) == number


@pytest.mark.parametrize("kind", [np.complex64, np.str_, ">f4", "no type at all"])
def test_numpy_types_without_a_number(kind):
    assert pb_utils.numpy_to_triton_type(kind) is None


def test_bytes_have_a_number():
    assert pb_utils.numpy_to_triton_type(np.bytes_) == 13
    assert pb_utils.numpy_to_triton_type(np.array([b"abc"]).dtype) == 13


@pytest.mark.parametrize("number", [0, 14, 15])
def test_numbers_without_a_numpy_type(number):
    assert pb_utils.triton_to_numpy_type(number) is None


def test_config_names():
    assert pb_utils.triton_string_to_numpy("TYPE_FP32") is np.float32
    assert pb_utils.triton_string_to_numpy("TYPE_BOOL") is bool
    assert pb_utils.triton_string_to_numpy("TYPE_STRING") is np.object_
    assert len(pb_utils.TRITON_STRING_TO_NUMPY) == 13
    with pytest.raises(KeyError):
        pb_utils.triton_string_to_numpy("TYPE_BF16")


def test_constants():
    assert (
        pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_START,
        pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_END,
    ) == (1, 2)
    assert pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL == 1
    assert (
        pb_utils.TRITONSERVER_REQUEST_RELEASE_ALL,
        pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE,
    ) == (1, 2)
    assert pb_utils.TRITONSERVER_MEMORY_CPU != pb_utils.TRITONSERVER_MEMORY_GPU


ELEMENTS = [b"", b"a", "ü", b"\0\0", 12, b"x" * 300]


def test_bytes_are_serialised_as_clients_do():
    array = np.array(ELEMENTS, dtype=object).reshape(2, 3)
    wire = pb_utils.serialize_byte_tensor(array)

    assert wire == serialize_byte_tensor(array).item()
    assert pb_utils.deserialize_bytes_tensor(wire).tolist() == deserialize_bytes_tensor(wire).tolist()
    assert pb_utils.deserialize_bytes_tensor(wire).tolist()[2:4] == ["ü".encode(), b"\0\0"]


def test_fixed_width_bytes_are_serialised():
    assert pb_utils.serialize_byte_tensor(np.array([b"ab", b"c"])) == b"\2\0\0\0ab\1\0\0\0c"


def test_what_is_not_serialised():
    assert pb_utils.serialize_byte_tensor(np.zeros(0, object)) == ()
    assert pb_utils.serialize_byte_tensor(np.zeros(3)) is None


def test_nothing_is_deserialised_to_nothing():
    array = pb_utils.deserialize_bytes_tensor(b"")

    assert array.shape == (0,)
    assert array.dtype == np.object_


@pytest.mark.parametrize("wire", [b"\1\0\0", b"\2\0\0\0a"])
def test_broken_framing_is_an_error(wire):
    with pytest.raises(struct.error):
        pb_utils.deserialize_bytes_tensor(wire)
