"""Tensors: views where they can be views, and BYTES that say what is wrong with them."""

import numpy as np
import pytest
from hypothesis import given, strategies as st

from bireme.types import InvalidArgument, Tensor, datatypes, decode_bytes, encode_bytes

FIXED_TYPES = sorted(set(datatypes.NUMPY_DTYPES) - {"BYTES"})


@pytest.mark.parametrize("datatype", FIXED_TYPES)
def test_every_fixed_type_keeps_the_callers_memory(datatype: str) -> None:
    array = np.zeros((2, 3), datatypes.NUMPY_DTYPES[datatype])
    tensor = Tensor.from_numpy("x", array, datatype)

    assert tensor.shape == (2, 3)
    assert np.shares_memory(tensor.to_numpy(), array)
    assert memoryview(tensor.to_buffer()).nbytes == 6 * datatypes.ITEM_SIZES[datatype] == tensor.nbytes


@pytest.mark.parametrize("datatype", [t for t in FIXED_TYPES if t != "BF16"])
def test_data_type_is_found_from_the_arrays_dtype(datatype: str) -> None:
    assert Tensor.from_numpy("x", np.zeros(1, datatypes.NUMPY_DTYPES[datatype])).datatype == datatype


def test_big_endian_and_strided_arrays_become_wire_order() -> None:
    big = Tensor.from_numpy("x", np.arange(3, dtype=">i4"))
    strided = Tensor.from_numpy("y", np.arange(6, dtype=np.int32).reshape(2, 3).T)

    assert bytes(big.to_buffer()) == np.arange(3, dtype="<i4").tobytes()
    assert bytes(strided.to_buffer()) == np.arange(6, dtype="<i4").reshape(2, 3).T.tobytes()


@pytest.mark.parametrize("shape", [(), (0,), (2, 0, 3), (1, 1)])
def test_scalars_and_empty_shapes_have_a_wire_form(shape: tuple[int, ...]) -> None:
    tensor = Tensor.from_numpy("x", np.zeros(shape, np.float32))

    assert memoryview(tensor.to_buffer()).nbytes == 4 * tensor.num_elements


def test_dates_hold_no_tensor() -> None:
    with pytest.raises(InvalidArgument, match=r"tensor 'when'.*datetime64"):
        Tensor.from_numpy("when", np.zeros(1, "datetime64[s]"))


@given(st.lists(st.binary(max_size=20), max_size=20))
def test_bytes_round_trip(elements: list[bytes]) -> None:
    encoded = encode_bytes(elements)

    assert decode_bytes("x", (len(elements),), encoded).tolist() == elements


def test_text_elements_become_utf8() -> None:
    tensor = Tensor.from_numpy("x", [["é", "b"]])

    assert tensor.shape == (1, 2)
    assert bytes(tensor.to_buffer()) == b"\x02\0\0\0\xc3\xa9\x01\0\0\0b"


@pytest.mark.parametrize(
    ("encoded", "shape", "message"),
    [
        (b"\x01\0\0", (1,), "element 0 at offset 0 has 3 bytes of its 4-byte length"),
        (b"\x02\0\0\0a", (1,), "element 0 at offset 0 announces 2 bytes, but only 1 follow"),
        (b"\x01\0\0\0a", (2,), "unexpected number of string elements 1 for BYTES input 'x', expecting 2"),
        (b"\x01\0\0\0a" * 2, (1,), "unexpected number of string elements more than 1"),
        (b"ab\xff\xff", (1,), "announces 4294926945 bytes, but only 0 follow"),
    ],
)
def test_broken_framing_names_element_and_offset(
    encoded: bytes, shape: tuple[int, ...], message: str
) -> None:
    with pytest.raises(InvalidArgument, match=message):
        decode_bytes("x", shape, encoded)


def test_encoded_bytes_are_decoded_once() -> None:
    tensor = Tensor("x", "BYTES", (2,), encoded=encode_bytes([b"a", b"bc"]))

    assert tensor.is_encoded
    assert tensor.to_numpy() is tensor.to_numpy()
    assert tensor.to_numpy().tolist() == [b"a", b"bc"]


def test_reshaped_shares_the_data() -> None:
    array = np.arange(6, dtype=np.float32)

    assert np.shares_memory(Tensor.from_numpy("x", array).reshaped((2, 3)).to_numpy(), array)


def test_dlpack_hands_over_the_same_memory() -> None:
    array = np.arange(6, dtype=np.float32)
    tensor = Tensor.from_numpy("x", array)

    class Exporter:
        def __dlpack__(self, **_options: object) -> object:
            return tensor.to_dlpack()

        def __dlpack_device__(self) -> tuple[int, int]:
            return array.__dlpack_device__()

    assert np.shares_memory(np.from_dlpack(Exporter()), array)


def test_config_names_and_protocol_names_are_one_to_one() -> None:
    for name in datatypes.NUMPY_DTYPES:
        assert datatypes.from_config_name(datatypes.to_config_name(name)) == name
    with pytest.raises(KeyError):
        datatypes.from_config_name("TYPE_INVALID")
