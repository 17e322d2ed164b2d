"""Frozen graphs: nodes by name, what placeholders tell, operations that run first, and what is said of damaged ones."""

from __future__ import annotations

import json

import numpy as np
import pytest

from bireme.backends.interface import ModelContext
from bireme.backends.tensorflow.backend import TensorFlowBackend
from bireme.config import ModelConfig
from bireme.config.model_config import ModelOutput
from bireme.types import BiremeError, InvalidArgument, NotFound
from tensorflow_models import FROZEN_GRAPH, OpenModel, build_sum, save_graph, save_module, tf, v1

pytestmark = pytest.mark.slow

SUM = 'output { name: "sum" data_type: TYPE_FP32 dims: 3 }'
ONES = np.ones((2, 3), np.float32)


@pytest.fixture(scope="module")
def graph(tmp_path_factory):
    model_dir = tmp_path_factory.mktemp("graph")
    save_graph(model_dir, build_sum)
    return model_dir


def test_inputs_are_the_placeholders_that_the_outputs_need(graph):
    with OpenModel(graph, SUM) as model:
        assert {("x", "TYPE_FP32", (3,)), ("y", "TYPE_FP32", (3,))} == {
            (tensor.name, tensor.data_type, tensor.dims) for tensor in model.config.input
        }
        assert 4 == model.config.max_batch_size
        assert [[2.0] * 3] * 2 == model.execute(x=ONES, y=ONES)["sum"].tolist()


def test_outputs_are_what_nothing_takes_where_the_config_lists_none(tmp_path):
    def build():
        x = v1.placeholder(tf.float32, [None, 3], name="x")
        with tf.control_dependencies([tf.no_op(name="nothing")]):
            tf.split(x + 1, [1, 2], axis=1, name="parts")
        v1.placeholder(tf.int64, [], name="unused")

    save_graph(tmp_path, build)

    with OpenModel(tmp_path) as model:
        assert ["x"] == [tensor.name for tensor in model.config.input]
        assert {"parts": (1,), "parts:1": (2,)} == {
            tensor.name: tensor.dims for tensor in model.config.output
        }
        result = model.execute(x=np.array([[1, 2, 3]], np.float32))

    assert {"parts": [[2.0]], "parts:1": [[3.0, 4.0]]} == {
        name: array.tolist() for name, array in result.items()
    }


def test_a_placeholder_that_an_operation_only_waits_for_is_needed(tmp_path):
    def build():
        x = v1.placeholder(tf.float32, [None, 1], name="x")
        fits = v1.placeholder(tf.bool, [None], name="fits")
        with tf.control_dependencies([v1.assert_equal(tf.reduce_all(fits), True)]):
            tf.add(x, 1.0, name="y")

    save_graph(tmp_path, build)

    with OpenModel(tmp_path, 'output { name: "y" data_type: TYPE_FP32 dims: 1 }') as model:
        assert ["fits", "x"] == [tensor.name for tensor in model.config.input]


def test_a_graph_without_results_needs_a_config(tmp_path):
    save_graph(tmp_path, lambda: v1.placeholder(tf.float32, [None], name="x"))

    with pytest.raises(InvalidArgument, match="does not show what its outputs are; list them in config"):
        OpenModel(tmp_path)


@pytest.mark.parametrize(
    ("name", "outputs"), [("model.graphdef", ["sum"]), ("frozen.pb", ["sum"]), ("", ["y", "z"])]
)
def test_without_a_platform_the_file_says_what_it_is(tmp_path, name, outputs):
    if name:
        save_graph(tmp_path, build_sum).rename(tmp_path / "1" / name)
    else:
        save_module(tmp_path)
    listed = tuple(ModelOutput(name=each, data_type="TYPE_FP32", dims=(3,)) for each in outputs)
    config = ModelConfig(name="m", default_model_filename=name, output=listed)

    model = TensorFlowBackend().load(ModelContext("m", 1, tmp_path, tmp_path / "1", config))

    assert outputs == [tensor.name for tensor in model.complete_config(config).output]
    model.close()


def test_names_may_have_an_index(graph):
    text = """
        input [ { name: "x:0" data_type: TYPE_FP32 dims: [ -1, 3 ] } ]
        output [ { name: "parts:1" data_type: TYPE_FP32 dims: [ -1, 2 ] }, { name: "parts" data_type: TYPE_FP32 dims: [ -1, 1 ] } ]
    """
    with OpenModel(graph, text) as model:
        results = model.execute(**{"x:0": np.array([[1, 2, 3]], np.float32)})

    assert {"parts:1": [[2.0, 3.0]], "parts": [[1.0]]} == {
        name: array.tolist() for name, array in results.items()
    }


def test_any_node_may_be_an_input(graph):
    text = """
        input { name: "sum" data_type: TYPE_FP32 dims: [ -1, 3 ] }
        output { name: "sum" data_type: TYPE_FP32 dims: [ -1, 3 ] }
    """
    with OpenModel(graph, text) as model:
        assert ONES.tolist() == model.execute(sum=ONES)["sum"].tolist()


def test_a_placeholder_with_a_default_is_optional(tmp_path):
    def build():
        x = v1.placeholder(tf.float32, [None, 1], name="x")
        gain = v1.placeholder_with_default(tf.constant([[5.0]]), [1, 1], name="gain")
        tf.multiply(x, gain, name="y")

    save_graph(tmp_path, build)
    text = """
        input [
          { name: "x" data_type: TYPE_FP32 dims: [ -1, 1 ] },
          { name: "gain" data_type: TYPE_FP32 dims: [ 1, 1 ] optional: true }
        ]
        output { name: "y" data_type: TYPE_FP32 dims: [ -1, 1 ] }
    """
    x = np.array([[2]], np.float32)

    with OpenModel(tmp_path, text) as model:
        assert [[10.0]] == model.execute(x=x)["y"].tolist()
        assert [[6.0]] == model.execute(x=x, gain=np.array([[3]], np.float32))["y"].tolist()


def test_shapes_that_the_graph_does_not_know_come_from_the_config(tmp_path):
    save_graph(tmp_path, lambda: tf.add(v1.placeholder(tf.float32, None, name="x"), 1.0, name="y"))
    text = """
        max_batch_size: 2
        input { name: "x" data_type: TYPE_FP32 dims: 2 }
        output { name: "y" data_type: TYPE_FP32 dims: 2 }
    """

    with OpenModel(tmp_path, text) as model:
        assert [[1.0, 1.0]] == model.execute(x=np.zeros((1, 2), np.float32))["y"].tolist()
    with pytest.raises(InvalidArgument, match="does not say what shape 'x' has"):
        OpenModel(tmp_path, 'output { name: "y" data_type: TYPE_FP32 dims: 2 }')


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            'output { name: "sums" data_type: TYPE_FP32 dims: 3 }',
            "output 'sums' is in the config, but the graph has no node 'sums'; did you mean 'sum'?; its last results are 'sum', ",
        ),
        (
            'input { name: "z" data_type: TYPE_FP32 dims: 3 }' + SUM,
            "input 'z' is in the config, but the graph has no node 'z'; its placeholders are 'x', 'y', 'rate'",
        ),
        (
            'output { name: "parts:2" data_type: TYPE_FP32 dims: 3 }',
            "output 'parts:2': node 'parts' of the graph has 2 outputs, so there is no such tensor",
        ),
        (
            'input { name: "x" data_type: TYPE_FP32 dims: [ -1, 3 ] } output { name: "sum" data_type: TYPE_FP32 dims: [ -1, 3 ] }',
            "the model file needs input 'y' (float32, shape [-1, 3]), which the config does not list",
        ),
        (
            'input { name: "x" data_type: TYPE_INT32 dims: [ 3 ] }' + SUM,
            "input 'x': the config's data_type is TYPE_INT32, but the model file has TYPE_FP32",
        ),
    ],
)
def test_a_config_that_does_not_fit_is_refused(graph, text, message):
    with pytest.raises(BiremeError) as refused:
        OpenModel(graph, text)
    assert message in refused.value.message


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is no GraphDef: the file is empty"),
        (b"version https://git-lfs.github.com/spec/v1\n", "is no GraphDef: the file is a Git LFS pointer"),
        (b"this is no protobuf message", "is no GraphDef: Error parsing message"),
    ],
)
def test_what_is_wrong_with_a_damaged_file(tmp_path, content, message):
    path = tmp_path / FROZEN_GRAPH
    path.parent.mkdir()
    path.write_bytes(content)

    with pytest.raises(InvalidArgument) as refused:
        OpenModel(tmp_path, SUM)
    assert message in refused.value.message


def test_an_operation_that_there_is_not_is_named(tmp_path):
    path = save_graph(tmp_path, build_sum)
    definition = v1.GraphDef.FromString(path.read_bytes())
    definition.node.add(name="strange", op="NobodysOperation")
    path.write_bytes(definition.SerializeToString())

    with pytest.raises(InvalidArgument, match=r"TensorFlow cannot load .*'NobodysOperation'"):
        OpenModel(tmp_path, SUM)


def test_a_missing_file_is_named(tmp_path):
    (tmp_path / "1").mkdir()

    with pytest.raises(NotFound, match=r"unable to find '.*1/model\.graphdef' for model 'm'"):
        OpenModel(tmp_path, f'platform: "tensorflow_graphdef" {SUM}')


# Operations that run first


def build_variable():
    """``y`` is ``x`` times a variable that only the operation ``init`` sets."""
    x = v1.placeholder(tf.float32, [None, 1], name="x")
    weight = v1.get_variable("weight", initializer=tf.constant(3.0), use_resource=False)
    tf.multiply(x, weight, name="y")
    v1.global_variables_initializer()


Y = """
output { name: "y" data_type: TYPE_FP32 dims: 1 }
parameters { key: "TF_INIT_OPS_FILE" value { string_value: "init.json" } }
"""


@pytest.fixture(scope="module")
def variable(tmp_path_factory):
    model_dir = tmp_path_factory.mktemp("variable")
    save_graph(model_dir, build_variable)
    return model_dir


@pytest.mark.parametrize("folder", ["1", "."])
def test_operations_run_first(variable, folder):
    file = variable / folder / "init.json"
    file.write_text(json.dumps({"init_ops": ["init"]}))

    with OpenModel(variable, Y) as model:
        assert [[6.0]] == model.execute(x=np.array([[2]], np.float32))["y"].tolist()
    file.unlink()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "TF_INIT_OPS_FILE 'init.json': there is no such file in "),
        ("{", "init.json' is no JSON: "),
        ("", "init.json' is no JSON: the file is empty"),
        ('["init"]', """init.json' must hold {"init_ops": [names of operations]}, found ['init']"""),
        ('{"init_ops": ["initt"]}', "the graph has no operation 'initt'; did you mean 'init'?"),
        ('{"init_ops": ["y"]}', "'y' failed: "),
    ],
)
def test_operations_that_cannot_run_are_named(variable, content, message):
    file = variable / "1/init.json"
    if content is not None:
        file.write_text(content)

    with pytest.raises(BiremeError) as refused:
        OpenModel(variable, Y)
    file.unlink(missing_ok=True)
    assert message in refused.value.message
