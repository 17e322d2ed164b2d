"""What a user writes for inputs becomes tensors that fit the model."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from PIL import Image

from bireme.cli.inputs import GivenInputs, InputSpec, ModelSpec, fit
from bireme.types import InvalidArgument, Tensor


def make_spec(*inputs: InputSpec, max_batch_size: int = 0) -> ModelSpec:
    return ModelSpec("m", max_batch_size, {spec.name: spec for spec in inputs}, ("Y",))


def take(spec: ModelSpec, *words: str, scaling: str = "auto") -> list[Tensor]:
    given = GivenInputs(spec, scaling)
    for word in words:
        given.add(word)
    return given.tensors()


VECTOR = make_spec(InputSpec("X", "FP32", (3,)))
BATCHED = make_spec(InputSpec("X", "FP32", (3,)), max_batch_size=8)
TEXT = make_spec(InputSpec("T", "BYTES", (-1,)), max_batch_size=8)


def test_a_spec_is_read_from_a_config():
    config = {
        "name": "m",
        "max_batch_size": 4,
        "input": [{"name": "X", "data_type": "TYPE_STRING", "dims": [1, -1], "format": "FORMAT_NONE"}],
        "output": [{"name": "Y"}, {"name": "Z"}],
    }

    spec = ModelSpec.from_config(config)

    assert ("m", 4, ("Y", "Z")) == (spec.name, spec.max_batch_size, spec.outputs)
    assert InputSpec("X", "BYTES", (1, -1)) == spec.inputs["X"]


@pytest.mark.parametrize(
    ("datatype", "text", "expected"),
    [
        ("FP32", "[1, 2.5, -3e2]", [1, 2.5, -300]),
        ("FP16", "[1, 2, 3]", [1, 2, 3]),
        ("INT64", "[1, 2, 9007199254740993]", [1, 2, 9007199254740993]),
        ("UINT8", "[0, 128, 255]", [0, 128, 255]),
        ("BOOL", "[true, false, true]", [True, False, True]),
        ("BF16", "[1.0, 2.0, -1.5]", [0x3F80, 0x4000, 0xBFC0]),
    ],
)
def test_json_values_take_the_input_s_data_type(datatype, text, expected):
    (tensor,) = take(make_spec(InputSpec("X", datatype, (3,))), f"X={text}")

    assert (datatype, (3,)) == (tensor.datatype, tensor.shape)
    assert expected == tensor.to_numpy().tolist()


def test_values_may_be_longer_than_any_path():
    spec = make_spec(InputSpec("X", "FP32", (-1,)))

    (tensor,) = take(spec, f"X=[{', '.join(['0.5'] * 9000)}]")

    assert (9000,) == tensor.shape


def test_a_batch_dimension_is_added_where_the_model_batches():
    (tensor,) = take(BATCHED, "X=[1, 2, 3]")

    assert (1, 3) == tensor.shape


def test_several_values_of_one_input_become_a_batch():
    (tensor,) = take(BATCHED, "X=[1, 2, 3]", "X=[[4, 5, 6], [7, 8, 9]]")

    assert [[1, 2, 3], [4, 5, 6], [7, 8, 9]] == tensor.to_numpy().tolist()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("hello", [[b"hello"]]),
        ("it's = fine", [[b"it's = fine"]]),
        ('["a", "b"]', [[b"a", b"b"]]),
        ('"5"', [[b"5"]]),
        ("5", [[b"5"]]),
        ("{}", [[b"{}"]]),
        ("ä", [["ä".encode()]]),
    ],
)
def test_text_goes_to_a_string_input_as_it_is(text, expected):
    (tensor,) = take(TEXT, f"T={text}")

    assert expected == tensor.to_numpy().tolist()


def test_an_npy_file_goes_to_the_only_input(tmp_path):
    np.save(tmp_path / "x.npy", np.arange(3, dtype=np.float64))

    (tensor,) = take(VECTOR, str(tmp_path / "x.npy"))

    assert [0, 1, 2] == tensor.to_numpy().tolist()
    assert np.float32 == tensor.to_numpy().dtype


def test_any_file_goes_to_a_string_input_as_bytes(tmp_path):
    (tmp_path / "data.bin").write_bytes(b"\x00\xff")

    (tensor,) = take(TEXT, f"T=@{tmp_path / 'data.bin'}")

    assert [[b"\x00\xff"]] == tensor.to_numpy().tolist()


@pytest.mark.parametrize(
    "content",
    [
        "[1, 2, 3]",
        '{"X": [1, 2, 3]}',
        '{"inputs": [{"name": "X", "datatype": "FP32", "shape": [3], "data": [1, 2, 3]}]}',
    ],
)
def test_a_json_file_holds_values_inputs_or_a_whole_request(tmp_path, content):
    (tmp_path / "x.json").write_text(content)

    (tensor,) = take(VECTOR, str(tmp_path / "x.json"))

    assert [1, 2, 3] == tensor.to_numpy().tolist()


@pytest.mark.parametrize(
    ("dims", "datatype", "scaling", "shape", "top_left"),
    [
        ((3, 4, 6), "UINT8", "auto", (3, 4, 6), [255, 0, 51]),
        ((4, 6, 3), "UINT8", "auto", (4, 6, 3), [255, 0, 51]),
        ((3, -1, -1), "FP32", "none", (3, 8, 12), [255, 0, 51]),
        ((3, 4, 6), "FP32", "auto", (3, 4, 6), [1, 0, 0.2]),
        ((3, 4, 6), "FP32", "signed", (3, 4, 6), [1, -1, -0.6]),
        ((3, 4, 6), "FP32", "imagenet", (3, 4, 6), [2.2489, -2.0357, -0.9156]),
        ((1, 4, 6), "UINT8", "auto", (1, 4, 6), [82]),
        ((4, 6), "UINT8", "auto", (4, 6), [82]),
    ],
)
def test_a_picture_takes_the_input_s_size_order_and_range(tmp_path, dims, datatype, scaling, shape, top_left):
    Image.new("RGB", (12, 8), (255, 0, 51)).save(tmp_path / "p.png")

    (tensor,) = take(make_spec(InputSpec("X", datatype, dims)), str(tmp_path / "p.png"), scaling=scaling)

    assert shape == tensor.shape
    array = tensor.to_numpy()
    pixel = array[:, 0, 0] if len(dims) == 3 and dims[0] in {1, 3} else array[0, 0]
    assert np.ravel(pixel).tolist() == pytest.approx(top_left, abs=1e-3)


def test_a_size_is_taken_where_the_input_leaves_it_open(tmp_path):
    Image.new("L", (12, 8)).save(tmp_path / "p.png")
    given = GivenInputs(make_spec(InputSpec("X", "FP32", (3, -1, 20))), size=(32, 64))

    given.add(str(tmp_path / "p.png"))

    assert (3, 64, 20) == given.tensors()[0].shape


@pytest.mark.parametrize(
    ("shape", "dims", "batched", "expected"),
    [
        ((3,), (3,), False, (3,)),
        ((3,), (3,), True, (1, 3)),
        ((2, 3), (3,), True, (2, 3)),
        ((6,), (2, 3), False, (2, 3)),
        ((6,), (2, 3), True, (1, 2, 3)),
        ((), (1,), False, (1,)),
        ((), (1,), True, (1, 1)),
        ((), (-1,), True, (1, 1)),
        ((), (), True, (1,)),
        ((5,), (-1,), True, (1, 5)),
        ((6,), (3,), True, (2, 3)),
        ((2,), (1,), True, (2, 1)),
        ((0,), (3,), True, (0,)),
        ((4,), (3,), True, (4,)),  # left as it is: the server's refusal explains it
        ((2, 2, 2), (3,), False, (2, 2, 2)),
    ],
)
def test_an_array_is_fitted_to_the_dims(shape, dims, batched, expected):
    assert expected == fit(np.zeros(shape), dims, batched=batched).shape


@pytest.mark.parametrize(
    ("spec", "word", "complaint"),
    [
        (VECTOR, "Z=[1]", "model 'm' has no input 'Z'; it has: X FP32[3]"),
        (VECTOR, "nothing.npy", "'nothing.npy' is neither a file nor NAME=VALUE; inputs of 'm': X FP32[3]"),
        (VECTOR, "X=abc", "input 'X': expected FP32 values as JSON or a file, found 'abc'"),
        (VECTOR, 'X=["a"]', "input 'X': expected FP32 values, found ['a']"),
        (VECTOR, "X=[[1], [2, 3]]", "input 'X': expected FP32 values"),
        (make_spec(InputSpec("X", "INT8", (1,))), "X=1.5", "expected INT8 values, found 1.5"),
        (make_spec(InputSpec("X", "INT8", (1,))), "X=300", "expected INT8 values, found 300"),
    ],
)
def test_a_wrong_word_is_explained(spec, word, complaint):
    with pytest.raises(InvalidArgument) as caught:
        take(spec, word)

    assert complaint in caught.value.message


@pytest.mark.parametrize(
    ("name", "content", "complaint"),
    [
        ("x.json", b"[1,\n2", "x.json:2:2: not JSON"),
        ("x.json", b'{"Q": [1]}', "no input 'Q'"),
        ("x.json", b'{"inputs": [{"name": "X"}]}', "each of 'inputs' needs 'name', 'shape' and 'data'"),
        ("x.json", b'{"inputs": [{"name": "X", "shape": [2], "data": [1]}]}', "shape [2], but 1 value(s)"),
        ("x.npy", b"junk", "not a .npy file"),
        ("x.png", b"junk", "takes no picture"),
    ],
)
def test_a_wrong_file_is_explained(tmp_path, name, content, complaint):
    (tmp_path / name).write_bytes(content)

    with pytest.raises(InvalidArgument) as caught:
        take(VECTOR, str(tmp_path / name))

    assert complaint in caught.value.message


def test_a_file_that_is_no_picture_is_explained(tmp_path):
    (tmp_path / "x.png").write_bytes(b"junk")

    with pytest.raises(InvalidArgument, match="neither a picture nor"):
        take(make_spec(InputSpec("X", "FP32", (3, 8, 8))), str(tmp_path / "x.png"))


def test_a_file_for_one_of_several_inputs_must_say_which(tmp_path):
    np.save(tmp_path / "x.npy", np.zeros(3))
    spec = make_spec(InputSpec("A", "FP32", (3,)), InputSpec("B", "FP32", (3,)))

    with pytest.raises(InvalidArgument, match=r"several inputs .*: say which one"):
        take(spec, str(tmp_path / "x.npy"))
    assert ["B"] == [tensor.name for tensor in take(spec, f"B=@{tmp_path / 'x.npy'}")]


def test_rows_of_different_shapes_cannot_share_a_batch():
    spec = make_spec(InputSpec("X", "FP32", (-1,)), max_batch_size=4)

    with pytest.raises(InvalidArgument, match="different shapes, which cannot share a batch"):
        take(spec, "X=[1, 2]", "X=[1, 2, 3]")


def test_a_model_without_batching_takes_one_value_per_input():
    with pytest.raises(InvalidArgument, match="given 2 times, but model 'm' does not batch"):
        take(VECTOR, "X=[1, 2, 3]", "X=[4, 5, 6]")


@pytest.mark.parametrize(
    ("dims", "layout", "expected"),
    [
        ((3, 3, 3), "FORMAT_NHWC", [10, 20, 30]),
        ((3, 3, 3), "FORMAT_NCHW", [10, 10, 10]),
        ((3, 3, 3), "FORMAT_NONE", [10, 10, 10]),
    ],
)
def test_the_config_s_format_decides_where_the_shape_does_not(tmp_path, dims, layout, expected):
    Image.new("RGB", (3, 3), (10, 20, 30)).save(tmp_path / "p.png")

    (tensor,) = take(make_spec(InputSpec("X", "UINT8", dims, layout)), str(tmp_path / "p.png"))

    assert expected == tensor.to_numpy()[0, 0].tolist()


def test_a_picture_for_a_bf16_input_is_rounded_to_it(tmp_path):
    Image.new("L", (2, 2), 255).save(tmp_path / "p.png")

    (tensor,) = take(make_spec(InputSpec("X", "BF16", (2, 2))), str(tmp_path / "p.png"))

    assert [[0x3F80, 0x3F80], [0x3F80, 0x3F80]] == tensor.to_numpy().tolist()


def test_without_pillow_a_picture_says_how_to_get_it(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL", None)
    (tmp_path / "p.png").write_bytes(b"")

    with pytest.raises(InvalidArgument, match="needs Pillow, which is not installed: pip install pillow"):
        take(make_spec(InputSpec("X", "UINT8", (2, 2, 3))), str(tmp_path / "p.png"))
