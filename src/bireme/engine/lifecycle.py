"""Lifecycle: loads, swaps and unloads models while others serve.

Reading, loading and warming run on a pool of loading threads; every change of what serves is one plain function on the
loop thread, so a request sees the old model or the new one and never neither. Loads and unloads of one model take
turns, those of different models run in parallel. A load that fails changes nothing that serves.

An ensemble loads after its composing models, and it follows them: whenever one of them is another than before, the
ensemble is validated again, in turn with its own loads. A load may hold the lock of an ensemble while it waits for loads of
composing models, never the other way round; so nothing waits in a circle.

Source: Triton ``model_repository_manager.cc``, ``model_lifecycle.cc``. Where a first load finds one version good and
another broken, the good one serves (Triton unloads it again).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from bireme.backends.interface import Backend
from bireme.engine.dependencies import DependencyGraph
from bireme.engine.limited_pool import Resources
from bireme.engine.live_models import TICK_S, LiveModels
from bireme.engine.load_plan import LoadOverride, LoadPlan, NotInRepository, NotSettled, plan_load
from bireme.engine.load_round import LoadRound
from bireme.engine.loading import PreparedModel
from bireme.engine.member_labels import MemberLabels
from bireme.engine.model import Model
from bireme.engine.model_host import ModelHost
from bireme.engine.model_state import LoadSource, Members, ModelRecord
from bireme.engine.model_table import DUPLICATE, ModelTable, suggest
from bireme.engine.options import ModelControlMode, RateLimit, ServerOptions
from bireme.engine.response_cache.model_caches import attach_cache, open_caches
from bireme.engine.sequence_model import make_model
from bireme.engine.timer import DeadlineTimer
from bireme.engine.transitions import Transitions
from bireme.engine.version_loader import VersionLoader
from bireme.ipc.gpus import num_gpus
from bireme.repository import Catalogue, ConfigRules, check_model_name, name_of, namespace_of
from bireme.repository.agents import AgentRegistry
from bireme.telemetry import ServerMetrics
from bireme.types import BiremeError, Internal, InvalidArgument, Unavailable

log = logging.getLogger("bireme.engine")

T = TypeVar("T")

NO_OVERRIDE = LoadOverride()

# Closing an idle model takes milliseconds; it gets this long even when the caller allows no time for requests.
_CLOSE_GRACE_S = 1.0


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
        self.table = ModelTable(has_namespaces=catalogue.has_namespaces)
        self._options = options
        self.rules = ConfigRules(
            options.model_config_name, not options.disable_auto_complete_config, num_gpus()
        )
        self._agents = AgentRegistry(options.repoagent_directory)
        host.lifecycle = self
        self._loader = VersionLoader(options, backends, host)
        self.metrics = metrics
        self._caches = open_caches(options, metrics)
        self._loop = loop = host.loop
        self.timer = DeadlineTimer(loop)
        self._resources = (
            None if options.rate_limit == RateLimit.OFF else Resources(options.rate_limit_resource)
        )
        self._pool = ThreadPoolExecutor(options.model_load_thread_count, thread_name_prefix="bireme-load")
        self._live = LiveModels(loop, self.table)
        self._graph = DependencyGraph()
        self._transitions = Transitions(self.table, self._live, self._graph, metrics)
        # Polling brings every model by itself, once its files have stopped changing.
        self._fetches_members = options.model_control_mode != ModelControlMode.POLL
        self._work: set[asyncio.Task[Any]] = set()
        """Loads, and what follows from them."""
        self._rounds: set[LoadRound] = set()
        """Loads that are at work."""
        self._is_closing = False

    # Loading.

    async def load(self, name: str, override: LoadOverride = NO_OVERRIDE) -> None:
        """Load or reload a model; return when it serves, and the ensembles that consist of it as far as they fit.

        A load goes on even if its caller is cancelled.

        Raises:
            InvalidArgument: the name or the config is wrong, or a version failed: names it and the reason.
            Internal: the model is in no repository, or in several.
            Unavailable: the server is stopping.
        """
        self.catalogue.check_name(name)
        keys = await self._in_pool(self.catalogue.keys_of, name) if self.catalogue.has_namespaces else [name]
        together = LoadRound(self.catalogue.listed())
        failures = await self._load_together(dict.fromkeys(keys, override), together)
        if len(failures) > 1:
            raise InvalidArgument("".join(error.message for error in failures.values()))
        for error in failures.values():
            raise error

    async def load_all(
        self, names: Iterable[str], together: LoadRound | None = None
    ) -> dict[str, BiremeError]:
        """Load several models, given by their keys, in parallel and return those that failed, each with its reason.

        ``together`` has the look at the repositories that the names come from, if there was one.
        """
        together = together or LoadRound(self.catalogue.listed())
        return await self._load_together(dict.fromkeys(names, NO_OVERRIDE), together)

    async def _load_together(
        self, wanted: Mapping[str, LoadOverride], together: LoadRound
    ) -> dict[str, BiremeError]:
        loads = {name: self._begin_load(name, override, together) for name, override in wanted.items()}
        failures: dict[str, BiremeError] = {}
        if loads:
            await asyncio.wait(loads.values())
        while together.follow_ups:
            await asyncio.wait([together.follow_ups.pop()])
        for name, load in loads.items():
            error = load.exception()
            if isinstance(error, BiremeError):
                failures[name] = error
            elif error is not None:
                raise error
        return failures

    def _begin_load(
        self, name: str, override: LoadOverride, together: LoadRound, *, is_explicit: bool = True
    ) -> asyncio.Task[None]:
        task = self._begin(self._load(name, override, together, is_explicit=is_explicit))
        together.loads[name] = task
        together.pending.add(name)
        together.blind.add(name)
        self._rounds.add(together)
        return task

    async def _load(
        self, name: str, override: LoadOverride, together: LoadRound, *, is_explicit: bool
    ) -> None:
        try:
            check_model_name(name_of(name) if self.catalogue.has_namespaces else name)
            async with self._exclusive(name) as record:
                if self._is_closing:
                    raise Unavailable(f"failed to load '{name}': the server is stopping")
                record.is_explicit |= is_explicit
                plan = await self._plan(record, override, together)
                if plan is None or not plan.to_load:
                    self._transitions.finish_load(record, plan, record.members, {})
                    return
                error = await self._execute(record, plan, together)
                if error is not None:
                    raise error
        finally:
            together.pending.discard(name)
            together.blind.discard(name)
            if not together.pending:
                self._rounds.discard(together)
            together.follow_ups.append(self._begin(self._follow(name, together)))

    async def _execute(
        self, record: ModelRecord, plan: LoadPlan, together: LoadRound | None = None
    ) -> BiremeError | None:
        """Load what ``plan`` says; return what to answer if that fails. With ``together``, composing models first."""
        if together is not None:
            self._transitions.start_load(record, plan)
        members, problem = await self._gather_members(plan, together)
        outcomes: list[PreparedModel | BiremeError] = [problem] * len(plan.to_load) if problem else []
        if not problem:
            if plan.dependencies:  # it may have been given up while its composing models loaded
                self._transitions.start_load(record, plan)
            outcomes = await asyncio.gather(
                *(self._in_pool(self._loader.load, plan, version) for version in plan.to_load)
            )
        models, errors = self._make_models(plan, dict(zip(plan.to_load, outcomes, strict=True)))
        before, error = record.source, None
        if errors:
            error = self._transitions.fail_load(record, plan, members, models, errors)
        else:
            self._transitions.finish_load(record, plan, members, models)
        await self._tell_agents(plan.source, before, record.source)
        return error

    async def _tell_agents(
        self, loaded: LoadSource, before: LoadSource | None, now: LoadSource | None
    ) -> None:
        """Tell the repository agents of a load what has become of it, and those of the one whose place it has taken."""
        if loaded.agents is not None:
            await self._in_pool(loaded.agents.complete if loaded is now else loaded.agents.fail)
        if before is not None and before is not now and before.agents is not None:
            await self._in_pool(before.agents.unload)

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

    async def _plan(
        self, record: ModelRecord, override: LoadOverride, together: LoadRound
    ) -> LoadPlan | None:
        """Read the directory and the config; why that failed, if it did, is remembered.

        An unknown name is only answered: it becomes no model by being asked for.
        """
        ready = frozenset(record.ready_versions)
        outcome = await self._in_pool(self._plan_blocking, record, override, together, ready)
        if not isinstance(outcome, BiremeError):
            return outcome
        if isinstance(outcome, NotSettled):
            log.info("%s", outcome.message)
            raise outcome
        if isinstance(outcome, NotInRepository):
            log.error("%s", outcome.message)
            raise outcome
        self._transitions.note_failure(record, outcome.message)
        raise InvalidArgument(f"load failed for model '{record.name}': {outcome.message}\n") from outcome

    def _plan_blocking(
        self, record: ModelRecord, override: LoadOverride, together: LoadRound, ready: frozenset[int]
    ) -> LoadPlan | BiremeError | None:
        name = record.name
        try:
            return plan_load(
                name,
                override,
                catalogue=together.catalogue,
                rules=self.rules,
                loaded=record.source,
                ready=ready,
                retry=record.has_failed,
                agents=self._agents,
                expected=together.expected.get(name),
            )
        except NotInRepository as error:
            # A name that is there twice is no hint at itself.
            others = [other for other in together.catalogue.list_names() if other != name]
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
                statistics = self.metrics.new_statistics(
                    plan.model_name, version, outcome.config, namespace=namespace_of(plan.name)
                )
                statistics.load_duration_ns = outcome.load_duration_ns
                if outcome.config.ensemble_scheduling is not None:
                    outcome.labels = MemberLabels(outcome.config, outcome.labels, self.table)
                model = make_model(
                    outcome,
                    loop=self._loop,
                    timer=self.timer,
                    statistics=statistics,
                    resources=self._resources,
                )
                attach_cache(self._caches, model, plan, self.table.find)
            except Exception as error:
                if not isinstance(error, BiremeError):
                    log.exception("failed to start '%s' version %d", plan.name, version)
                    error = Internal(f"{type(error).__name__}: {error}")
                errors[version] = error
                self._live.dispose(outcome.close)
                continue
            models[version] = model
            self._live.add(model, plan, outcome.loaded)
        return models, errors

    def users_of(self, name: str) -> list[str]:
        """Return the ensembles that consist of ``name``, among others."""
        return self._graph.users_of(name)

    def mark_duplicate(self, name: str, locations: Iterable[str]) -> BiremeError:
        """Remember that ``name`` cannot be loaded because several repositories have it; return the error."""
        record = self.table.records.setdefault(name, ModelRecord(name))
        self._transitions.note_failure(record, f"{DUPLICATE}: {', '.join(locations)}")
        return NotInRepository(name, record.reason)

    # Unloading.

    async def unload(self, name: str, *, unload_dependents: bool = False) -> None:
        """Unload a model; return when it can no longer be selected. Its requests in flight finish on their own.

        Ensembles that consist of it are unloaded, too, until it is back. ``unload_dependents``: so are the models that it
        consists of itself, if nobody asked for them and no other ensemble needs them.

        A model that is not loaded, or not known, is no error.
        """
        for record in self.table.records_of(name):
            await self._unload(record.name, unload_dependents=unload_dependents)

    async def _unload(self, name: str, *, unload_dependents: bool) -> None:
        members = self._graph.members_of(name)
        async with self._exclusive(name) as record:
            if record.source is not None and record.source.agents is not None and not self._is_closing:
                await self._in_pool(record.source.agents.unload)
            self._transitions.unload(record)
        await asyncio.wait([self._begin(self._follow(name, LoadRound(self.catalogue)))])
        for member in members if unload_dependents else ():
            its_record = self.table.records.get(member)
            if its_record is not None and not its_record.is_explicit and not self._graph.users_of(member):
                await self._unload(member, unload_dependents=True)

    # Ensembles.

    async def _gather_members(
        self, plan: LoadPlan, together: LoadRound | None
    ) -> tuple[Members, BiremeError | None]:
        """Load the composing models that are missing, if ``together``; return what serves, and why it is not enough."""
        needs = plan.dependencies
        if not needs:
            return {}, None
        names = list(dict.fromkeys(need.name for need in needs))
        # From here on who loads one of them sees this ensemble: of two that need each other, one finds the circle.
        self._graph.assign(plan.name, [*self._graph.members_of(plan.name), *names])
        circle = self._graph.find_cycle(plan.name, names)
        if circle is not None:
            way = " -> ".join(f"'{name}'" for name in circle)
            return dict.fromkeys(needs), InvalidArgument(f"circular dependency between ensembles: {way}")
        failures: dict[str, str] = {}
        if together is not None:
            failures = await self._load_members(names, together)
            together.blind.discard(plan.name)
        members = self.table.look_at(needs)
        missing = [need for need, config in members.items() if config is None]
        return members, self.table.lacking(plan.name, missing, failures) if missing else None

    async def _load_members(self, names: Iterable[str], together: LoadRound) -> dict[str, str]:
        """Wait until these models have been loaded, those without a load that do not serve included; say which failed."""
        for name in names:
            if self._fetches_members and name not in self.table.latest and name not in together.loads:
                self._begin_load(name, NO_OVERRIDE, together, is_explicit=False)
        loads = {name: together.loads[name] for name in names if name in together.loads}
        if loads:
            await asyncio.wait(loads.values())
        return {name: str(error).strip() for name, load in loads.items() if (error := load.exception())}

    async def _follow(self, name: str, together: LoadRound) -> None:
        """Validate again the ensemble ``name`` and all that consist of it, each after those it consists of itself."""
        roots = [name]
        done: set[str] = set()
        while level := self._next_level(roots, done):
            done.update(level)
            users = [user for user in level if self._must_follow(user, together)]
            changes = await asyncio.gather(*(self._begin(self._refresh(user)) for user in users))
            for user, has_changed in zip(users, changes, strict=True):
                if (
                    has_changed
                ):  # with it the graph, so that its own users may have had their turn, or be out of sight
                    done.difference_update(self._graph.users_of(user))
                    roots.append(user)

    def _next_level(self, roots: Iterable[str], done: set[str]) -> list[str]:
        for root in roots:
            for level in [[root], *self._graph.levels_above(root)]:
                if rest := [user for user in level if user not in done]:
                    return rest
        return []

    def _must_follow(self, name: str, together: LoadRound) -> bool:
        """Whether it is time to validate an ensemble again, if it is one."""
        record = self.table.records.get(name)
        if record is None or not (record.members or record.failed):
            return False
        if not together.pending.isdisjoint(self._graph.members_of(name)):
            return False  # the last of its models to be loaded looks after it
        # A load of its own that has yet to look at its models sees them as they are now; what it needs until then lingers.
        # Nor may that load be waited for, as it may wait for what leads here: a model that loads others as it starts.
        return all(name not in each.blind for each in self._rounds)

    async def _refresh(self, name: str) -> bool:
        """Let an ensemble become what its composing models now allow: what failed before, else what serves, else nothing.

        Return whether it is another than before.
        """
        async with self._exclusive(name) as record:
            before = record.ready_versions
            await self._revalidate(record)
            return record.ready_versions != before

    async def _revalidate(self, record: ModelRecord) -> None:
        failed = record.failed
        if failed is not None and self.table.has_changed(failed.members) and not self._is_closing:
            await self._execute(record, failed.plan)
            failed = record.failed
        if record.source is None or not self.table.has_changed(record.members) or self._is_closing:
            return
        plan = LoadPlan(record.name, record.source, tuple(record.ready_versions), frozenset())
        error = await self._execute(record, plan)
        if error is not None and record.failed is not None:
            self._transitions.withdraw(record, record.failed.reason)
        if failed is not None:
            self._transitions.fail_again(record, failed)

    # Closing.

    @property
    def num_in_flight(self) -> int:
        """Requests accepted and not yet answered, over all models that are not closed."""
        return self._live.num_in_flight

    async def close(self, timeout_s: float) -> bool:
        """Finish loads and requests within ``timeout_s``, then close every model; whether all of it was done.

        What still waits when the time is over is answered Unavailable. Models still accept requests from other
        models meanwhile: a caller needs its callees.
        """
        self._is_closing = True
        deadline = self._loop.time() + timeout_s
        self._live.is_stopping = True
        is_idle = await self._wait_until_idle(deadline)
        if not is_idle:
            self._live.abort(
                Unavailable("Server is stopping: the exit timeout expired before the request could run")
            )
        for record in list(self.table.records.values()):
            self._transitions.unload(record)
        is_closed = await self._live.wait_until_closed(max(deadline, self._loop.time() + _CLOSE_GRACE_S))
        is_closed = is_closed and not self._work
        self._pool.shutdown(wait=False, cancel_futures=True)
        if is_closed:
            self.timer.close()
            if self._caches is not None:
                await asyncio.to_thread(self._caches.close)
        else:
            log.error("Exit timeout expired. Exiting immediately: %s", self._unfinished())
        return is_idle and is_closed

    async def _wait_until_idle(self, deadline: float) -> bool:
        """Wait until no load runs, no request is in flight and no sequence goes on; say every second what is left."""
        next_report = self._loop.time()
        while self._work or self.num_in_flight or self._live.num_sequences:
            now = self._loop.time()
            if now >= next_report:
                log.info("Timeout %d: Found %s", round(max(0.0, deadline - now)), self._unfinished())
                next_report = now + 1.0
            if now >= deadline:
                return False
            await asyncio.sleep(TICK_S)
        return True

    def _unfinished(self) -> str:
        return f"{self._live.describe_busy()}, {len(self._work)} loads at work, {len(self._live)} live models"

    def _begin(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Begin something that goes on whoever waits for it or no longer does."""
        task = self._loop.create_task(work)
        self._work.add(task)
        task.add_done_callback(self._end)
        return task

    def _end(self, task: asyncio.Task[Any]) -> None:
        self._work.discard(task)
        error = None if task.cancelled() else task.exception()
        # Other errors are in the log and in the index already, should nobody have waited for them.
        if error is not None and not isinstance(error, BiremeError):
            log.error("a load has ended by a mistake of the server's own", exc_info=error)

    def _in_pool(self, function: Callable[..., T], *args: object) -> asyncio.Future[T]:
        return self._loop.run_in_executor(self._pool, function, *args)
