"""TensorFlow models in all the ways in which people save them, and a way to open them as the engine does.

Only for tests of `tests/frameworks`: TensorFlow is imported with this module, as the backend imports it.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from bireme.backends.interface import ModelContext
from bireme.backends.tensorflow.backend import TensorFlowBackend
from bireme.backends.tensorflow.runtime import tf, v1
from bireme.config import parse_text
from bireme.config.model_config import ModelInstanceGroup
from opened_model import OpenedModel

SAVED_MODEL = "1/model.savedmodel"
FROZEN_GRAPH = "1/model.graphdef"


def save_module(model_dir: Path, size: int = 4) -> Path:
    """``x`` FP32[n, 8] → ``y`` FP32[n, size], a product with ones, and ``z``, x + 1; another signature ``text`` with strings."""

    class Model(tf.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = tf.Variable(tf.ones([8, size]))
            values = tf.lookup.KeyValueTensorInitializer(
                tf.constant(["one", "two"]), tf.constant([1, 2], tf.int64)
            )
            self.table = tf.lookup.StaticHashTable(values, -1)

        @tf.function(input_signature=[tf.TensorSpec([None, 8], tf.float32, name="x")])
        def call(self, x):
            return {"y": tf.matmul(x, self.weight), "z": x + 1}

        @tf.function(input_signature=[tf.TensorSpec([None, 1], tf.string, name="text")])
        def look_up(self, text):
            return {"number": self.table.lookup(text), "doubled": tf.strings.join([text, text])}

    model = Model()
    path = model_dir / SAVED_MODEL
    tf.saved_model.save(model, str(path), {"serving_default": model.call, "text": model.look_up})
    return path


def save_function(model_dir: Path, function: Any, *specs: Any, name: str = "serving_default") -> Path:
    """Save ``function``, which returns a dict, as the only signature."""
    module = tf.Module()
    module.call = tf.function(function, input_signature=specs)
    path = model_dir / SAVED_MODEL
    tf.saved_model.save(module, str(path), {name: module.call})
    return path


def save_keras(model_dir: Path) -> Path:
    """Export a Keras model with ``pixels`` FP32[n, 6] and a dense layer of ones: FP32[n, 3] as ``output_0``."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import keras

        inputs = keras.layers.Input((6,), name="pixels")
        outputs = keras.layers.Dense(3, kernel_initializer="ones")(inputs)
        path = model_dir / SAVED_MODEL
        keras.Model(inputs, outputs).export(str(path), verbose=False)
    return path


def save_simple(model_dir: Path) -> Path:
    """Save as TensorFlow 1 did: ``x`` FP32[n, 2] → ``y``, x times a variable that is 3."""
    path = model_dir / SAVED_MODEL
    with tf.Graph().as_default(), v1.Session() as session:
        x = v1.placeholder(tf.float32, [None, 2], name="input")
        weight = v1.get_variable("weight", initializer=tf.constant(3.0), use_resource=False)
        y = tf.multiply(x, weight, name="output")
        session.run(v1.global_variables_initializer())
        v1.saved_model.simple_save(session, str(path), {"x": x}, {"y": y})
    return path


def save_graph(model_dir: Path, build: Any) -> Path:
    """Write the graph that ``build()`` makes."""
    graph = tf.Graph()
    with graph.as_default():
        build()
    path = model_dir / FROZEN_GRAPH
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(graph.as_graph_def().SerializeToString())
    return path


def build_sum() -> None:
    """``x`` and ``y`` FP32[n, 3] → ``sum``; ``rate``, which only ``scaled`` needs; a node with two outputs."""
    x = v1.placeholder(tf.float32, [None, 3], name="x")
    y = v1.placeholder(tf.float32, [None, 3], name="y")
    rate = v1.placeholder(tf.float32, [], name="rate")
    tf.add(x, y, name="sum")
    tf.multiply(x, rate, name="scaled")
    tf.split(x, [1, 2], axis=1, name="parts")


class OpenModel(OpenedModel):
    """A model of TensorFlow's, in this process."""

    def __init__(
        self, model_dir: Path, text: str = "", backend_config: Mapping[str, str] | None = None
    ) -> None:
        config = parse_text(text, "config.pbtxt")
        is_graph = (model_dir / FROZEN_GRAPH).exists()
        config = replace(
            config,
            name="m",
            backend="tensorflow",
            platform=config.platform or ("tensorflow_graphdef" if is_graph else "tensorflow_savedmodel"),
            instance_group=config.instance_group or (ModelInstanceGroup("m", "KIND_CPU", 1),),
        )
        context = ModelContext("m", 1, model_dir, model_dir / "1", config, backend_config or {})
        super().__init__(TensorFlowBackend(), context)
