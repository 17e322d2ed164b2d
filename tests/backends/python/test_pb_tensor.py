"""Tensor: what arrays become, and what models get back."""

import numpy as np
import pytest

from bireme.backends.python import pb_utils
from bireme.backends.python.pb_utils.tensor import wrap_tensor
from bireme.types import Tensor as ServerTensor

DTYPES = [
    (np.bool_, 1),
    (np.uint8, 2),
    (np.uint16, 3),
    (np.uint32, 4),
    (np.uint64, 5),
    (np.int8, 6),
    (np.int16, 7),
    (np.int32, 8),
    (np.int64, 9),
    (np.float16, 10),
    (np.float32, 11),
    (np.float64, 12),
]


@pytest.mark.parametrize(("dtype", "number"), DTYPES)
def test_a_tensor_shares_its_array(dtype, number):
    array = np.ones((2, 3), dtype)

    made = pb_utils.Tensor("X", array)

    assert made.name() == "X"
    assert made.shape() == [2, 3]
    assert made.triton_dtype() == number
    assert made.as_numpy() is array
    assert made.is_cpu()


@pytest.mark.parametrize("shape", [(), (0,), (2, 0, 3), (1,)])
def test_scalars_and_empty_arrays_are_legal(shape):
    made = pb_utils.Tensor("X", np.zeros(shape, np.float32))

    assert made.shape() == list(shape)
    assert made.as_numpy().shape == shape


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6).reshape(2, 3).T,
        np.arange(8)[::2],
        np.arange(4, dtype=">i4"),
        np.asfortranarray(np.eye(3)),
        np.broadcast_to(np.float32(3), (2, 2)),
    ],
    ids=["transposed", "strided", "big-endian", "fortran", "broadcast"],
)
def test_arrays_that_cannot_travel_as_they_are_are_copied(array):
    kept = pb_utils.Tensor("X", array).as_numpy()

    np.testing.assert_array_equal(kept, array)
    assert kept.flags.c_contiguous
    assert kept.dtype.isnative
    assert not np.shares_memory(kept, array)


def test_views_of_subclasses_share_memory():
    array = np.zeros((2, 2)).view(np.recarray)
    made = pb_utils.Tensor("X", array).as_numpy()

    assert type(made) is np.ndarray
    assert np.shares_memory(made, array)


def test_bytes_of_every_form():
    array = np.array([[b"a", "ä"], [1, None]], dtype=object)
    made = pb_utils.Tensor("X", array)

    assert made.triton_dtype() == 13
    assert made.shape() == [2, 2]
    assert made.as_numpy().dtype == np.object_
    assert made.as_numpy().tolist() == [[b"a", "ä".encode()], [b"1", b"None"]]


def test_fixed_width_bytes_are_strings():
    made = pb_utils.Tensor("X", np.array([b"ab", b"c"])[::-1])

    assert made.as_numpy().tolist() == [b"c", b"ab"]


@pytest.mark.parametrize("shape", [(), (0,), (3, 0)])
def test_bytes_without_a_plain_shape(shape):
    made = pb_utils.Tensor("X", np.full(shape, b"x", dtype=object))

    assert made.as_numpy().shape == shape


def test_bytes_are_taken_at_once():
    array = np.array([b"a"], dtype=object)
    made = pb_utils.Tensor("X", array)
    array[0] = b"b"

    assert made.as_numpy().tolist() == [b"a"]


def test_encoded_bytes_are_decoded():
    made = wrap_tensor(ServerTensor("X", "BYTES", (2,), encoded=b"\1\0\0\0a\0\0\0\0"))

    assert made.as_numpy().tolist() == [b"a", b""]


def test_bf16_is_no_numpy_array():
    made = wrap_tensor(ServerTensor("X", "BF16", (2,), np.zeros(2, np.uint16)))

    assert made.as_numpy() is None
    assert made.triton_dtype() == 14


@pytest.mark.parametrize(
    ("array", "hint"),
    [
        (np.array(["text"]), "astype"),
        (np.array([1j]), "complex128"),
        (np.array(["2024-01-01"], dtype="M8[D]"), "datetime64"),
        (np.zeros(1, np.dtype([("a", "f4")])), "has dtype"),
    ],
    ids=["text", "complex", "date", "record"],
)
def test_other_dtypes_are_refused(array, hint):
    with pytest.raises(
        pb_utils.TritonModelException, match=rf"NumPy dtype is not supported\. Tensor 'X'.*{hint}"
    ):
        pb_utils.Tensor("X", array)


def test_bfloat16_arrays_are_refused_with_a_way_out():
    ml_dtypes = pytest.importorskip("ml_dtypes")

    with pytest.raises(pb_utils.TritonModelException, match="from_dlpack"):
        pb_utils.Tensor("X", np.zeros(1, ml_dtypes.bfloat16))


@pytest.mark.parametrize("dtype", [np.float32, object])
def test_a_name_must_not_be_empty(dtype):
    with pytest.raises(pb_utils.TritonModelException, match=r"Tensor name cannot be an empty string\."):
        pb_utils.Tensor("", np.zeros(1, dtype))


@pytest.mark.parametrize("array", [[1.0], 1.0, np.float32(1), None, "text"])
def test_only_arrays_are_taken(array):
    with pytest.raises(TypeError, match=r"numpy\.ndarray"):
        pb_utils.Tensor("X", array)


def test_only_strings_are_names():
    with pytest.raises(TypeError, match="name must be a str"):
        pb_utils.Tensor(1, np.zeros(1))
    assert pb_utils.Tensor("é".encode(), np.zeros(1)).name() == "é"  # as an element of a BYTES tensor
    assert type(pb_utils.Tensor(np.str_("X"), np.zeros(1)).name()) is str


def test_a_tensor_shows_what_it_is():
    assert repr(pb_utils.Tensor("X", np.zeros((2, 1), np.float32))) == "Tensor('X', FP32[2, 1])"
