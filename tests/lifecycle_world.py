"""A lifecycle over a repository of fake models, without a server around it."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import numpy as np

from bireme.engine.lifecycle import Lifecycle
from bireme.engine.model_host import ModelHost
from bireme.engine.options import ServerOptions
from bireme.ipc.arena import Arena
from bireme.repository import Catalogue
from bireme.telemetry import ServerMetrics
from bireme.types import InferenceRequest, Tensor
from model_dirs import LoadingBackend, until


class FakeWorld:
    """A lifecycle over one repository, with what asks its models."""

    def __init__(self, root, backends=(), **options):
        """``backends`` by name come beside the fake one."""
        self.root = root
        self.backend = LoadingBackend()
        self.catalogue = Catalogue.open([str(root)])
        self.metrics = ServerMetrics()
        self.host = ModelHost(
            asyncio.get_running_loop(), arena=Arena(1), metrics=self.metrics, allows_loads=True
        )
        self.lifecycle = Lifecycle(
            self.catalogue,
            ServerOptions(**options),
            backends={"fake": self.backend, **dict(backends)},
            metrics=self.metrics,
            host=self.host,
        )
        self.table = self.lifecycle.table
        self.answers = []

    def send(self, name="m", version=-1, value=1.0):
        """Send a request as the server would; its answer goes to ``answers``."""
        model = self.table.latest.get(name) if version == -1 else self.table.versions.get((name, version))
        if model is None:
            raise self.table.refusal(name, version)
        tensor = Tensor.from_numpy("X", np.full(2, value, np.float32))
        model.enqueue(
            InferenceRequest(name, {"X": tensor}, lambda _, response: self.answers.append(response))
        )

    async def ask(self, name="m", version=-1):
        """Send a request and return its response."""
        self.send(name, version)
        await until(lambda: self.answers)
        return self.answers.pop()


@asynccontextmanager
async def world_of(kind, root, **options):
    """Make a world of ``kind``; in the end everything in it must be closed."""
    root.mkdir(exist_ok=True)
    its = kind(root, **options)
    try:
        yield its
    finally:
        its.backend.gate.set()
        its.backend.load_gate.set()
        assert await its.lifecycle.close(10)
        assert its.backend.num_open_models == its.backend.num_open_instances == 0
        assert not its.table.lingering
