"""Lifecycle: loads, swaps and unloads models while others serve.

Reading, loading and warming run on a pool of loading threads; every change of what serves is one plain function on the
loop thread, so a request sees the old model or the new one and never neither. Loads and unloads of one model take
turns, those of different models run in parallel. A load that fails changes nothing that serves.

A version that is no longer wanted finishes its requests first, then its instances are closed and its memory goes back
to the system.

Source: Triton ``model_repository_manager.cc``, ``model_lifecycle.cc``. Where a first load finds one version good and
another broken, the good one serves (Triton unloads it again).
"""

from __future__ import annotations

import asyncio
import logging
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar

from bireme.backends.interface import Backend, LoadedModel
from bireme.engine.load_plan import LoadOverride, LoadPlan, NotInRepository, plan_load
from bireme.engine.loading import PreparedModel
from bireme.engine.memory import release_memory
from bireme.engine.model import Model
from bireme.engine.model_host import ModelHost
from bireme.engine.model_state import UNLOADED, ModelRecord, VersionRecord, VersionState
from bireme.engine.model_table import DUPLICATE, ModelTable, suggest
from bireme.engine.options import ServerOptions
from bireme.engine.timer import DeadlineTimer
from bireme.engine.version_loader import VersionLoader
from bireme.repository import Catalogue, ConfigRules, ModelDirectory, check_model_name
from bireme.telemetry import ServerMetrics
from bireme.types import BiremeError, Internal, InvalidArgument, Unavailable

log = logging.getLogger("bireme.engine")

T = TypeVar("T")

NO_OVERRIDE = LoadOverride()

# Closing an idle model takes milliseconds; it gets this long even when the caller allows no time for requests.
_CLOSE_GRACE_S = 1.0
_DRAIN_TICK_S = 0.01
# The thread that has closed a model still refers to it for a moment after it has said so.
_LET_GO_S = 0.02


class _Holding(NamedTuple):
    """What belongs to a model that is not closed yet."""

    directory: ModelDirectory
    """Must stay as long as the model."""
    loaded: weakref.ref[LoadedModel]
    """The backend's side of it: gone when the model's memory is free."""


class Lifecycle:
    """All models of one running server. Loop thread only, except where a method says otherwise."""

    def __init__(
        self,
        catalogue: Catalogue,
        options: ServerOptions,
        *,
        backends: Mapping[str, Backend],
        metrics: ServerMetrics,
        host: ModelHost,
    ) -> None:
        self.catalogue = catalogue
        self.table = ModelTable()
        self._options = options
        self._rules = ConfigRules(options.model_config_name, not options.disable_auto_complete_config)
        host.lifecycle = self
        self._loader = VersionLoader(options, backends, host)
        self._metrics = metrics
        self._loop = loop = host.loop
        self._timer = DeadlineTimer(loop)
        self._pool = ThreadPoolExecutor(options.model_load_thread_count, thread_name_prefix="bireme-load")
        self._alive: dict[Model, _Holding] = {}
        """Every model that is not closed yet."""
        self._loads: set[asyncio.Task[None]] = set()
        self._retirements: set[asyncio.Future[Any]] = set()
        """Models that finish their last requests, or are being closed."""
        self._is_closing = False

    # Loading.

    async def load(self, name: str, override: LoadOverride = NO_OVERRIDE) -> None:
        """Load or reload a model; return when it serves. A load goes on even if its caller is cancelled.

        Raises:
            InvalidArgument: the name or the config is wrong, or a version failed: names it and the reason.
            Internal: the model is in no repository, or in several.
            Unavailable: the server is stopping.
        """
        check_model_name(name)
        if self._is_closing:
            raise Unavailable(f"failed to load '{name}': the server is stopping")
        task = self._loop.create_task(self._load(name, override))
        self._loads.add(task)
        task.add_done_callback(self._end_load)
        await asyncio.shield(task)

    def _end_load(self, task: asyncio.Task[None]) -> None:
        self._loads.discard(task)
        if not task.cancelled():
            task.exception()  # it is in the log and in the index, should the caller have gone

    async def load_all(self, names: Iterable[str]) -> dict[str, BiremeError]:
        """Load several models in parallel and return those that failed, each with its reason."""
        wanted = list(names)
        results = await asyncio.gather(*map(self.load, wanted), return_exceptions=True)
        failures: dict[str, BiremeError] = {}
        for name, result in zip(wanted, results, strict=True):
            if isinstance(result, BiremeError):
                failures[name] = result
            elif result is not None:
                raise result
        return failures

    async def _load(self, name: str, override: LoadOverride) -> None:
        async with self._exclusive(name) as record:
            if self._is_closing:
                raise Unavailable(f"failed to load '{name}': the server is stopping")
            plan = await self._plan(record, override)
            if plan is None or not plan.to_load:
                self._finish_load(record, plan, {})
                return
            for version in plan.to_load:
                version_record = record.versions.setdefault(version, VersionRecord())
                if not version_record.is_ready:
                    version_record.move(VersionState.LOADING)
            log.info("loading: %s:%s", name, ",".join(map(str, plan.to_load)))
            outcomes = await asyncio.gather(
                *(self._in_pool(self._loader.load, plan, version) for version in plan.to_load)
            )
            models, errors = self._make_models(plan, dict(zip(plan.to_load, outcomes, strict=True)))
            if errors:
                raise self._fail_load(record, plan, models, errors)
            self._finish_load(record, plan, models)

    @asynccontextmanager
    async def _exclusive(self, name: str) -> AsyncIterator[ModelRecord]:
        """Give the record of ``name`` to one user at a time; one that stays blank leaves no trace."""
        record = self.table.records.setdefault(name, ModelRecord(name))
        record.num_users += 1
        try:
            async with record.lock:
                yield record
        finally:
            record.num_users -= 1
            if not record.num_users and not record.is_known:
                self.table.records.pop(name, None)

    async def _plan(self, record: ModelRecord, override: LoadOverride) -> LoadPlan | None:
        """Read the directory and the config; why that failed, if it did, is remembered.

        An unknown name is only answered: it becomes no model by being asked for.
        """
        outcome = await self._in_pool(self._plan_blocking, record, override, frozenset(record.ready_versions))
        if not isinstance(outcome, BiremeError):
            return outcome
        if isinstance(outcome, NotInRepository):
            log.error("%s", outcome.message)
            raise outcome
        self._note_failure(record, outcome.message)
        raise InvalidArgument(f"load failed for model '{record.name}': {outcome.message}\n") from outcome

    def _plan_blocking(
        self, record: ModelRecord, override: LoadOverride, ready: frozenset[int]
    ) -> LoadPlan | BiremeError | None:
        name = record.name
        try:
            return plan_load(
                name,
                override,
                catalogue=self.catalogue,
                rules=self._rules,
                loaded=record.source,
                ready=ready,
                retry=record.has_failed,
            )
        except NotInRepository as error:
            # A name that is there twice is no hint at itself.
            others = [other for other in self.catalogue.list_names() if other != name]
            return NotInRepository(name, error.why + suggest(name, others))
        except BiremeError as error:
            return error
        except Exception as error:
            log.exception("failed to read model '%s'", name)
            return Internal(f"{type(error).__name__}: {error}")

    def _make_models(
        self, plan: LoadPlan, outcomes: Mapping[int, PreparedModel | BiremeError]
    ) -> tuple[dict[int, Model], dict[int, BiremeError]]:
        """Make a model of every version that was prepared; return them and the errors of the others."""
        models: dict[int, Model] = {}
        errors: dict[int, BiremeError] = {}
        for version, outcome in outcomes.items():
            if isinstance(outcome, BiremeError):
                errors[version] = outcome
                continue
            try:
                if self._is_closing:
                    raise Unavailable("the server is stopping")
                statistics = self._metrics.new_statistics(plan.name, version, outcome.config)
                statistics.load_duration_ns = outcome.load_duration_ns
                model = Model(outcome, loop=self._loop, timer=self._timer, statistics=statistics)
            except Exception as error:
                if not isinstance(error, BiremeError):
                    log.exception("failed to start '%s' version %d", plan.name, version)
                    error = Internal(f"{type(error).__name__}: {error}")
                errors[version] = error
                self._keep_retiring(self._aside(outcome.close))
                continue
            models[version] = model
            self._alive[model] = _Holding(plan.source.directory, weakref.ref(outcome.loaded))
        return models, errors

    def _finish_load(self, record: ModelRecord, plan: LoadPlan | None, models: Mapping[int, Model]) -> None:
        """Let the new models serve, then retire what they replace and what the version policy dropped."""
        record.has_failed = False
        record.reason = ""
        wanted = record.ready_versions if plan is None else plan.versions
        replaced = [self._serve(record.versions[version], model) for version, model in models.items()]
        for version, version_record in list(record.versions.items()):
            if version in wanted:
                version_record.reason = ""
            elif version_record.is_ready:
                self._start_unloading(version_record)
            elif version_record.reason != UNLOADED and version_record.state is VersionState.UNAVAILABLE:
                del record.versions[version]  # it had failed, and nobody wants it any more
        if plan is not None:
            record.source = plan.source
            for version in plan.kept:
                kept = record.ready_versions[version]
                kept.config = replace(kept.config, version_policy=plan.source.config.version_policy)
        self.table.publish(record)
        for model in filter(None, replaced):
            self._retire(model)
        for version, model in models.items():
            seconds = model.statistics.load_duration_ns / 1e9
            log.info("successfully loaded '%s' version %d in %.2f s", record.name, version, seconds)

    def _fail_load(
        self,
        record: ModelRecord,
        plan: LoadPlan,
        models: Mapping[int, Model],
        errors: Mapping[int, BiremeError],
    ) -> BiremeError:
        """Leave what serves as it is; where nothing serves yet, let the good versions. Return what to answer."""
        record.has_failed = True
        was_serving = bool(record.ready_versions)
        for version, model in models.items():
            version_record = record.versions[version]
            if not was_serving:
                self._serve(version_record, model)
                continue
            if not version_record.is_ready:
                version_record.move(VersionState.UNAVAILABLE, reason=UNLOADED)
            self._retire(model)
        if models and not was_serving:
            record.source = plan.source
        for version, error in errors.items():
            log.error("failed to load '%s' version %d: %s", record.name, version, error.message)
            version_record = record.versions[version]
            if version_record.is_ready:
                version_record.reason = _still_serving(error.message)
            else:
                version_record.move(VersionState.UNAVAILABLE, reason=error.message)
        self.table.publish(record)
        directory = plan.source.directory
        if all(holding.directory is not directory for holding in self._alive.values()):
            self._keep_retiring(self._aside(_clear_up, directory))
        clauses = "".join(
            f"version {version} is at UNAVAILABLE state: {error.message};"
            for version, error in errors.items()
        )
        return InvalidArgument(f"load failed for model '{record.name}': {clauses}\n")

    def _note_failure(self, record: ModelRecord, reason: str) -> None:
        """Remember a load that failed before any version was tried."""
        log.error("failed to load '%s': %s", record.name, reason)
        record.has_failed = True
        record.reason = reason
        for version_record in record.versions.values():
            if version_record.is_ready:
                version_record.reason = _still_serving(reason)
            elif version_record.state is VersionState.UNAVAILABLE:
                version_record.reason = reason

    def mark_duplicate(self, name: str, locations: Iterable[str]) -> BiremeError:
        """Remember that ``name`` cannot be loaded because several repositories have it; return the error."""
        record = self.table.records.setdefault(name, ModelRecord(name))
        self._note_failure(record, f"{DUPLICATE}: {', '.join(locations)}")
        return NotInRepository(name, record.reason)

    # Unloading.

    async def unload(self, name: str) -> None:
        """Unload a model; return when it can no longer be selected. Its requests in flight finish on their own.

        A model that is not loaded, or not known, is no error.
        """
        async with self._exclusive(name) as record:
            self._unload(record)

    def _unload(self, record: ModelRecord) -> None:
        record.source = None
        record.has_failed = False
        record.reason = ""
        for version_record in record.versions.values():
            if version_record.is_ready:
                self._start_unloading(version_record)
            elif version_record.state is VersionState.UNAVAILABLE:
                version_record.reason = UNLOADED
        self.table.publish(record)

    def _serve(self, version_record: VersionRecord, model: Model) -> Model | None:
        """Let ``model`` answer for its version; return the model that it replaces."""
        replaced = version_record.model if version_record.is_ready else None
        if replaced is not None and _shows_the_same(replaced, model):
            # The version never stopped serving, so its counters go on.
            replaced.statistics.load_duration_ns = model.statistics.load_duration_ns
            model.adopt_statistics(replaced.statistics)
        else:
            if replaced is not None:
                self._metrics.remove_model(replaced.statistics)
            self._metrics.add_model(model.statistics)
        version_record.move(VersionState.READY, model=model)
        return replaced

    def _start_unloading(self, version_record: VersionRecord) -> None:
        model = version_record.model
        assert model is not None
        version_record.move(VersionState.UNLOADING, model=model)
        self._metrics.remove_model(model.statistics)
        self._retire(model, version_record)

    def _retire(self, model: Model, version_record: VersionRecord | None = None) -> None:
        self._keep_retiring(self._drain(model, version_record))

    async def _drain(self, model: Model, version_record: VersionRecord | None) -> None:
        """Close ``model`` when its requests have been answered; then give its memory back."""
        try:
            await model.drain_and_close()
        except Exception:  # a backend's close(): the model is gone for us either way
            log.exception("failed to close '%s' version %d", model.name, model.version)
        loaded = self._alive.pop(model).loaded
        if version_record is not None:
            log.info("successfully unloaded '%s' version %d", model.name, model.version)
            if version_record.state is VersionState.UNLOADING and version_record.model is model:
                version_record.move(VersionState.UNAVAILABLE, reason=UNLOADED)
        remains = (weakref.ref(model), loaded)
        del model
        if not self._is_closing:
            await asyncio.sleep(_LET_GO_S)
            await self._aside(release_memory, *remains)

    @property
    def num_in_flight(self) -> int:
        """Requests accepted and not yet answered, over all models that are not closed."""
        return sum(model.num_in_flight for model in self._alive)

    # Closing.

    async def close(self, timeout_s: float) -> bool:
        """Finish loads and requests within ``timeout_s``, then close every model; whether all of it was done.

        What still waits when the time is over is answered Unavailable. Models still accept requests from other
        models meanwhile: a caller needs its callees.
        """
        self._is_closing = True
        deadline = self._loop.time() + timeout_s
        is_idle = await self._wait_until_idle(deadline)
        if not is_idle:
            for model in self._alive:
                model.abort(
                    Unavailable("Server is stopping: the exit timeout expired before the request could run"),
                    kill=True,
                )
        for record in list(self.table.records.values()):
            self._unload(record)
        is_closed = await self._wait_until_closed(max(deadline, self._loop.time() + _CLOSE_GRACE_S))
        self._pool.shutdown(wait=False, cancel_futures=True)
        if is_closed:
            self._timer.close()
        else:
            log.error("Exit timeout expired. Exiting immediately: %s", self._unfinished())
        return is_idle and is_closed

    async def _wait_until_idle(self, deadline: float) -> bool:
        """Wait until no load runs and no request is in flight; say every second what is left."""
        next_report = self._loop.time()
        while self._loads or self.num_in_flight:
            now = self._loop.time()
            if now >= next_report:
                log.info("Timeout %d: Found %s", round(max(0.0, deadline - now)), self._unfinished())
                next_report = now + 1.0
            if now >= deadline:
                return False
            await asyncio.sleep(_DRAIN_TICK_S)
        return True

    async def _wait_until_closed(self, deadline: float) -> bool:
        while self._retirements and self._loop.time() < deadline:
            await asyncio.wait(self._retirements, timeout=min(1.0, deadline - self._loop.time()))
        return not self._retirements and not self._loads

    def _unfinished(self) -> str:
        busy = [model for model in self._alive if model.num_in_flight]
        counts = ", ".join(f"'{model.name}' version {model.version}: {model.num_in_flight}" for model in busy)
        return (
            f"{len(busy)} model versions that have in-flight inferences{f' ({counts})' if counts else ''}, "
            f"{len(self._loads)} loads at work, {len(self._alive)} live models"
        )

    def _keep_retiring(self, work: Awaitable[object]) -> None:
        task = asyncio.ensure_future(work)
        self._retirements.add(task)
        task.add_done_callback(self._end_retirement)

    def _end_retirement(self, task: asyncio.Future[Any]) -> None:
        self._retirements.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("failed to close a model", exc_info=error)

    def _aside(self, function: Callable[..., T], *args: object) -> asyncio.Future[T]:
        """Run ``function`` off the loop; not in the loading pool, which a stop may end before the last load."""
        return self._loop.run_in_executor(None, function, *args)

    def _in_pool(self, function: Callable[..., T], *args: object) -> asyncio.Future[T]:
        return self._loop.run_in_executor(self._pool, function, *args)


def _clear_up(directory: ModelDirectory) -> None:
    """Remove what a failed load brought along, and what its backend left behind."""
    directory.close()
    release_memory()


def _still_serving(reason: str) -> str:
    return f"the last load failed, what was loaded before keeps serving: {reason}"


def _shows_the_same(old: Model, new: Model) -> bool:
    """Whether both have the same metric labels and buckets."""
    return (old.config.metric_tags, old.config.model_metrics, old.max_batch_size) == (
        new.config.metric_tags,
        new.config.model_metrics,
        new.max_batch_size,
    )
