"""TensorFlow as this server imports it: without a word, without Keras; and with XLA, where it is asked for."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow

_SCRIPT = """
import os, sys
from pathlib import Path
from dataclasses import replace
from bireme.backends.interface import ModelContext, Placement
from bireme.backends.tensorflow.backend import TensorFlowBackend
from bireme.backends.tensorflow.runtime import tf, v1
from bireme.config import parse_text
import numpy as np

loaded = [name for name in ("keras", "sklearn") if name in sys.modules]

folder = Path(sys.argv[1])
(folder / "1").mkdir()
graph = tf.Graph()
with graph.as_default():
    y = v1.placeholder(tf.float32, [None, 64], name="x")
    for _ in range(8):
        y = tf.tanh(y * 1.1 + 0.5) + tf.nn.relu(y)
    tf.identity(y, name="y")
(folder / "1/model.graphdef").write_bytes(graph.as_graph_def().SerializeToString())
text = '''
    name: "m" platform: "tensorflow_graphdef"
    input { name: "x" data_type: TYPE_FP32 dims: [ -1, 64 ] } output { name: "y" data_type: TYPE_FP32 dims: [ -1, 64 ] }
    optimization { graph { level: 1 } }
'''
model = TensorFlowBackend().load(ModelContext("m", 1, folder, folder / "1", parse_text(text, "config.pbtxt")))
session = model._model_file.opened.session
metadata = v1.RunMetadata()
options = v1.RunOptions(output_partition_graphs=True)
session.run("y:0", {"x:0": np.ones((2, 64), np.float32)}, options=options, run_metadata=metadata)
operations = {node.op for part in metadata.partition_graphs for node in part.node}
print(loaded, "_XlaRun" in operations)
"""


def test_it_comes_quietly_without_keras_and_compiles_with_xla(tmp_path, monkeypatch):
    monkeypatch.delenv("TF_XLA_FLAGS", raising=False)
    result = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", _SCRIPT, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )

    assert ("[] True\n", "") == (result.stdout, result.stderr)


def test_what_others_write_in_the_meantime_is_not_lost(capfd, caplog):
    from bireme.backends.tensorflow.runtime import _quiet

    with caplog.at_level("DEBUG", "bireme"), _quiet():
        os.write(2, b"I0000 00:00:1796050593.014163   21147 port.cc:153] oneDNN is on\nour own line\n")

    assert "our own line\n" == capfd.readouterr().err
    assert "port.cc:153] oneDNN is on" in caplog.text


def test_records_of_tensorflows_loggers_come_below_their_level(caplog):
    from bireme.backends.tensorflow.runtime import tf

    with caplog.at_level("DEBUG", "bireme"):
        tf.get_logger().warning("%s is deprecated", "it")
        tf.get_logger().error("something is wrong")

    assert [("DEBUG", "it is deprecated"), ("WARNING", "something is wrong")] == [
        (record.levelname, record.getMessage())
        for record in caplog.records
        if record.name.startswith("bireme")
    ]
