"""Unloading gives memory back: real sessions, real weights, the process's own resident memory."""

import gc
import time
import weakref
from pathlib import Path

import numpy as np
from onnx import helper, numpy_helper

from bireme import Server
from bireme.engine import memory
from onnx_models import add_model, save_graph, tensor_info

SIZE = 1024
MODEL_MB = SIZE * SIZE * 4 / 1e6


def save_weights(path: Path) -> Path:
    """Write Y = X times a 4 MB identity matrix."""
    weights = numpy_helper.from_array(np.eye(SIZE, dtype=np.float32), "weights")
    return save_graph(
        path,
        [helper.make_node("MatMul", ["X", "weights"], ["Y"])],
        [tensor_info("X", "FP32", (SIZE,), batch=True)],
        [tensor_info("Y", "FP32", (SIZE,), batch=True)],
        [weights],
    )


def resident_mb() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 1e6


def test_thirty_load_and_unload_rounds_take_no_more_memory_than_one(tmp_path):
    add_model(tmp_path, "m", save_weights, config="instance_group [{ kind: KIND_CPU count: 1 }]")
    rows = np.ones((1, SIZE), np.float32)
    with Server(tmp_path, model_control_mode="explicit") as server:
        for round_number in range(30):
            server.load_model("m")
            assert server.infer("m", {"X": rows})["Y"][0, 0] == 1.0
            server.unload_model("m")
            while any(entry["state"] == "UNLOADING" for entry in server.repository_index()):
                time.sleep(0.001)
            if round_number == 4:
                before_mb = resident_mb()
    assert resident_mb() - before_mb < 6 * MODEL_MB  # a leak would be 25 models


def test_memory_is_released_without_glibc_too(monkeypatch):
    monkeypatch.setattr(memory, "_malloc_trim", None)
    memory.release_memory()
    for platform in ("darwin", "win32"):
        monkeypatch.setattr("sys.platform", platform)
        assert memory._find_malloc_trim() is None
    monkeypatch.setattr("sys.platform", "linux")

    def no_such_function(_):
        raise OSError

    monkeypatch.setattr("ctypes.CDLL", no_such_function)
    assert memory._find_malloc_trim() is None


class Node:
    """Something that may refer to itself."""

    def __init__(self) -> None:
        self.me: Node | None = None


def test_cycles_are_collected_only_when_something_remains(monkeypatch):
    collections = []
    monkeypatch.setattr("gc.collect", lambda: collections.append(1))
    node = Node()
    remains = weakref.ref(node)
    memory.release_memory(remains)
    assert len(collections) == 1
    del node
    memory.release_memory(remains, remains)
    assert len(collections) == 1
    memory.release_memory()
    assert len(collections) == 2


def test_an_onnx_model_goes_without_a_collection(tmp_path, monkeypatch):
    add_model(tmp_path, "m", save_weights)
    with Server(tmp_path, model_control_mode="explicit", load_model=("m",)) as server:
        server.infer("m", {"X": np.ones((1, SIZE), np.float32)})
        model = weakref.ref(server.model("m"))
        loaded = weakref.ref(model()._prepared.loaded)
        gc.collect()
        gc.disable()
        try:
            monkeypatch.setattr("gc.collect", lambda: None)
            server.unload_model("m")
            deadline = time.monotonic() + 10
            while model() is not None or loaded() is not None:
                assert time.monotonic() < deadline, "something refers to the model in a circle"
                time.sleep(0.001)
        finally:
            gc.enable()
