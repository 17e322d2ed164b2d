"""A backend for tests of isolated models: it crashes, fails and logs as its input tells it to, and says where it runs."""

from __future__ import annotations

from pathlib import Path

_SOURCE = """
import ctypes
import logging
import os
import time

import numpy as np

from bireme.types import InvalidArgument

CRASHES = {-1: os.abort, -2: lambda: ctypes.string_at(0), -3: lambda: os._exit(3)}


class Backend:
    name = "moody"

    def load(self, ctx):
        if ctx.config.parameter("load", "") == "fails":
            raise InvalidArgument(f"model '{ctx.name}': the file is torn")
        if ctx.config.parameter("load", "") == "raises":
            raise ValueError("what is this")
        if ctx.config.parameter("load", "") == "dies":
            os.abort()
        return Model(ctx)


class Model:
    def __init__(self, ctx):
        self.ctx = ctx

    def complete_config(self, config):
        logging.getLogger("bireme.backends.moody").warning("completing %s", config.name)
        return config

    def check_config(self, config):
        self.outputs = [output.name for output in config.output]

    def create_instance(self, placement):
        if self.ctx.config.parameter("instance", "") == "fails":
            raise InvalidArgument("no instance today")
        return Instance(self, placement)

    def close(self):
        note = self.ctx.config.parameter("note", "")
        if note:
            with open(note, "a") as file:
                file.write("model closed\\n")


class Instance:
    def __init__(self, model, placement):
        self.model = model
        self.placement = placement

    def execute(self, inputs):
        x = inputs["X"]
        first = x.flat[0]
        if first in CRASHES:
            CRASHES[first]()
        if first == -4:
            raise ValueError("the framework is not amused")
        if first == -5:
            raise InvalidArgument("the shape is wrong")
        if first == -6:
            time.sleep(0.3)
        results = {"Y": x * 2, "PID": np.array([os.getpid()], np.int32), "SAME": x}
        return {name: results[name] for name in self.model.outputs}

    def close(self):
        note = self.model.ctx.config.parameter("note", "")
        if note:
            with open(note, "a") as file:
                file.write(f"{self.placement.name} closed\\n")
"""


def install_backend(folder: Path) -> str:
    """Write the backend "moody" into ``folder`` as an installed package; return the folder, for PYTHONPATH."""
    info = folder / "moody_backend-1.dist-info"
    info.mkdir(parents=True)
    (folder / "moody_backend.py").write_text(_SOURCE)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: moody-backend\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[bireme.backends]\nmoody = moody_backend:Backend\n")
    return str(folder)


def add_moody_model(root: Path, name: str, *, count: int = 1, extra: str = "", **parameters: str) -> None:
    """Write a model of it. Y is twice X, PID says which process it was, SAME is X itself."""
    (root / name / "1").mkdir(parents=True)
    texts = "".join(
        f'parameters {{ key: "{key}" value: {{ string_value: "{value}" }} }}\n'
        for key, value in ({"isolation": "process"} | parameters).items()
    )
    (root / name / "config.pbtxt").write_text(
        f"""
backend: "moody"
input [{{ name: "X" data_type: TYPE_FP32 dims: [ -1 ] }}]
output [
  {{ name: "Y" data_type: TYPE_FP32 dims: [ -1 ] }},
  {{ name: "PID" data_type: TYPE_INT32 dims: [ 1 ] }},
  {{ name: "SAME" data_type: TYPE_FP32 dims: [ -1 ] }}
]
instance_group [{{ kind: KIND_CPU count: {count} }}]
{extra}{texts}"""
    )
