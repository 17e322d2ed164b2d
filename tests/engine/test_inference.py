"""make_tensors: plain values become tensors of the model's data types, or an error that says why not."""

import numpy as np
import pytest
from hypothesis import given, strategies as st

from bireme.config.model_config import ModelInput
from bireme.engine.inference import InferResult, make_tensors, result_of
from bireme.engine.validation import TensorSpec
from bireme.types import InferenceResponse, InvalidArgument, NotFound, Tensor, datatypes


def convert(value, datatype, dims=(-1,), max_batch_size=0):
    spec = TensorSpec(ModelInput("X", datatypes.to_config_name(datatype), dims=dims), max_batch_size)
    return make_tensors("m", {"X": spec}, {"X": value})["X"]


@pytest.mark.parametrize(
    ("value", "datatype", "expected"),
    [
        ([1, 2], "FP32", [1.0, 2.0]),
        ([1.5, 2], "FP16", [1.5, 2.0]),
        ([[1], [2]], "INT8", [[1], [2]]),
        ((True, False), "BOOL", [True, False]),
        ([True, 2], "INT32", [1, 2]),
        ([255], "UINT8", [255]),
        ([2**64 - 1], "UINT64", [2**64 - 1]),
        ([], "INT32", []),
        ([], "BOOL", []),
        (3, "FP32", [3.0]),
        (True, "BOOL", [True]),
        ("Zürich", "BYTES", ["Zürich".encode()]),
        (b"a\0", "BYTES", [b"a\0"]),
        (["a", b"\xff\0"], "BYTES", [b"a", b"\xff\0"]),
        (np.float32(2), "FP32", [2.0]),
        (np.array(2, np.int8), "INT64", [2]),
        (np.array([1, 2], np.uint8), "INT32", [1, 2]),
        (np.array([1.5], ">f4"), "FP32", [1.5]),
        (np.array([True]), "UINT8", [1]),
        (np.array(["a", "bc"]), "BYTES", [b"a", b"bc"]),
        ([np.array([1, 2]), np.array([3, 4])], "FP32", [[1, 2], [3, 4]]),
    ],
)
def test_values_take_the_models_data_type(value, datatype, expected):
    tensor = convert(value, datatype)
    assert tensor.name == "X"
    assert tensor.datatype == datatype
    assert tensor.to_numpy().dtype == datatypes.NUMPY_DTYPES[datatype]
    assert tensor.to_numpy().tolist() == expected
    assert tensor.shape == np.shape(expected)


@pytest.mark.parametrize(
    ("value", "datatype", "message"),
    [
        (np.array([1.0]), "FP32", "dtype float64 does not convert to FP32 without loss; .*astype.np.float32"),
        (np.array([1.0]), "INT32", "dtype float64 does not convert to INT32 without loss"),
        (np.array([1]), "INT32", "dtype int64 does not convert to INT32 without loss"),
        (np.array([1]), "BOOL", "dtype int64 does not convert to BOOL without loss"),
        (
            np.array([1]),
            "BYTES",
            "dtype int64 does not convert to BYTES without loss; it expects str or bytes",
        ),
        (np.array(["a"]), "FP32", "dtype <U1 does not convert to FP32 without loss; it expects numbers"),
        (np.array([1.0], np.float32), "BF16", "ml_dtypes.bfloat16 array, or the raw bits as uint16"),
        (np.array([1j]), "FP64", "dtype complex128 does not convert to FP64"),
        ([1.5], "INT32", "float64 values cannot become INT32"),
        ([256], "UINT8", r"values from 256 to 256 do not fit into UINT8 \(0 to 255\)"),
        ([-1, 5], "UINT64", "values from -1 to 5 do not fit into UINT64"),
        ([2**70], "INT64", "mixed values cannot become INT64"),
        ([1], "BOOL", "int64 values cannot become BOOL"),
        (["a"], "FP32", "text cannot become FP32"),
        ([None], "FP32", "mixed values cannot become FP32"),
        ([[1], [2, 3]], "FP32", "the values do not form a tensor"),
        ([1], "BYTES", "BYTES takes str or bytes, found int"),
        ([["a"], ["b", "c"]], "BYTES", "BYTES takes str or bytes, found rows of different lengths"),
    ],
)
def test_what_does_not_fit_is_refused_with_input_and_model(value, datatype, message):
    with pytest.raises(InvalidArgument, match=message) as caught:
        convert(value, datatype)
    assert caught.value.message.startswith("input 'X' of model 'm': ")


@pytest.mark.parametrize(
    ("value", "bits"),
    [(1.5, [0x3FC0]), ([1.5, -2], [0x3FC0, 0xC000]), (np.array([0x3FC0], np.uint16), [0x3FC0])],
)
def test_bf16_takes_floats_from_lists_and_bits_from_arrays(value, bits):
    assert convert(value, "BF16").to_numpy().tolist() == bits


def test_a_scalar_gets_the_models_rank():
    assert convert(1.0, "FP32", dims=(-1, -1), max_batch_size=8).shape == (1, 1, 1)
    assert convert("a", "BYTES", dims=(1,), max_batch_size=8).shape == (1, 1)


def test_an_array_of_the_right_type_is_not_copied():
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    assert convert(array, "FP32").to_numpy() is array


def test_tensors_are_passed_on_under_the_inputs_name():
    same, other = Tensor.from_numpy("X", np.ones(1)), Tensor.from_numpy("Z", np.ones(1))
    assert convert(same, "FP32") is same
    renamed = convert(other, "FP32")
    assert (renamed.name, renamed.datatype) == ("X", "FP64")


def test_unknown_inputs_are_left_for_the_model_to_refuse():
    assert make_tensors("m", {}, {"Z": [1.0]})["Z"].datatype == "FP64"


@given(
    st.lists(st.integers(-(2**63), 2**64 - 1), max_size=5),
    st.sampled_from(["INT8", "UINT16", "INT64", "UINT64"]),
)
def test_integers_arrive_as_they_were_or_not_at_all(values, datatype):
    try:
        tensor = convert(values, datatype)
    except InvalidArgument:
        info = np.iinfo(datatypes.NUMPY_DTYPES[datatype])
        assert any(not info.min <= value <= info.max for value in values) or max(values) >= 2**63
        return
    assert tensor.to_numpy().tolist() == values


def test_inputs_that_are_no_mapping_are_refused():
    with pytest.raises(
        InvalidArgument, match=r"model 'm': expected a mapping from name to values, with X; got list"
    ):
        make_tensors("m", {"X": TensorSpec(ModelInput("X", "TYPE_FP32", dims=(1,)), 0)}, [1])


def test_a_result_is_a_mapping_of_arrays():
    outputs = [
        Tensor.from_numpy("Y", np.ones(2, np.float32)),
        Tensor.from_numpy("Z", np.array([b"a"], object)),
    ]
    result = result_of(InferenceResponse("m", 3, "id", outputs, parameters={"p": 1}))
    assert isinstance(result, InferResult)
    assert list(result) == ["Y", "Z"]
    assert len(result) == 2
    assert result["Y"].tolist() == [1, 1]
    assert result["Z"].tolist() == [b"a"]
    assert result.tensor("Z").datatype == "BYTES"
    assert (result.model_name, result.model_version, result.id, result.parameters) == ("m", 3, "id", {"p": 1})
    assert repr(result) == "InferResult('m' v3, [Tensor('Y', FP32[2]), Tensor('Z', BYTES[1])])"
    assert InferResult(InferenceResponse("m", 1)).parameters == {}
    assert result.get("y") is None
    with pytest.raises(KeyError, match=r"no output 'y': the result has 'Y', 'Z'"):
        result["y"]


def test_an_error_response_is_raised():
    with pytest.raises(NotFound, match="gone"):
        result_of(InferenceResponse("m", 1, error=NotFound("gone")))
