"""Repositories of fake models: folders with a config and empty version directories, for `FakeBackend`."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from bireme.testing import FakeBackend

CONFIG = """
backend: "fake"
input [{ name: "X" data_type: TYPE_FP32 dims: [ -1 ] }]
output [{ name: "Y" data_type: TYPE_FP32 dims: [ -1 ] }]
instance_group [{ kind: KIND_CPU count: 1 }]
"""


def add_fake_model(root: Path, name: str, versions: Iterable[int] = (1,), extra: str = "") -> Path:
    """Write a model that gives X back as Y; return its folder. ``extra`` is appended to its config."""
    model_dir = root / name
    for version in versions:
        (model_dir / str(version)).mkdir(parents=True, exist_ok=True)
    model_dir.mkdir(parents=True, exist_ok=True)
    (model_dir / "config.pbtxt").write_text(CONFIG + extra, "utf-8")
    return model_dir


def add_fake_ensemble(
    root: Path, name: str, *models: str, versions: Iterable[int] = (1,), extra: str = "", dims: str = "-1"
) -> Path:
    """Write an ensemble of models from X to Y, one behind the other, and return its folder. ``model:3`` is a version of one."""
    model_dir = root / name
    for version in versions:
        (model_dir / str(version)).mkdir(parents=True, exist_ok=True)
    model_dir.mkdir(parents=True, exist_ok=True)
    tensors = ["X", *(f"t{index}" for index in range(1, len(models))), "Y"]
    steps = []
    for index, model in enumerate(models):
        model_name, _, version = model.partition(":")
        steps.append(
            f'step {{ model_name: "{model_name}" model_version: {version or -1} '
            f'input_map {{ key: "X" value: "{tensors[index]}" }} '
            f'output_map {{ key: "Y" value: "{tensors[index + 1]}" }} }}'
        )
    (model_dir / "config.pbtxt").write_text(
        f"""
platform: "ensemble"
input [{{ name: "X" data_type: TYPE_FP32 dims: [ {dims} ] }}]
output [{{ name: "Y" data_type: TYPE_FP32 dims: [ {dims} ] }}]
ensemble_scheduling {{ {" ".join(steps)} }}
{extra}
""",
        "utf-8",
    )
    return model_dir


def touch(path: Path) -> None:
    """Make ``path`` newer than it has ever been, whatever the clock's resolution."""
    now_ns = max(time.time_ns(), path.stat().st_mtime_ns + 1) if path.exists() else time.time_ns()
    path.touch()
    os.utime(path, ns=(now_ns, now_ns))


async def until(condition: Callable[[], object], timeout_s: float = 10.0) -> None:
    """Wait until ``condition`` holds; for what ends on another thread."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        await asyncio.sleep(0.002)


class LoadingBackend(FakeBackend):
    """A `FakeBackend` whose loads can be told to fail or to wait, by model and version."""

    def __init__(self, **options) -> None:
        super().__init__(**options)
        self.broken: dict[tuple[str, int], BaseException] = {}
        self.load_gate = threading.Event()
        self.load_gate.set()
        self.num_loading = 0

    def load(self, ctx):
        with self._lock:
            self.num_loading += 1
        try:
            self.load_gate.wait()
            error = self.broken.get((ctx.name, ctx.version))
            if error is not None:
                with self._lock:
                    self.contexts.append(ctx)
                raise error
            return super().load(ctx)
        finally:
            with self._lock:
                self.num_loading -= 1

    def loads_of(self, name: str) -> list[int]:
        """The versions of a model that were loaded or tried, in order."""
        return [ctx.version for ctx in self.contexts if ctx.name == name]
