"""The tensors of warm-up samples, from every kind of source."""

import json

import ml_dtypes
import numpy as np
import pytest

from bireme.config.model_config import WarmupInput
from bireme.engine.warmup_data import make_warmup_tensor
from bireme.types import InvalidArgument, datatypes, encode_bytes

ALL_DATATYPES = list(datatypes.NUMPY_DTYPES)


def make(tmp_path, data_type: str, dims: tuple[int, ...], **source):
    leading = source.pop("leading", ())
    item = source.pop("item", 0)
    return make_warmup_tensor("X", WarmupInput(data_type, dims, **source), tmp_path, leading, item=item)


def from_file(
    tmp_path, name: str, content: bytes, data_type: str = "TYPE_FP32", dims: tuple[int, ...] = (2,)
):
    (tmp_path / "warmup").mkdir(exist_ok=True)
    (tmp_path / "warmup" / name).write_bytes(content)
    return make(tmp_path, data_type, dims, input_data_file=name).to_numpy()


@pytest.mark.parametrize("datatype", ALL_DATATYPES)
@pytest.mark.parametrize("source", ["zero_data", "random_data"])
def test_synthetic_data_has_the_samples_type_and_shape(tmp_path, datatype, source):
    tensor = make(tmp_path, datatypes.to_config_name(datatype), (2, 3), leading=(1,), **{source: True})

    assert (tensor.datatype, tensor.shape) == (datatype, (1, 2, 3))
    assert tensor.to_numpy().dtype == datatypes.NUMPY_DTYPES[datatype]
    assert tensor.to_numpy().shape == (1, 2, 3)
    if source == "zero_data" or datatype == "BYTES":
        assert not any(tensor.to_numpy().ravel().tolist())


@pytest.mark.parametrize("datatype", [name for name in ALL_DATATYPES if name != "BYTES"])
def test_random_data_varies_and_fits_any_model(tmp_path, datatype):
    """No NaN, no index beyond a table of two, and the same values at every load."""
    made = [
        make(tmp_path, datatypes.to_config_name(datatype), (100,), random_data=True, item=item).to_numpy()
        for item in (0, 0, 1)
    ]

    values = made[0].view(ml_dtypes.bfloat16).astype(np.float32) if datatype == "BF16" else made[0]
    assert 0 <= values.min() < values.max() <= 1
    assert made[0].tolist() == made[1].tolist() != made[2].tolist()


@pytest.mark.parametrize("datatype", [name for name in ALL_DATATYPES if name != "BYTES"])
def test_a_raw_file_holds_little_endian_elements_and_may_be_longer(tmp_path, datatype):
    values = np.array([1, 0, 1]).astype(datatypes.NUMPY_DTYPES[datatype])

    found = from_file(tmp_path, "raw", values.tobytes(), datatypes.to_config_name(datatype))

    assert found.tolist() == values[:2].tolist()


def test_a_raw_file_of_strings_is_length_prefixed_in_bytes(tmp_path):
    content = encode_bytes(["é".encode(), b"", b"more"])

    assert content[:6] == b"\2\0\0\0\xc3\xa9"
    assert from_file(tmp_path, "raw", content, "TYPE_STRING").tolist() == ["é".encode(), b""]


@pytest.mark.parametrize(
    ("content", "data_type", "expected"),
    [
        ("é\nb\nmore\n", "TYPE_STRING", ["é".encode(), b"b"]),
        ("é\r\nb", "TYPE_STRING", ["é".encode(), b"b"]),
        ("\x01\0\0\0a\x01\0\0\0b", "TYPE_STRING", [b"a", b"b"]),
    ],
    ids=["lines", "carriage returns", "raw all the same"],
)
def test_a_text_file_holds_a_string_per_line(tmp_path, content, data_type, expected):
    assert from_file(tmp_path, "words.txt", content.encode(), data_type).tolist() == expected


@pytest.mark.parametrize(
    ("value", "data_type", "expected"),
    [
        (["é", "b"], "TYPE_STRING", ["é".encode(), b"b"]),
        ([[1], [2.5], [3]], "TYPE_FP32", [1, 2.5]),
        ([1, 255], "TYPE_UINT8", [1, 255]),
        ([True, 0], "TYPE_BOOL", [True, False]),
        ([1.5, -2], "TYPE_BF16", [0x3FC0, 0xC000]),
        ([2**63, 2**64 - 1], "TYPE_UINT64", [2**63, 2**64 - 1]),
    ],
)
def test_a_json_file_holds_a_list(tmp_path, value, data_type, expected):
    assert from_file(tmp_path, "data.json", json.dumps(value).encode(), data_type).tolist() == expected


@pytest.mark.parametrize(
    ("array", "data_type", "expected"),
    [
        (np.array([[1, 2]], np.float64), "TYPE_FP32", [1, 2]),
        (np.array([1, 2], np.uint16), "TYPE_BF16", [1, 2]),
        (np.array([1.5, 2], np.float32), "TYPE_BF16", [0x3FC0, 0x4000]),
        (np.array(["é", "b"]), "TYPE_STRING", ["é".encode(), b"b"]),
    ],
)
def test_an_npy_file_holds_an_array(tmp_path, array, data_type, expected):
    np.save(tmp_path / "data.npy", array)

    assert (
        from_file(tmp_path, "data.npy", (tmp_path / "data.npy").read_bytes(), data_type).tolist() == expected
    )


@pytest.mark.parametrize(
    ("name", "content", "data_type", "expected"),
    [
        ("raw", b"\0" * 7, "TYPE_FP32", "warmup setting expects 2 FP32 elements, but the file only has 1"),
        ("raw", b"\1\0\0\0a", "TYPE_STRING", "expects 2 BYTES elements, but the file only has 1"),
        (
            "raw",
            b"hello world",
            "TYPE_STRING",
            "element 0 at byte 0 announces 1819043176 bytes, but only 7 follow",
        ),
        ("raw", b"\1\0\0\0a\1\0", "TYPE_STRING", "element 1 at byte 5 announces 1 bytes, but only 0 follow"),
        ("a.txt", b"one line", "TYPE_STRING", "expects 2 BYTES elements, but the file only has 1"),
        ("a.json", b"{", "TYPE_FP32", "is not JSON"),
        ("a.json", b'["a", "b"]', "TYPE_FP32", "expected numbers, found 'a'"),
        ("a.json", b"[1, 2]", "TYPE_STRING", "expected texts, found 1"),
        ("a.json", b"[1]", "TYPE_FP32", "expects 2 FP32 elements, but the file only has 1"),
        ("a.json", b"[1, 300]", "TYPE_UINT8", "value 300 is not a UINT8"),
        ("a.json", b"[1, 1.5]", "TYPE_INT32", "value 1.5 is not a INT32"),
        ("a.npy", b"junk", "TYPE_FP32", "is not a numpy array"),
    ],
)
def test_a_wrong_file_is_named_with_what_was_expected(tmp_path, name, content, data_type, expected):
    with pytest.raises(InvalidArgument) as caught:
        from_file(tmp_path, name, content, data_type)

    assert f"input 'X': data file '{tmp_path / 'warmup' / name}'" in caught.value.message
    assert expected in caught.value.message


@pytest.mark.parametrize(
    ("array", "data_type"), [(np.array([1, 2]), "TYPE_STRING"), (np.array(["a", "b"]), "TYPE_FP32")]
)
def test_an_npy_file_of_another_kind_is_named(tmp_path, array, data_type):
    np.save(tmp_path / "data.npy", array)

    with pytest.raises(InvalidArgument, match="expected"):
        from_file(tmp_path, "data.npy", (tmp_path / "data.npy").read_bytes(), data_type)


def test_a_missing_file_is_named_with_what_is_there(tmp_path):
    from_file(tmp_path, "other", b"\0" * 8)

    with pytest.raises(InvalidArgument, match=r"raw' cannot be read: No such file.*the folder holds 'other'"):
        make(tmp_path, "TYPE_FP32", (2,), input_data_file="raw")


def test_a_missing_folder_is_named(tmp_path):
    with pytest.raises(InvalidArgument, match=f"the folder holds nothing \\('{tmp_path}/warmup'\\)"):
        make(tmp_path, "TYPE_FP32", (2,), input_data_file="raw")


def test_a_file_outside_the_models_directory_is_refused(tmp_path):
    with pytest.raises(InvalidArgument, match=r"'\.\./\.\./secret' is outside the model's directory"):
        make(tmp_path, "TYPE_FP32", (2,), input_data_file="../../secret")


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        (
            WarmupInput("TYPE_FP32", (2, -1), zero_data=True),
            "expects all variable-size dimensions are specified for input 'X', found dims [2, -1]",
        ),
        (WarmupInput("TYPE_FP32", (2,)), "expects input 'X' to have input_data_type set: one of zero_data"),
        (WarmupInput("TYPE_INVALID", (2,), zero_data=True), "input 'X': data_type TYPE_INVALID is not a data type"),
    ],
)  # fmt: skip
def test_a_wrong_sample_is_named(tmp_path, spec, expected):
    with pytest.raises(InvalidArgument) as caught:
        make_warmup_tensor("X", spec, tmp_path, ())

    assert expected in caught.value.message
