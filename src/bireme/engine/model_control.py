"""ModelControl: the control modes — what is loaded at start, and what the repositories' changes lead to.

    none      everything at start, then nothing changes
    poll      everything at start, then what has changed in the repositories, once it has stopped changing
    explicit  what `Server.load_model` and `unload_model` say
    ondemand  each model at its first request (`bireme.engine.on_demand`)

Source: Triton ``model_repository_manager.cc`` (``Create``, ``PollAndUpdateInternal``).
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import Coroutine, Iterable
from typing import Any

from bireme.engine.lifecycle import Lifecycle
from bireme.engine.load_plan import NotSettled
from bireme.engine.load_round import LoadRound
from bireme.engine.on_demand import OnDemand
from bireme.engine.on_demand_metrics import OnDemandMetrics
from bireme.engine.options import ModelControlMode, ServerOptions
from bireme.repository import Catalogue, PollTracker, Snapshot
from bireme.types import BiremeError

log = logging.getLogger("bireme.engine")

# At start, files changed within this time may still be on their way in: then there is a second look before loading.
_SETTLE_S = 1.0


class ModelControl:
    """Drives a `Lifecycle` as the control mode says. Loop thread only."""

    def __init__(self, lifecycle: Lifecycle, options: ServerOptions) -> None:
        self._lifecycle = lifecycle
        self._catalogue = lifecycle.catalogue
        self._mode = ModelControlMode(options.model_control_mode)
        self._load_model = options.load_model
        self._period_s = options.repository_poll_secs
        self._tracker = PollTracker()
        self._polling: asyncio.Task[None] | None = None
        self._actions: set[asyncio.Task[Any]] = set()
        self.on_demand: OnDemand | None = None
        """Loads models when they are asked for; None: nobody does."""
        if self._mode is ModelControlMode.ONDEMAND:
            counts = OnDemandMetrics.of(lifecycle.metrics.registry)
            self.on_demand = OnDemand(lifecycle, options.on_demand, counts)

    async def load_initial(self) -> dict[str, BiremeError]:
        """Load what the mode wants at start; return the models that failed, each with its reason.

        Models load in parallel, and one that fails does not stop the others.
        """
        if self._mode is ModelControlMode.POLL:
            return await self._load_polled()
        if self._mode in (ModelControlMode.EXPLICIT, ModelControlMode.ONDEMAND) and self._load_model != (
            "*",
        ):
            keys = [await asyncio.to_thread(self._catalogue.keys_of, name) for name in self._load_model]
            return await self._lifecycle.load_all(dict.fromkeys(itertools.chain.from_iterable(keys)))
        look = self._catalogue.listed(whole=True)
        names = await asyncio.to_thread(look.list_names)
        if not names:
            where = ", ".join(f"'{storage.location}'" for storage in self._catalogue.storages)
            log.warning("no models in %s: a model is a directory such as NAME/1/model.onnx", where)
        failures = {
            name: self._lifecycle.mark_duplicate(name, [storage.location for storage in storages])
            for name, storages in names.items()
            if len(storages) > 1
        }
        wanted = [name for name in names if name not in failures]
        return failures | await self._lifecycle.load_all(wanted, LoadRound(look))

    def start_polling(self) -> None:
        """Watch the repositories from now on, or what is used, if the mode says so."""
        if self.on_demand is not None:
            self.on_demand.start()
        if self._mode is ModelControlMode.POLL and self._period_s > 0:
            self._polling = asyncio.get_running_loop().create_task(self._poll_forever())

    async def stop_polling(self) -> None:
        """Watch no longer. Loads that polling has begun go on."""
        if self.on_demand is not None:
            await self.on_demand.stop()
        if self._polling is not None:
            self._polling.cancel()
            await asyncio.wait([self._polling])
            self._polling = None

    async def poll(self) -> None:
        """Look at the repositories once and begin what has to be done; it goes on in the background."""
        look = self._catalogue.listed(whole=True)
        snapshot = await asyncio.to_thread(look.take_snapshot)
        changes = self._tracker.observe(snapshot)
        wanted = (*changes.added, *changes.modified)
        loads = self._begin(self._load(wanted, look, snapshot))
        for name in changes.deleted:
            # An ensemble that changes at the same time may need it no more.
            is_in_use = not set(wanted).isdisjoint(self._lifecycle.users_of(name))
            self._begin(self._unload(name, snapshot, loads if is_in_use else None))

    async def wait_for_actions(self) -> None:
        """Wait until everything that polls have begun has ended."""
        while self._actions:
            await asyncio.wait(self._actions)

    async def _load_polled(self) -> dict[str, BiremeError]:
        """Take the two looks that a load needs, the second one at once for files that have long been there."""
        look = self._catalogue.listed(whole=True)
        snapshot = await asyncio.to_thread(look.take_snapshot)
        self._tracker.observe(snapshot)
        if _is_fresh(snapshot):
            await asyncio.sleep(min(_SETTLE_S, self._period_s or _SETTLE_S))
            look = self._catalogue.listed(whole=True)
            snapshot = await asyncio.to_thread(look.take_snapshot)
        changes = self._tracker.observe(snapshot)
        failures = {
            name: self._lifecycle.mark_duplicate(name, locations)
            for name, locations in snapshot.duplicates.items()
        }
        return failures | await self._load(changes.added, look, snapshot)

    async def _poll_forever(self) -> None:
        while True:
            await asyncio.sleep(self._period_s)
            try:
                await self.poll()
            except Exception:  # one bad look must not be the last one
                log.exception("failed to poll the model repositories")

    async def _load(
        self, names: Iterable[str], look: Catalogue, snapshot: Snapshot
    ) -> dict[str, BiremeError]:
        """Load what has settled, as far as it is still as ``snapshot`` has it; return what failed: that is tried again."""
        failures = await self._lifecycle.load_all(names, LoadRound(look, snapshot.models))
        for name in names:
            if name in failures:  # the reason is in the log and in the index
                self._tracker.mark_failed(name)
            else:
                self._tracker.mark_loaded(name)
        return {name: error for name, error in failures.items() if not isinstance(error, NotSettled)}

    async def _unload(self, name: str, snapshot: Snapshot, loads: asyncio.Task[Any] | None) -> None:
        if loads is not None:
            await asyncio.wait([loads])
        await self._lifecycle.unload(name)
        if name in snapshot.duplicates:
            self._lifecycle.mark_duplicate(name, snapshot.duplicates[name])

    def _begin(self, action: Coroutine[Any, Any, object]) -> asyncio.Task[Any]:
        task = asyncio.get_running_loop().create_task(action)
        self._actions.add(task)
        task.add_done_callback(self._actions.discard)
        return task


def _is_fresh(snapshot: Snapshot) -> bool:
    newest_ns = max((mark.newest_change_ns for mark in snapshot.models.values()), default=0)
    return time.time_ns() - newest_ns < _SETTLE_S * 1e9
