"""What models declare, and the shapes they are given, without OpenVINO."""

from dataclasses import replace

import pytest

from bireme.backends.interface import ModelContext
from bireme.backends.openvino.model_files import find_file, read_model
from bireme.backends.openvino.shapes import as_batchable, fix_batch, make_batchable, take_config_shapes
from bireme.backends.openvino.signature import fixed_shape_of, has_known_rank, read_signature, shape_of
from bireme.config import ModelConfig
from bireme.config.model_config import BatchInput, ModelInput, ModelOutput, ModelTensorReshape
from bireme.types import InvalidArgument, NotFound
from openvino_fakes import FakeModel, FakeNode, FakePort, output_port

CONFIG = ModelConfig(name="m")


def model_of(shape=(1, 8), infer_shapes=None, layout="[...]", output_shape=None):
    return FakeModel(
        [FakePort({"x"}, shape, node=FakeNode("x", layout))],
        [output_port({"y"}, output_shape or shape, layout=layout)],
        infer_shapes,
    )


def refuse(_shapes):
    raise RuntimeError("Exception from src/a.cpp:1:\nIncompatible dimension")


def test_tensors_are_described_in_the_order_of_the_model():
    model = FakeModel(
        [FakePort({"b"}, (-1, 3), "i64"), FakePort({"a"}, None, "u4")], [output_port({"y"}, (), "op")]
    )

    signature = read_signature(model, CONFIG)

    assert ["b", "a"] == list(signature.inputs)
    assert ("INT64", (-1, 3), "i64") == (
        signature.inputs["b"].datatype,
        signature.inputs["b"].shape,
        signature.inputs["b"].native_type,
    )
    assert (None, (), "u4") == (
        signature.inputs["a"].datatype,
        signature.inputs["a"].shape,
        signature.inputs["a"].native_type,
    )
    assert not has_known_rank(model.inputs[1])
    assert () == shape_of(model.outputs[0])
    assert () == fixed_shape_of(model.outputs[0])
    assert fixed_shape_of(model.inputs[0]) is None


@pytest.mark.parametrize(
    ("names", "operation", "wanted", "chosen"),
    [
        ({"y"}, "op", "", "y"),
        ({"y:0", "y"}, "op", "", "y"),
        ({"y:0", "y"}, "op", "y:0", "y:0"),
        (set(), "op", "", "op"),
        ({"y"}, "op", "op", "op"),
        ({"y", "op"}, "op", "y", "y"),
    ],
)
def test_a_tensor_goes_by_the_configs_name_or_the_shortest(names, operation, wanted, chosen):
    model = FakeModel([], [output_port(names, (1,), operation)])

    config = replace(CONFIG, output=(ModelOutput(wanted, "TYPE_FP32"),))

    assert [chosen] == list(read_signature(model, config).outputs)


def test_the_same_names_are_given_once():
    model = FakeModel([], [output_port({"y"}, (1,)), output_port({"y"}, (1,)), output_port({"y"}, (1,))])

    assert ["y", "op", "op:2"] == list(read_signature(model, CONFIG).outputs)


def test_batch_inputs_name_inputs_too():
    model = FakeModel([FakePort({"a", "long"}, (-1,))], [])
    config = replace(CONFIG, batch_input=(BatchInput(target_name=("long",)),))

    assert ["long"] == list(read_signature(model, config).inputs)


@pytest.mark.parametrize(
    ("shape", "max_batch_size", "layout", "becomes"),
    [
        ((-1, 8), 4, "[...]", (-1, 8)),
        ((1, 8), 0, "[...]", (1, 8)),
        ((1, 8), 4, "[...]", (-1, 8)),
        ((16, 8), 4, "[...]", (-1, 8)),
        ((1, 8), 0, "[N,C]", (-1, 8)),
        ((1, 8), 0, "[C,N]", (1, 8)),
    ],
)
def test_the_first_dimension_becomes_dynamic_where_batches_are_asked_for(
    shape, max_batch_size, layout, becomes
):
    model = model_of(shape, layout=layout)

    assert "" == make_batchable(model, replace(CONFIG, max_batch_size=max_batch_size))
    assert becomes == tuple(model.inputs[0].shape)
    assert becomes == tuple(model.outputs[0].shape)


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (model_of((1, 8), refuse), "Incompatible dimension"),
        (model_of((1, 8), lambda _: [(2, 4)], output_shape=(2, 4)), "with a dynamic one in its inputs, it has an output of shape [2, 4]"),
        (model_of(()), "an input has no first dimension"),
    ],
    ids=["refused", "does not follow", "scalar"],
)  # fmt: skip
def test_a_model_that_cannot_batch_is_left_as_it_is(model, reason):
    before = model.inputs[0].shape

    assert reason == make_batchable(model, replace(CONFIG, max_batch_size=4))
    assert before == tuple(model.inputs[0].shape)


def test_the_first_dimension_may_be_fixed():
    model = model_of((-1, 8))

    fix_batch(model, replace(CONFIG, max_batch_size=4))

    assert (4, 8) == tuple(model.inputs[0].shape)
    batchable = as_batchable(read_signature(model, CONFIG))
    assert (-1, 8) == batchable.inputs["x"].shape
    assert (-1, 8) == batchable.outputs["y"].shape


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (model_of((1, 8), refuse), "Incompatible dimension"),
        (model_of((1, 8), lambda _: [(2, 4)]), "it has an output of shape [2, 4] then"),
        (model_of(()), "an input has no first dimension"),
    ],
    ids=["refused", "does not follow", "scalar"],
)
def test_a_first_dimension_that_cannot_be_fixed_is_told(model, reason):
    with pytest.raises(InvalidArgument) as caught:
        fix_batch(model, replace(CONFIG, max_batch_size=4))

    assert (
        "model 'm': parameter SKIP_OV_DYNAMIC_BATCHSIZE: the model file cannot have a first dimension of 4, the "
        f"max_batch_size: {reason}"
    ) == caught.value.message


@pytest.mark.parametrize(("max_batch_size", "expected"), [(0, (5, -1)), (4, (-1, 5, -1))])
def test_a_model_gets_the_dims_of_the_config(max_batch_size, expected):
    model = model_of((1, 8))
    tensors = (ModelInput("x", "TYPE_FP32", dims=(5, -1)), ModelInput("unknown", "TYPE_FP32", dims=(1,)))

    take_config_shapes(model, replace(CONFIG, input=tensors, max_batch_size=max_batch_size))

    assert expected == tuple(model.inputs[0].shape)


def test_a_reshape_of_the_config_counts_and_faults_are_told():
    reshaped = ModelInput("x", "TYPE_FP32", dims=(5,), reshape=ModelTensorReshape((5, 1)))

    with pytest.raises(InvalidArgument) as caught:
        take_config_shapes(model_of((1, 8), refuse), replace(CONFIG, input=(reshaped,)))

    assert (
        "model 'm': parameter RESHAPE_IO_LAYERS: the model file cannot have inputs 'x' [5, 1]: Incompatible dimension"
        == caught.value.message
    )


def context(folder, filename=""):
    return ModelContext("m", 1, folder, folder / "1", replace(CONFIG, default_model_filename=filename))


@pytest.mark.parametrize(
    ("path", "filename", "found"),
    [
        ("model.xml", "", "model.xml"),
        ("model.xml/model.xml", "model.xml", "model.xml/model.xml"),
        ("model.onnx", "model.xml", "model.onnx"),
        ("model.tflite", "", "model.tflite"),
        ("net.onnx", "net.onnx", "net.onnx"),
        ("model.saved_model/saved_model.pb", "model.saved_model", "model.saved_model"),
        ("model.savedmodel/saved_model.pb", "", "model.savedmodel"),
        ("model.savedmodel/saved_model.pb", "model.xml", "model.savedmodel"),
        ("net/saved_model.pb", "net", "net"),
    ],
)
def test_model_files_are_found(tmp_path, path, filename, found):
    file = tmp_path / "1" / path
    file.parent.mkdir(parents=True)
    file.touch()

    assert tmp_path / "1" / found == find_file(context(tmp_path, filename))


@pytest.mark.parametrize("filename", ["", "model.xml", "net.onnx"])
def test_a_model_file_that_is_not_there_is_named(tmp_path, filename):
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "other.txt").touch()

    with pytest.raises(
        NotFound, match=f"unable to find '.*{filename or 'model.xml'}' for model 'm'; .* holds 'other.txt'"
    ):
        find_file(context(tmp_path, filename))


class Reader:
    """A core that reads nothing."""

    def __init__(self, reason):
        self.reason = reason

    def read_model(self, path):
        raise RuntimeError(f"Exception from src/core.cpp:1:\n{self.reason} {path.name}")


@pytest.mark.parametrize(
    ("content", "weights", "reason"),
    [
        (b"", None, "the file is empty"),
        (b"version https://git-lfs.github.com/spec/v1", None, "the file is a Git LFS pointer, not the model itself; fetch it with: git lfs pull"),
        (b"\0binary", None, r"the file is no XML: it begins with b'\x00binary'"),
        (b"<net/>", None, "model.bin, the file with its weights, is missing"),
        (b"\xef\xbb\xbf\n<net/>", b"", "model.bin, the file with its weights: the file is empty"),
        (b"<net/>", b"bytes", "model.bin, the file with its weights, has 5 bytes: weights of model.xml"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_an_ir_is_told(tmp_path, content, weights, reason):
    path = tmp_path / "model.xml"
    path.write_bytes(content)
    if weights is not None:
        path.with_suffix(".bin").write_bytes(weights)

    with pytest.raises(InvalidArgument) as caught:
        read_model(Reader("weights of"), "m", path)

    assert f"model 'm': OpenVINO cannot load '{path}': {reason}" == caught.value.message


def test_what_openvino_says_of_other_files_is_told(tmp_path):
    path = tmp_path / "model.onnx"
    path.write_bytes(b"x")

    with pytest.raises(InvalidArgument, match=r"Bad weights in model\.onnx"):
        read_model(Reader("Bad weights in"), "m", path)
