"""A lifecycle over a repository of fake models and of ensembles of them, without a server around it."""

from __future__ import annotations

import asyncio

import pytest

from bireme.backends.ensemble.backend import EnsembleBackend
from bireme.engine.load_plan import LoadOverride
from bireme.types import BiremeError
from lifecycle_world import FakeWorld, world_of
from model_dirs import CONFIG


class CountingEnsembles(EnsembleBackend):
    """The backend of ensembles, which remembers what it loaded."""

    def __init__(self):
        self.loads = []

    def load(self, ctx):
        self.loads.append(ctx.name)
        return super().load(ctx)


class World(FakeWorld):
    """A lifecycle over one repository of fake models and of ensembles of them."""

    def __init__(self, root, **options):
        self.ensembles = CountingEnsembles()
        super().__init__(root, {"ensemble": self.ensembles}, **options)

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

    async def ask(self, name):
        response = await super().ask(name)
        assert response.error is None, response.error
        return response


def world(root, **options):
    return world_of(World, root, **options)


def run(scenario, root, **options):
    async def main():
        async with world(root, **options) as w:
            await scenario(w)

    asyncio.run(main())


def with_type(root, name, datatype, tensor="Y"):
    """Give a tensor of a fake model another data type."""
    text = CONFIG.replace(f'"{tensor}" data_type: TYPE_FP32', f'"{tensor}" data_type: TYPE_{datatype}')
    (root / name / "config.pbtxt").write_text(text, "utf-8")
