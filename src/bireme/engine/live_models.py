"""LiveModels: every model that is not closed yet, and how each comes to its end. Loop thread only.

A model that nobody wants any more finishes its requests first, then its instances are closed and its memory goes back to
the system. The composing models of an ensemble go after it: requests in flight need them for the steps to come.
"""

from __future__ import annotations

import asyncio
import logging
import weakref
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from typing import Any, NamedTuple, TypeVar
from weakref import WeakKeyDictionary

from bireme.backends.interface import LoadedModel
from bireme.engine.dependencies import Dependency
from bireme.engine.load_plan import LoadPlan
from bireme.engine.memory import release_memory
from bireme.engine.model import Model
from bireme.engine.model_state import UNLOADED, VersionRecord, VersionState
from bireme.engine.model_table import ModelTable
from bireme.repository import ModelDirectory
from bireme.repository.agents import AgentChain
from bireme.types import BiremeError

log = logging.getLogger("bireme.engine")

T = TypeVar("T")

TICK_S = 0.01
"""Between two looks at whether requests have ended."""
# The thread that has closed a model still refers to it for a moment after it has said so.
_LET_GO_S = 0.02


class _Holding(NamedTuple):
    """What belongs to a model that is not closed yet."""

    plan: LoadPlan
    """What it was loaded by. The directory must stay as long as the model; its agents hear when the last model is gone."""
    loaded: weakref.ref[LoadedModel]
    """The backend's side of it: gone when the model's memory is free."""


_Users = WeakKeyDictionary[Model, set[Dependency]]


class LiveModels:
    """The models of one `bireme.engine.lifecycle.Lifecycle`, from their first request to their close."""

    def __init__(self, loop: asyncio.AbstractEventLoop, table: ModelTable) -> None:
        self.is_stopping = False
        """Whether the whole process ends soon, so that its memory need not be given back."""
        self._loop = loop
        self._table = table
        self._alive: dict[Model, _Holding] = {}
        self._endings: set[asyncio.Future[Any]] = set()
        """Models that finish their last requests, or are being closed."""

    def add(self, model: Model, plan: LoadPlan, loaded: LoadedModel) -> None:
        """Take a new model in; ``retire`` is its only way out."""
        self._alive[model] = _Holding(plan, weakref.ref(loaded))

    def uses(self, directory: ModelDirectory) -> bool:
        """Whether a model needs this directory."""
        return any(holding.plan.source.directory is directory for holding in self._alive.values())

    @property
    def num_in_flight(self) -> int:
        """Requests accepted and not yet answered, over all models."""
        return sum(model.num_in_flight for model in self._alive)

    @property
    def num_sequences(self) -> int:
        """Sequences that have begun and are not over, over all models."""
        return sum(model.num_sequences for model in self._alive)

    def retire(self, model: Model, version_record: VersionRecord | None = None) -> None:
        """Close ``model`` when its requests have been answered; then give its memory back.

        ``version_record`` is its own if nothing takes its place: it is UNAVAILABLE in the end.
        """
        users = self._users_of(model) if version_record is not None else None
        if users:
            self._table.lingering[self._alive[model].plan.name, model.version] = model
        self._keep(self._end(model, version_record, users))

    def dispose(self, function: Callable[..., object], *args: object) -> None:
        """Run a blocking ``function`` that gives something back, in the background."""
        self._keep(self._aside(function, *args))

    def abort(self, error: BiremeError) -> None:
        """Answer all that waits with ``error``, and end processes with what runs in them."""
        for model in self._alive:
            model.abort(error, kill=True)

    async def wait_until_closed(self, deadline: float) -> bool:
        """Wait until every model that was retired is closed; whether it came to that before ``deadline`` (loop time)."""
        while self._endings and self._loop.time() < deadline:
            await asyncio.wait(self._endings, timeout=min(1.0, deadline - self._loop.time()))
        return not self._endings

    async def _end(self, model: Model, version_record: VersionRecord | None, users: _Users | None) -> None:
        if users:
            await self._linger(model, users)
        try:
            await model.drain_and_close()
        except Exception:  # a backend's close(): the model is gone for us either way
            log.exception("failed to close '%s' version %d", model.name, model.version)
        plan, loaded = self._alive.pop(model)
        agents = plan.source.agents
        if agents is not None and not self.uses(plan.source.directory):
            await self._end_agents(plan.name, agents)
        del plan, agents
        if version_record is not None:
            log.info("successfully unloaded '%s' version %d", model.name, model.version)
            if version_record.state is VersionState.UNLOADING and version_record.model is model:
                version_record.move(VersionState.UNAVAILABLE, reason=version_record.reason or UNLOADED)
        remains = (weakref.ref(model), loaded)
        del model
        if not self.is_stopping:
            await asyncio.sleep(_LET_GO_S)
            await self._aside(release_memory, *remains)

    async def _end_agents(self, name: str, agents: AgentChain) -> None:
        """Tell the agents of a model that it is gone, after what the load that took its place tells them and its own."""
        record = self._table.records.get(name)
        async with record.lock if record is not None else nullcontext():
            await self._aside(agents.end)

    async def _linger(self, model: Model, users: _Users) -> None:
        """Wait until none of ``users`` has this model alone for one of its steps any more."""
        key = (self._alive[model].plan.name, model.version)
        await asyncio.sleep(0)  # until the table is up to date
        while any(self._table.find(*need) is None for needs in users.values() for need in needs):
            await asyncio.sleep(TICK_S)
            for user in [user for user in users if user not in self._alive]:
                del users[user]
        if self._table.lingering.get(key) is model:
            del self._table.lingering[key]

    def _users_of(self, model: Model) -> _Users:
        """Return the ensembles alive that need what ``model`` can give, each with that. Those to come get another one."""
        name = self._alive[model].plan.name
        gives = {Dependency(name, model.version), Dependency(name)}
        needs = {
            user: gives.intersection(holding.plan.dependencies)
            for user, holding in self._alive.items()
            if holding.plan.source.config.ensemble_scheduling is not None
        }
        return WeakKeyDictionary({user: its_needs for user, its_needs in needs.items() if its_needs})

    def _keep(self, work: Awaitable[object]) -> None:
        task = asyncio.ensure_future(work)
        self._endings.add(task)
        task.add_done_callback(self._forget)

    def _forget(self, task: asyncio.Future[Any]) -> None:
        self._endings.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("failed to close a model", exc_info=error)

    def _aside(self, function: Callable[..., T], *args: object) -> asyncio.Future[T]:
        """Run ``function`` off the loop; not in the loading pool, which a stop may end before the last load."""
        return self._loop.run_in_executor(None, function, *args)

    def describe_busy(self) -> str:
        """Return, for people, what requests are in flight where."""
        busy = [model for model in self._alive if model.num_in_flight]
        counts = ", ".join(f"'{model.name}' version {model.version}: {model.num_in_flight}" for model in busy)
        sequences = f", {self.num_sequences} sequences that are not over" if self.num_sequences else ""
        return f"{len(busy)} model versions that have in-flight inferences{f' ({counts})' if counts else ''}{sequences}"

    def __len__(self) -> int:
        return len(self._alive)

    def __repr__(self) -> str:
        return f"LiveModels({list(self._alive)}, {len(self._endings)} ending)"
