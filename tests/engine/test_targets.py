"""Requests that bring memory for their outputs: an instance that can writes there, but never for a whole batch."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest

from bireme.engine import Server
from bireme.testing import FakeBackend
from bireme.types import InferenceRequest, InferenceResponse, Tensor

CONFIG = """
name: "m" backend: "fake" max_batch_size: 4
input [{ name: "X" data_type: TYPE_FP32 dims: [2] }]
output [{ name: "Y" data_type: TYPE_FP32 dims: [2] }]
dynamic_batching { preferred_batch_size: [4] }
"""


class Scene:
    """A model whose instance can write outputs into given memory, and what was asked of it."""

    def __init__(self, server: Server, *, can_write: bool) -> None:
        self.server = server
        self.targets: list[object] = []
        (slot,) = server.model("m").pool.slots
        assert slot.execute_into is None
        if can_write:
            slot.execute_into = self._execute_into
        self.answers: list[tuple[InferenceRequest, InferenceResponse]] = []

    def _execute_into(self, inputs, targets):
        self.targets.append(targets)
        array = np.ndarray(inputs["X"].shape, np.float32, targets["Y"])
        array[:] = inputs["X"]
        return {"Y": array}

    def send(self, value: float, *, has_target: bool = True) -> memoryview:
        array = np.full((1, 2), value, np.float32)
        request = InferenceRequest(
            "m", {"X": Tensor.from_numpy("X", array)}, lambda *answer: self.answers.append(answer)
        )
        memory = memoryview(bytearray(8))
        request.targets = {"Y": memory} if has_target else None
        self.server.submit(request)
        return memory

    async def answered(self, count: int) -> None:
        while len(self.answers) < count:  # noqa: ASYNC110 - answers come from another thread
            await asyncio.sleep(0.001)


@pytest.fixture
def play(tmp_path: Path):
    """Return a function that runs a scenario over the model."""
    (tmp_path / "m" / "1").mkdir(parents=True)
    (tmp_path / "m" / "config.pbtxt").write_text(CONFIG)

    def play(scenario, *, can_write: bool = True) -> None:
        async def main() -> None:
            async with Server(tmp_path, backends={"fake": FakeBackend()}) as server:
                async with asyncio.timeout(5):
                    await scenario(Scene(server, can_write=can_write))

        asyncio.run(main())

    return play


def test_a_single_request_s_output_is_written_where_it_is_wanted(play):
    async def scenario(scene: Scene) -> None:
        memory = scene.send(3)
        await scene.answered(1)
        ((request, response),) = scene.answers

        assert scene.targets == [request.targets]
        assert bytes(memory) == np.array([3, 3], np.float32).tobytes()
        assert response.outputs[0].to_numpy().base is memory.obj

    play(scenario)


def test_a_batch_is_not(play):
    async def scenario(scene: Scene) -> None:
        memories = [scene.send(value) for value in range(4)]
        await scene.answered(4)

        assert scene.targets == []
        assert all(bytes(memory) == bytes(8) for memory in memories)
        values = [response.outputs[0].to_numpy()[0, 0] for _, response in scene.answers]
        assert values == [0, 1, 2, 3]

    play(scenario)


@pytest.mark.parametrize(("can_write", "has_target"), [(False, True), (True, False)])
def test_without_memory_or_a_way_to_write_there_all_is_as_ever(play, can_write, has_target):
    async def scenario(scene: Scene) -> None:
        memory = scene.send(3, has_target=has_target)
        await scene.answered(1)
        ((_, response),) = scene.answers

        assert scene.targets == []
        assert bytes(memory) == bytes(8)
        assert response.outputs[0].to_numpy().tolist() == [[3, 3]]

    play(scenario, can_write=can_write)
