"""A lifecycle over a repository of fake models and of ensembles of them, without a server around it."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import numpy as np
import pytest

from bireme.backends.ensemble.backend import EnsembleBackend
from bireme.engine.lifecycle import Lifecycle
from bireme.engine.load_plan import LoadOverride
from bireme.engine.model_host import ModelHost
from bireme.engine.options import ServerOptions
from bireme.ipc.arena import Arena
from bireme.repository import Catalogue
from bireme.telemetry import ServerMetrics
from bireme.types import BiremeError, InferenceRequest, Tensor
from model_dirs import CONFIG, LoadingBackend, until


class CountingEnsembles(EnsembleBackend):
    """The backend of ensembles, which remembers what it loaded."""

    def __init__(self):
        self.loads = []

    def load(self, ctx):
        self.loads.append(ctx.name)
        return super().load(ctx)


class World:
    """A lifecycle over one repository of fake models and of ensembles of them."""

    def __init__(self, root, **options):
        self.root = root
        self.backend = LoadingBackend()
        self.ensembles = CountingEnsembles()
        self.metrics = ServerMetrics()
        self.host = ModelHost(
            asyncio.get_running_loop(), arena=Arena(1), metrics=self.metrics, allows_loads=True
        )
        self.lifecycle = Lifecycle(
            Catalogue.open([str(root)]),
            ServerOptions(**options),
            backends={"fake": self.backend, "ensemble": self.ensembles},
            metrics=self.metrics,
            host=self.host,
        )
        self.table = self.lifecycle.table
        self.answers = []

    async def load(self, name, config=None):
        await self.lifecycle.load(name, LoadOverride(config))

    async def failing_load(self, name, config=None):
        with pytest.raises(BiremeError) as caught:
            await self.load(name, config)
        return caught.value.message

    async def unload(self, name, **settings):
        await self.lifecycle.unload(name, **settings)

    def ready(self):
        return sorted(self.table.latest)

    def reason(self, name):
        """Why the one version of a model does not serve, or its last load failed."""
        (entry,) = [entry for entry in self.table.index({}) if entry["name"] == name]
        return entry.get("reason", "")

    def state(self, name):
        (entry,) = [entry for entry in self.table.index({}) if entry["name"] == name]
        return entry["state"]

    def send(self, name, value=1.0):
        """Send a request as the server would; its answer goes to ``answers``."""
        model = self.table.latest.get(name)
        if model is None:
            raise self.table.refusal(name, -1)
        tensor = Tensor.from_numpy("X", np.full(2, value, np.float32))
        model.enqueue(
            InferenceRequest(name, {"X": tensor}, lambda _, response: self.answers.append(response))
        )

    async def ask(self, name):
        self.send(name)
        await until(lambda: self.answers)
        response = self.answers.pop()
        assert response.error is None, response.error
        return response


@asynccontextmanager
async def world(root, **options):
    root.mkdir(exist_ok=True)
    its = World(root, **options)
    try:
        yield its
    finally:
        its.backend.gate.set()
        its.backend.load_gate.set()
        assert await its.lifecycle.close(10)
        assert its.backend.num_open_models == its.backend.num_open_instances == 0
        assert not its.table.lingering


def run(scenario, root, **options):
    async def main():
        async with world(root, **options) as w:
            await scenario(w)

    asyncio.run(main())


def with_type(root, name, datatype, tensor="Y"):
    """Give a tensor of a fake model another data type."""
    text = CONFIG.replace(f'"{tensor}" data_type: TYPE_FP32', f'"{tensor}" data_type: TYPE_{datatype}')
    (root / name / "config.pbtxt").write_text(text, "utf-8")
