"""Instances: one session for all of them, no copies, and errors of a run in one line."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import numpy as np
import pytest

from bireme.backends.interface import Placement
from bireme.types import BackendFailed
from tensorflow_models import OpenModel, save_function, save_graph, save_module, tf, v1

pytestmark = pytest.mark.slow

MB = 1_000_000


@pytest.fixture(scope="module")
def plus_one(tmp_path_factory):
    """A model that adds 1 to a vector, and one that passes it on in another shape, too."""
    model_dir = tmp_path_factory.mktemp("plus_one")
    save_function(
        model_dir,
        lambda x: {"y": x + 1, "same": tf.reshape(x, [-1, 1])},
        tf.TensorSpec([None], tf.float32, "x"),
    )
    return model_dir


def config(*outputs):
    listed = "".join(
        f'output {{ name: "{name}" data_type: TYPE_FP32 dims: {dims} }}\n' for name, dims in outputs
    )
    return f'input {{ name: "x" data_type: TYPE_FP32 dims: [ -1 ] }}\n{listed}'


ONLY_Y = config(("y", "[ -1 ]"))
BOTH = config(("y", "[ -1 ]"), ("same", "[ -1, 1 ]"))


def aligned(size, offset=0):
    """Return an FP32 vector that begins ``offset`` bytes after a multiple of 64."""
    memory = np.zeros(size * 4 + 128, np.uint8)
    start = -memory.ctypes.data % 64 + offset
    return memory[start : start + size * 4].view(np.float32)


def test_neither_inputs_nor_outputs_are_copied(plus_one):
    """What runs in the session sees the caller's own memory, and its result is seen by the caller."""
    x = aligned(1000)

    with OpenModel(plus_one, BOTH) as model:
        run = model.loaded._execute
        call = run._prepare(("x",))
        (same,) = [result for result in call(x) if result.ndim == 2]
        elsewhere = aligned(1000, 4)
        (copied,) = [result for result in call(elsewhere) if result.ndim == 2]

    assert np.shares_memory(x, same)
    assert not np.shares_memory(elsewhere, copied)


def test_a_run_needs_memory_for_its_output_alone(plus_one):
    x = aligned(25 * MB)

    with OpenModel(plus_one, ONLY_Y) as model:
        model.execute(x=x)
        Path("/proc/self/clear_refs").write_text("5")
        before = status_mb("VmRSS")
        result = model.execute(x=x)["y"]
        grown = status_mb("VmHWM") - before

    assert result.nbytes == 100 * MB
    assert grown < 130


def status_mb(name):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:")) / 1e3


def test_an_input_that_is_passed_on_is_not_the_callers_memory(plus_one):
    x = aligned(4)
    x[:] = range(4)

    with OpenModel(plus_one, BOTH) as model:
        result = model.execute(x=x)
    x[:] = 7

    assert [[0], [1], [2], [3]] == result["same"].tolist()
    assert [1, 2, 3, 4] == result["y"].tolist()


@pytest.mark.parametrize("make", [lambda: aligned(6)[::2], lambda: aligned(3, 4), lambda: aligned(3)])
def test_inputs_may_be_strided_unaligned_or_read_only_and_stay_as_they_are(plus_one, make):
    x = make()
    x[:] = [1, 2, 3]
    x.flags.writeable = False

    with OpenModel(plus_one, ONLY_Y) as model:
        for _ in range(3):
            assert [2, 3, 4] == model.execute(x=x)["y"].tolist()

    assert [1, 2, 3] == x.tolist()


def test_nothing_in_and_nothing_out(plus_one):
    with OpenModel(plus_one, BOTH) as model:
        result = model.execute(x=np.zeros(0, np.float32))

    assert ((0,), (0, 1)) == (result["y"].shape, result["same"].shape)


def test_results_cannot_change_a_weight_and_outlive_the_model(tmp_path):
    module = tf.Module()
    module.labels = tf.Variable(tf.range(100_000.0))
    module.call = tf.function(
        lambda x: {"labels": module.labels.read_value(), "y": x},
        input_signature=[tf.TensorSpec([None], tf.float32, "x")],
    )
    tf.saved_model.save(module, str(tmp_path / "1/model.savedmodel"), {"serving_default": module.call})

    with OpenModel(tmp_path) as model:
        labels = model.execute(x=np.zeros(1, np.float32))["labels"]
        with pytest.raises(ValueError, match="read-only"):
            labels[0] = 5

    np.testing.assert_array_equal(np.arange(100_000, dtype=np.float32), labels)


def test_a_model_that_counts_gives_each_caller_its_own_number(tmp_path):
    module = tf.Module()
    module.count = tf.Variable(0)

    def call(x):
        return {"count": module.count.assign_add(tf.size(x), read_value=True)}

    module.call = tf.function(call, input_signature=[tf.TensorSpec([None], tf.int32, "x")])
    tf.saved_model.save(module, str(tmp_path / "1/model.savedmodel"), {"serving_default": module.call})
    text = 'input { name: "x" data_type: TYPE_INT32 dims: [ -1 ] } output { name: "count" data_type: TYPE_INT32 dims: [ 1 ] }'

    with OpenModel(tmp_path, text) as model:
        counts = [model.execute(x=np.zeros(1, np.int32))["count"] for _ in range(3)]

    assert [[1], [2], [3]] == [count.tolist() for count in counts]


def test_instances_share_the_weights_and_run_at_one_time(tmp_path):
    save_module(tmp_path, size=16)

    with OpenModel(tmp_path) as model:
        instances = [model.loaded.create_instance(Placement(f"m_{index}")) for index in range(4)]
        assert 1 == len({id(instance.execute) for instance in (model.instance, *instances)})
        failures = []

        def work(instance, value):
            for _ in range(50):
                result = instance.execute({"x": np.full((2, 8), value, np.float32)})
                if result["y"].tolist() != [[8.0 * value] * 16] * 2:
                    failures.append(value)

        threads = [threading.Thread(target=work, args=(each, value)) for value, each in enumerate(instances)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    assert not failures


def test_what_goes_wrong_in_a_run_is_told_in_one_line(tmp_path):
    save_function(
        tmp_path,
        lambda text: {"y": tf.strings.to_number(text)},
        tf.TensorSpec([None, 1], tf.string, "text"),
    )

    with OpenModel(tmp_path) as model:
        with pytest.raises(BackendFailed) as failed:
            model.execute(text=np.array([[b"abc"]], object))
        assert [[2.5]] == model.execute(text=np.array([[b"2.5"]], object))["y"].tolist()

    assert "StringToNumberOp could not correctly convert string: abc" in failed.value.message
    assert "\n" not in failed.value.message


def test_without_callables_the_session_itself_runs(tmp_path, monkeypatch):
    monkeypatch.delattr(v1.Session.__mro__[1], "_make_callable_from_options")
    save_module(tmp_path)

    with OpenModel(tmp_path) as model:
        assert [[8.0] * 4] == model.execute(x=np.ones((1, 8), np.float32))["y"].tolist()


def test_a_closed_instance_says_so(plus_one):
    with OpenModel(plus_one, ONLY_Y) as model:
        instance = model.loaded.create_instance(Placement("m_1"))
        assert not instance.may_run_inline
        instance.close()
        with pytest.raises(BackendFailed, match="the instance is closed"):
            instance.execute({"x": aligned(1)})


@pytest.mark.parametrize(("level", "flag"), [(0, None), (1, "--tf_xla_cpu_global_jit")])
def test_xla_is_switched_on_by_the_graph_level(tmp_path, monkeypatch, level, flag):
    monkeypatch.delenv("TF_XLA_FLAGS", raising=False)
    save_graph(tmp_path, lambda: tf.add(v1.placeholder(tf.float32, [None], name="x"), 1.0, name="y"))
    text = f"{ONLY_Y} optimization {{ graph {{ level: {level} }} }}"

    with OpenModel(tmp_path, text) as model:
        config = model.loaded._model_file.opened.session._config
        assert level == config.graph_options.optimizer_options.global_jit_level
        assert [2.0] == model.execute(x=np.ones(1, np.float32))["y"].tolist()

    assert flag == os.environ.get("TF_XLA_FLAGS")
