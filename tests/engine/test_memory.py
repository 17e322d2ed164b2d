"""Unloading gives memory back: real sessions, real weights, the process's own resident memory."""

import asyncio
import gc
import time
import weakref
from pathlib import Path

import numpy as np
import pytest
from onnx import helper, numpy_helper

from bireme import Server
from bireme.engine import memory
from bireme.ipc.arena import Arena
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


class Machine:
    """What a trimmer looks at; time passes by `look`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.nbytes = 100 << 20
        self.cpu_s = 5.0
        self.trims: list[int] = []
        self.gain = 0
        monkeypatch.setattr(memory, "_malloc_trim", self._trim)
        monkeypatch.setattr(memory, "resident_nbytes", lambda: self.nbytes)
        monkeypatch.setattr(memory.time, "process_time", lambda: self.cpu_s)

    def _trim(self, pad: int) -> None:
        self.trims.append(self.nbytes >> 20)
        self.nbytes -= self.gain << 20

    async def look(self, trimmer: memory.MemoryTrimmer, *, cpu_s: float = 0.0, grown: int = 0) -> None:
        self.cpu_s += cpu_s
        self.nbytes += grown << 20
        trimmer.start(asyncio.get_running_loop())
        trimmer.stop()
        while trimmer._trimming is not None:  # noqa: ASYNC110 (the trimmer tells nobody)
            await asyncio.sleep(0.001)


def test_the_heap_is_trimmed_when_there_is_little_to_do_and_something_to_gain(monkeypatch):
    async def main():
        machine = Machine(monkeypatch)
        trimmer = memory.MemoryTrimmer(Arena(1))
        await machine.look(trimmer)
        await machine.look(trimmer)
        assert machine.trims == []
        machine.gain = 25
        await machine.look(trimmer, cpu_s=1.5, grown=30)  # large requests
        assert machine.trims == []
        await machine.look(trimmer)
        assert machine.trims == [130]
        for _ in range(3):
            await machine.look(trimmer, grown=5)
        assert machine.trims == [130]
        machine.gain = 0
        for _ in range(3):
            await machine.look(trimmer, grown=5)
        assert machine.trims == [130, 125]  # what is in use is not tried again and again
        await machine.look(trimmer, grown=-60)
        await machine.look(trimmer, grown=20)
        assert machine.trims == [130, 125, 95]

    asyncio.run(main())


@pytest.mark.slow
def test_a_server_trims_its_heap_when_it_has_grown(tmp_path, monkeypatch):
    monkeypatch.setattr(memory, "_TRIM_PERIOD_S", 0.05)
    monkeypatch.setattr(memory, "_IDLE_CPU_S", 1e9)
    nbytes = [100 << 20]
    trims = []
    monkeypatch.setattr(memory, "resident_nbytes", lambda: nbytes[0])
    monkeypatch.setattr(memory, "_malloc_trim", trims.append)
    with Server(tmp_path):
        time.sleep(0.2)
        trims.clear()
        nbytes[0] += 60 << 20
        deadline = time.monotonic() + 10
        while not trims:
            assert time.monotonic() < deadline
            time.sleep(0.01)
