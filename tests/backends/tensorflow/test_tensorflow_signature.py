"""Signatures: what protobuf messages of TensorFlow's declare, and what the config adds. The messages are stand-ins."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from bireme.backends.signature import TensorSpec
from bireme.backends.tensorflow.signature import check_ranks, make_spec, read_signature, with_ranks
from bireme.config import ModelConfig
from bireme.config.model_config import BatchInput, ModelInput, ModelOutput, ModelTensorReshape
from bireme.types import InvalidArgument


def info(name="t:0", dtype=1, shape=(-1, 4), encoding="name"):
    dims = [SimpleNamespace(size=size) for size in shape or ()]
    return SimpleNamespace(
        name=name,
        dtype=dtype,
        tensor_shape=SimpleNamespace(unknown_rank=shape is None, dim=dims),
        WhichOneof=lambda _group: encoding,
    )


def definition(inputs, outputs, **more):
    return SimpleNamespace(inputs=inputs, outputs=outputs, **more)


def test_a_signature_is_taken_over_by_its_own_names():
    found = read_signature(
        definition(
            {"b": info("serving_default_b:0", 7, (-1,)), "a": info("serving_default_a:0")},
            {"y": info("StatefulPartitionedCall:1", 9, ())},
        )
    )

    assert {
        "a": TensorSpec("a", "FP32", (-1, 4), "float32"),
        "b": TensorSpec("b", "BYTES", (-1,), "string"),
    } == found.signature.inputs
    assert ["a", "b"] == list(found.tensors)
    assert {"y": TensorSpec("y", "INT64", (), "int64")} == found.signature.outputs
    assert "serving_default_b:0" == found.tensors["b"]
    assert {"y": "StatefulPartitionedCall:1"} == found.results
    assert not found.unranked_inputs | found.unranked_outputs


def test_inputs_with_a_default_are_optional():
    found = read_signature(
        definition({"x": info(), "gain": info("g:0", shape=())}, {"y": info()}, defaults={"gain": "a proto"})
    )

    assert (["x"], ["gain"]) == (list(found.signature.inputs), list(found.signature.initializers))
    assert {"gain": "a proto"} == found.defaults


@pytest.mark.parametrize(
    ("number", "native", "datatype"),
    [(14, "bfloat16", "BF16"), (19, "float16", "FP16"), (10, "bool", "BOOL"), (8, "complex64", None)],
)
def test_data_types(number, native, datatype):
    assert TensorSpec("x", datatype, (2,), native) == make_spec("x", number, (2,))


def test_a_type_that_is_newer_than_this_table_has_no_data_type():
    assert TensorSpec("x", None, (), "tensor of data type 99") == make_spec("x", 99, ())


@pytest.mark.parametrize(
    ("encoding", "native"), [("coo_sparse", "sparse tensor"), ("composite_tensor", "composite tensor")]
)
def test_what_is_several_tensors_has_no_data_type(encoding, native):
    found = read_signature(definition({"x": info(encoding=encoding)}, {"y": info()}))

    assert TensorSpec("x", None, (), native) == found.signature.inputs["x"]


def unranked():
    return read_signature(definition({"x": info(shape=None), "k": info()}, {"y": info(shape=None)}))


@pytest.mark.parametrize(
    ("max_batch_size", "tensor", "expected"),
    [
        (0, ModelInput(name="x", data_type="TYPE_FP32", dims=(2, -1)), (2, -1)),
        (4, ModelInput(name="x", data_type="TYPE_FP32", dims=(3,)), (-1, 3)),
        (
            4,
            ModelInput(name="x", data_type="TYPE_FP32", dims=(6,), reshape=ModelTensorReshape((2, 3))),
            (-1, 2, 3),
        ),
        (4, ModelInput(name="x", data_type="TYPE_FP32", dims=(3,), allow_ragged_batch=True), (-1,)),
    ],
)
def test_an_unknown_rank_is_taken_from_the_config(max_batch_size, tensor, expected):
    config = ModelConfig(
        name="m",
        max_batch_size=max_batch_size,
        input=(tensor,),
        output=(ModelOutput(name="y", data_type="TYPE_FP32", dims=(5,)),),
    )

    signature = with_ranks(unranked(), config)

    assert expected == signature.inputs["x"].shape
    assert ((-1, 5) if max_batch_size else (5,)) == signature.outputs["y"].shape
    assert (-1, 4) == signature.inputs["k"].shape


def test_a_batch_input_of_unknown_rank_has_that_of_its_kind():
    batch_input = BatchInput(kind="BATCH_ITEM_SHAPE", target_name=("x",), data_type="TYPE_FP32")

    signature = with_ranks(unranked(), ModelConfig(name="m", max_batch_size=2, batch_input=(batch_input,)))

    assert (-1, -1) == signature.inputs["x"].shape


def test_known_ranks_are_left_alone():
    found = read_signature(definition({"x": info()}, {"y": info()}))

    assert found.signature is with_ranks(found, ModelConfig(name="m"))


def test_what_nobody_knows_cannot_be_filled_in():
    with pytest.raises(InvalidArgument) as refused:
        check_ranks(unranked(), ModelConfig(name="m"))
    assert refused.value.message == (
        "model 'm': the model file does not say what shape 'x', 'y' has; list all inputs and outputs in config.pbtxt, with "
        "their dims"
    )


def test_what_the_config_lists_need_not_be_known():
    config = ModelConfig(
        name="m",
        input=(ModelInput(name="x", data_type="TYPE_FP32", dims=(1,)),),
        output=(ModelOutput(name="y", data_type="TYPE_FP32", dims=(1,)),),
    )

    check_ranks(unranked(), config)
