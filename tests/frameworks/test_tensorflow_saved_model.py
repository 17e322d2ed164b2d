"""SavedModels of every make: what is inferred of them, what they answer, and what is said of damaged ones."""

from __future__ import annotations

import shutil

import numpy as np
import pytest

from bireme.types import BiremeError, InvalidArgument, NotFound, Unsupported
from tensorflow_models import (
    SAVED_MODEL,
    OpenModel,
    save_function,
    save_keras,
    save_module,
    save_simple,
    tf,
    v1,
)

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def module(tmp_path_factory):
    model_dir = tmp_path_factory.mktemp("module")
    save_module(model_dir)
    return model_dir


def parameter(key, value):
    return f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}\n'


def shapes(tensors):
    return {tensor.name: (tensor.data_type, tensor.dims) for tensor in tensors}


def test_a_module_needs_no_config(module):
    with OpenModel(module) as model:
        config = model.config
        result = model.execute(x=np.ones((3, 8), np.float32))

    assert {"x": ("TYPE_FP32", (8,))} == shapes(config.input)
    assert {"y": ("TYPE_FP32", (4,)), "z": ("TYPE_FP32", (8,))} == shapes(config.output)
    assert 4 == config.max_batch_size
    assert config.dynamic_batching is not None
    np.testing.assert_array_equal(np.full((3, 4), 8, np.float32), result["y"])
    np.testing.assert_array_equal(np.full((3, 8), 2, np.float32), result["z"])


def test_the_default_batch_size_can_be_set(module):
    with OpenModel(module, backend_config={"default-max-batch-size": "32"}) as model:
        assert 32 == model.config.max_batch_size


def test_a_misspelt_parameter_is_warned_of(module, caplog):
    with caplog.at_level("WARNING", "bireme"), OpenModel(module, parameter("TF_SIGNATUR_DEF", "text")):
        pass
    assert "'TF_SIGNATUR_DEF' is unknown and ignored; did you mean 'TF_SIGNATURE_DEF'?" in caplog.text


def test_only_listed_outputs_are_computed(module):
    text = 'max_batch_size: 2 output { name: "z" data_type: TYPE_FP32 dims: 8 }'

    with OpenModel(module, text) as model:
        assert ["z"] == list(model.execute(x=np.ones((1, 8), np.float32)))


def test_a_signature_with_strings_and_a_table(module):
    with OpenModel(module, parameter("TF_SIGNATURE_DEF", "text")) as model:
        texts = np.array([[b"two"], [b"\xff\x00"], [b""]], object)
        result = model.execute(text=texts)

    assert [[2], [-1], [-1]] == result["number"].tolist()
    assert [[b"twotwo"], [b"\xff\x00\xff\x00"], [b""]] == result["doubled"].tolist()


def test_a_table_out_of_a_file_that_is_saved_with_the_model(tmp_path):
    words = tmp_path / "words.txt"
    words.write_text("red\ngreen\n")

    class Model(tf.Module):
        def __init__(self):
            super().__init__()
            whole, line = tf.lookup.TextFileIndex.WHOLE_LINE, tf.lookup.TextFileIndex.LINE_NUMBER
            content = tf.lookup.TextFileInitializer(str(words), tf.string, whole, tf.int64, line)
            self.table = tf.lookup.StaticVocabularyTable(content, num_oov_buckets=1)

        @tf.function(input_signature=[tf.TensorSpec([None], tf.string, "text")])
        def call(self, text):
            return {"id": self.table.lookup(text)}

    model = Model()
    tf.saved_model.save(model, str(tmp_path / "m" / SAVED_MODEL), {"serving_default": model.call})
    words.unlink()
    text = 'input { name: "text" data_type: TYPE_STRING dims: -1 } output { name: "id" data_type: TYPE_INT64 dims: -1 }'

    with OpenModel(tmp_path / "m", text) as opened:
        result = opened.execute(text=np.array([b"green", b"blue", b"red"], object))

    assert [1, 2, 0] == result["id"].tolist()


def test_a_keras_export(tmp_path):
    save_keras(tmp_path)

    with OpenModel(tmp_path) as model:
        assert {"pixels": ("TYPE_FP32", (6,))} == shapes(model.config.input)
        result = model.execute(pixels=np.ones((2, 6), np.float32))

    assert [[6.0] * 3] * 2 == result["output_0"].tolist()


def test_what_tensorflow_1_saved(tmp_path):
    save_simple(tmp_path)

    with OpenModel(tmp_path) as model:
        assert {"x": ("TYPE_FP32", (2,))} == shapes(model.config.input)
        assert [[3.0, 6.0]] == model.execute(x=np.array([[1, 2]], np.float32))["y"].tolist()


def test_a_model_that_does_not_batch(tmp_path):
    save_function(tmp_path, lambda x: {"y": x * 2}, tf.TensorSpec([2, 3], tf.int32, "x"))

    with OpenModel(tmp_path) as model:
        assert (0, {"x": ("TYPE_INT32", (2, 3))}) == (model.config.max_batch_size, shapes(model.config.input))
        assert [[2] * 3] * 2 == model.execute(x=np.ones((2, 3), np.int32))["y"].tolist()

    with pytest.raises(InvalidArgument, match="does not support batching while non-zero max_batch_size"):
        OpenModel(tmp_path, "max_batch_size: 8")


def test_scalars_are_dims_of_one(tmp_path):
    save_function(tmp_path, lambda x: {"y": x + 1}, tf.TensorSpec([], tf.float32, "x"))

    with OpenModel(tmp_path) as model:
        assert {"x": ("TYPE_FP32", (1,))} == shapes(model.config.input)
        result = model.execute(x=np.array([2], np.float32))

    assert [3.0] == result["y"].tolist()


def test_an_unknown_rank_must_be_in_the_config(tmp_path):
    save_function(tmp_path, lambda x: {"y": x + 1}, tf.TensorSpec(None, tf.float32, "x"))
    text = """
        max_batch_size: 4
        input { name: "x" data_type: TYPE_FP32 dims: [ 2, 2 ] }
        output { name: "y" data_type: TYPE_FP32 dims: [ 2, 2 ] }
    """

    with pytest.raises(InvalidArgument, match="does not say what shape 'x', 'y' has; list all inputs"):
        OpenModel(tmp_path)
    with OpenModel(tmp_path, text) as model:
        assert (3, 2, 2) == model.execute(x=np.zeros((3, 2, 2), np.float32))["y"].shape


DATA_TYPES = [
    (tf.int8, "INT8"),
    (tf.int16, "INT16"),
    (tf.int32, "INT32"),
    (tf.int64, "INT64"),
    (tf.uint8, "UINT8"),
    (tf.uint16, "UINT16"),
    (tf.uint32, "UINT32"),
    (tf.uint64, "UINT64"),
    (tf.float16, "FP16"),
    (tf.float32, "FP32"),
    (tf.float64, "FP64"),
    (tf.bool, "BOOL"),
]


def test_every_data_type_goes_in_and_comes_out(tmp_path):
    specs = [tf.TensorSpec([None, 2], dtype, dtype.name) for dtype, _ in DATA_TYPES]

    def repeat(*tensors):
        return {f"{tensor.dtype.name}_out": tf.concat([tensor, tensor], 1) for tensor in tensors}

    save_function(tmp_path, repeat, *specs)
    inputs = {dtype.name: np.ones((2, 2), dtype.as_numpy_dtype) for dtype, _ in DATA_TYPES}

    with OpenModel(tmp_path) as model:
        found = shapes(model.config.input)
        results = model.execute(**inputs)

    assert {dtype.name: (f"TYPE_{name}", (2,)) for dtype, name in DATA_TYPES} == found
    for dtype, _ in DATA_TYPES:
        result = results[f"{dtype.name}_out"]
        assert inputs[dtype.name].dtype == result.dtype
        np.testing.assert_array_equal(np.ones((2, 4)), result)


def test_bfloat16_is_its_bits_in_both_directions(tmp_path):
    save_function(tmp_path, lambda x: {"y": x + x}, tf.TensorSpec([None, 2], tf.bfloat16, "x"))
    bits = np.array([[0x3F80, 0xC000]], np.uint16)  # 1, -2

    with OpenModel(tmp_path) as model:
        assert {"y": ("TYPE_BF16", (2,))} == shapes(model.config.output)
        result = model.execute(x=bits)["y"]

    assert (np.uint16, [[0x4000, 0xC080]]) == (result.dtype, result.tolist())


def test_what_no_data_type_holds_is_refused(tmp_path):
    save_function(
        tmp_path, lambda x: {"y": tf.cast(x, tf.complex64)}, tf.TensorSpec([None, 2], tf.float32, "x")
    )

    with pytest.raises(Unsupported, match="output 'y' of the model file is a complex64, which no data"):
        OpenModel(tmp_path)


def test_two_names_may_mean_the_same_tensor(tmp_path):
    with tf.Graph().as_default(), v1.Session() as session:
        x = v1.placeholder(tf.float32, [None, 1], name="x")
        y = x + 1
        outputs = {"a": y, "b": y, "same": x}
        v1.saved_model.simple_save(session, str(tmp_path / SAVED_MODEL), {"x": x}, outputs)
    given = np.array([[1]], np.float32)

    with OpenModel(tmp_path) as model:
        result = model.execute(x=given)

    assert {"a": [[2.0]], "b": [[2.0]], "same": [[1.0]]} == {
        name: array.tolist() for name, array in result.items()
    }
    assert not np.shares_memory(given, result["same"])


def test_inputs_with_a_default_may_be_left_out(tmp_path):
    path = save_function(
        tmp_path,
        lambda x, gain: {"y": x * gain},
        tf.TensorSpec([None, 1], tf.float32, "x"),
        tf.TensorSpec([1], tf.float32, "gain"),
    )
    add_default(path, "gain", np.array([5], np.float32))
    text = """
        input [ { name: "x" data_type: TYPE_FP32 dims: [ -1, 1 ] }, { name: "gain" data_type: TYPE_FP32 dims: 1 optional: true } ]
        output { name: "y" data_type: TYPE_FP32 dims: [ -1, 1 ] }
    """
    x = np.array([[2]], np.float32)

    with OpenModel(tmp_path, text) as model:
        assert [[10.0]] == model.execute(x=x)["y"].tolist()
        assert [[6.0]] == model.execute(gain=np.array([3], np.float32), x=x)["y"].tolist()


def add_default(path, name, value):
    from tensorflow.core.protobuf import saved_model_pb2

    file = path / "saved_model.pb"
    message = saved_model_pb2.SavedModel.FromString(file.read_bytes())
    signature = message.meta_graphs[0].signature_def["serving_default"]
    signature.defaults[name].CopyFrom(tf.make_tensor_proto(value))
    file.write_bytes(message.SerializeToString())


def test_a_text_file_is_read_too(module, tmp_path):
    from google.protobuf import text_format
    from tensorflow.core.protobuf import saved_model_pb2

    shutil.copytree(module, tmp_path, dirs_exist_ok=True)
    binary = tmp_path / "1/model.savedmodel/saved_model.pb"
    message = saved_model_pb2.SavedModel.FromString(binary.read_bytes())
    binary.with_suffix(".pbtxt").write_text(text_format.MessageToString(message))
    binary.unlink()

    with OpenModel(tmp_path) as model:
        assert (1, 4) == model.execute(x=np.ones((1, 8), np.float32))["y"].shape


# Refused


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            parameter("TF_SIGNATURE_DEF", "txt"),
            "no signature 'txt'; it has 'serving_default', 'text': name one of them in the parameter TF_SIGNATURE_DEF; did you ",
        ),
        (parameter("TF_GRAPH_TAG", "train"), "no graph with tag 'train'; it has 'serve'"),
        ('platform: "tensorflow_lite"', "the tensorflow backend has no platform 'tensorflow_lite'; expected"),
        ("instance_group { kind: KIND_GPU }", "KIND_GPU is not supported by the tensorflow backend here"),
        (
            'input { name: "y" data_type: TYPE_FP32 dims: 8 }',
            "input 'y' is in the config, but not in the model file, which has 'x'",
        ),
        (
            'max_batch_size: 4 input { name: "x" data_type: TYPE_INT32 dims: 8 }',
            "input 'x': the config's data_type is TYPE_INT32, but the model file has TYPE_FP32",
        ),
        (
            'max_batch_size: 4 output { name: "y" data_type: TYPE_FP32 dims: 5 }',
            "output 'y': the config's dims [5] with the batch dimension in front",
        ),
        ('model_operations { op_library_filename: "no.so" }', "operator library 'no.so' cannot be loaded: "),
    ],
)
def test_a_config_that_does_not_fit_is_refused(module, text, message):
    with pytest.raises(BiremeError) as refused:
        OpenModel(module, text) if "KIND_GPU" not in text else place_on_gpu(module)
    assert message in refused.value.message


def place_on_gpu(module):
    from bireme.backends.interface import Placement

    with OpenModel(module) as model:
        model.loaded.create_instance(Placement("m_0", "KIND_GPU"))


def empty(folder):
    (folder / "saved_model.pb").write_bytes(b"")


def pointer(folder):
    (folder / "saved_model.pb").write_bytes(b"version https://git-lfs.github.com/spec/v1\n")


def garbage(folder):
    (folder / "saved_model.pb").write_bytes(b"this is no protobuf message")


def without_variables(folder):
    shutil.rmtree(folder / "variables")


def variables_pointer(folder):
    for path in (folder / "variables").iterdir():
        path.write_bytes(b"version https://git-lfs.github.com/spec/v1\n")


def torn_variables(folder):
    for path in (folder / "variables").glob("*.index"):
        path.write_bytes(path.read_bytes()[:40])


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (empty, "saved_model.pb' is no SavedModel: the file is empty"),
        (pointer, "saved_model.pb' is no SavedModel: the file is a Git LFS pointer"),
        (garbage, "saved_model.pb' is no SavedModel: Error parsing message"),
        (without_variables, "is not a valid checkpoint: "),
        (without_variables, " ('variables/variables.index' is missing)"),
        (variables_pointer, "variables/variables.data-00000-of-00001: the file is a Git LFS pointer"),
        (torn_variables, "TensorFlow cannot load "),
    ],
)
def test_what_is_wrong_with_a_damaged_folder(module, tmp_path, damage, message):
    shutil.copytree(module, tmp_path, dirs_exist_ok=True)
    damage(tmp_path / "1/model.savedmodel")

    with pytest.raises(InvalidArgument) as refused:
        OpenModel(tmp_path)
    assert message in refused.value.message
    assert "\n" not in refused.value.message


def nothing(version_dir):
    pass


def a_file(version_dir):
    (version_dir / "model.savedmodel").write_bytes(b"x")


def another_folder(version_dir):
    (version_dir / "exported").mkdir()
    (version_dir / "exported/saved_model.pb").write_bytes(b"x")


def one_too_deep(version_dir):
    another_folder(version_dir)
    (version_dir / "exported").rename(version_dir / "inner")
    (version_dir / "model.savedmodel").mkdir()
    (version_dir / "inner").rename(version_dir / "model.savedmodel/inner")


def a_keras_file(version_dir):
    (version_dir / "best.keras").write_bytes(b"x")


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (nothing, NotFound, "1/model.savedmodel' for model 'm'; '{}' holds nothing"),
        (
            a_file,
            InvalidArgument,
            "'{}/model.savedmodel' is a file; a SavedModel is a folder with a saved_model.pb",
        ),
        (
            another_folder,
            NotFound,
            "'{}' holds 'exported'; there is a SavedModel in '{}/exported', but it must be '{}/model.savedmodel'",
        ),
        (
            one_too_deep,
            NotFound,
            "saved_model.pb' for model 'm'; '{}/model.savedmodel' holds 'inner'; there is",
        ),
        (
            a_keras_file,
            NotFound,
            "'best.keras' is no SavedModel: make one with keras.models.load_model(…).export",
        ),
    ],
)
def test_where_a_folder_is_not(tmp_path, make, error, message):
    version_dir = tmp_path / "1"
    version_dir.mkdir()
    make(version_dir)

    with pytest.raises(error) as refused:
        OpenModel(tmp_path)
    assert message.replace("{}", str(version_dir)) in refused.value.message
