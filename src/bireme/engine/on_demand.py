"""OnDemand: loads a model when it is first asked for, and unloads what has not been used for a while.

A request for a model that is not loaded waits for the one load that all of them share; afterwards it goes the usual way. A load
that fails answers all of them with its reason, and the next one is only tried after a pause that doubles each time.

What goes when there is too much, by memory or by number, is what was used least recently; never what has a request in flight or a
sequence that goes on, is being loaded, or belongs to an ensemble that is loaded.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from bireme.engine.live_models import TICK_S
from bireme.engine.model_state import UNLOADED, ModelRecord, VersionState
from bireme.engine.model_usage import ModelUsage, is_in_use, measure, pids_of, size_of_files
from bireme.engine.request_deadlines import RequestDeadlines, take_parameters
from bireme.repository import parse_config
from bireme.telemetry import spans
from bireme.types import (
    BiremeError,
    Cancelled,
    DeadlineExceeded,
    InferenceRequest,
    InferenceResponse,
    InvalidArgument,
    NotFound,
    RequestTimedOut,
    Unavailable,
)

if TYPE_CHECKING:
    from bireme.engine.lifecycle import Lifecycle
    from bireme.engine.on_demand_metrics import OnDemandMetrics
    from bireme.engine.options import OnDemandOptions

log = logging.getLogger("bireme.engine")

NOT_LOADED: Final = "not loaded yet"
IDLE: Final = "idle"
BUDGET: Final = "memory budget"
COUNT: Final = "too many models"
_EXCESS: Final = {BUDGET: "the memory budget", COUNT: "the greatest number of models"}
_STOPPING: Final = "Server is stopping"

_FIRST_PAUSE_S: Final = 1.0
_LONGEST_PAUSE_S: Final = 60.0
_SWEEP_S: Final = 1.0
_SWEEPS_A_LISTING: Final = 15
_GONE_S: Final = 30.0
"""How long a load waits for the memory of what it takes the place of."""
_MOST_TRIES: Final = 3
_US: Final = 1000

_now_ns = time.monotonic_ns


@dataclass(slots=True)
class Failure:
    """The last load of a model, which failed."""

    error: BiremeError
    num_failures: int
    retry_ns: int


@dataclass(slots=True, eq=False)
class PendingLoad:
    """A load that is under way, and who waits for it. As the owner of the requests it takes them back."""

    name: str
    demand: OnDemand
    task: asyncio.Task[None]
    requests: dict[InferenceRequest, Callable[[InferenceRequest], None]] = field(default_factory=dict)
    """Each with what takes it when the model is there."""

    def cancel(self, request: InferenceRequest) -> None:
        """As `Model.cancel`."""
        self.demand.refuse(
            self,
            request,
            Cancelled(f"{request.id_prefix}the request was cancelled while its model was loaded"),
        )

    def hold(self, request: InferenceRequest) -> None:
        """There are no responses yet."""

    resume = hold


class OnDemand:
    """The models that a server loads by itself. Loop thread only."""

    def __init__(
        self,
        lifecycle: Lifecycle,
        options: OnDemandOptions,
        metrics: OnDemandMetrics,
        *,
        now_ns: Callable[[], int] = _now_ns,
    ) -> None:
        self._lifecycle = lifecycle
        self._table = lifecycle.table
        self._options = options
        self._metrics = metrics
        self._now_ns = now_ns
        self._pending: dict[str, PendingLoad] = {}
        self._failures: dict[str, Failure] = {}
        self._usage = ModelUsage()
        self._expected: dict[str, int] = {}
        """Memory that loads under way are going to take."""
        self._awaited: Counter[str] = Counter()
        """How many tasks wait for a model: it stays, once it is loaded, until they have come to use it."""
        self._deadlines = RequestDeadlines(lifecycle.timer, 0, self._expire)
        self._sweeping: asyncio.Task[None] | None = None
        self._room = asyncio.Lock()
        self._is_closing = False

    # Who asks.

    def wants(self, name: str) -> bool:
        """Whether a request for the model, which may not even exist, is to wait for a load."""
        return not self._is_closing and name not in self._table.latest

    def take(self, request: InferenceRequest, submit: Callable[[InferenceRequest], None]) -> bool:
        """Keep ``request`` until its model is loaded, then give it to ``submit``; False: there is nothing to wait for.

        Raises:
            Unavailable: the last load failed, a moment ago; says why, and when the next one may be tried.
            InvalidArgument: a parameter that is meant for the server is wrong.
        """
        name = request.model_name
        if not self.wants(name):
            return False
        if request.parent is None and request.parameters is not None:
            take_parameters(request)
        pending = self._begin(name)
        request.owner = pending
        pending.requests[request] = submit
        self._deadlines.watch(request, self._patience_ns(request))
        return True

    async def load(self, name: str, request: InferenceRequest | None = None) -> None:
        """Return when the model is loaded; with ``request``, within its time.

        Raises:
            NotFound: there is no such model.
            Unavailable: it failed to load, or is still being loaded.
            DeadlineExceeded: the time of ``request`` is over.
        """
        if not self.wants(name):
            return
        pending = self._begin(name)
        now_ns = _now_ns()
        until_ns = now_ns + self._options.load_timeout_ns if request is None else self._patience_ns(request)
        self._awaited[name] += 1
        try:
            await asyncio.wait([pending.task], timeout=max(0.0, (until_ns - now_ns) / 1e9))
        finally:
            self._awaited[name] -= 1
            if not self._awaited[name]:
                del self._awaited[name]
        if not pending.task.done():
            # The loop may look some microseconds early.
            raise self._too_late(name, request, until_ns)
        if pending.task.cancelled():
            raise Unavailable(_STOPPING)
        if (error := pending.task.exception()) is not None:
            raise error

    async def load_for(self, name: str, settings: Mapping[str, Any]) -> None:
        """As `load`, for a call with these ``settings`` that cannot become a request before the model's inputs are known."""
        asked = InferenceRequest(
            name,
            {},
            _ignore,
            timeout_us=settings.get("timeout_us", 0),
            parameters=settings.get("parameters"),
        )
        if asked.parameters is not None:
            take_parameters(asked)
        await self.load(name, asked)

    def _patience_ns(self, request: InferenceRequest) -> int:
        """Return until when ``request`` waits."""
        now_ns = _now_ns()
        ends = [now_ns + self._options.load_timeout_ns]
        if request.deadline_ns > 0:
            ends.append(request.deadline_ns)
        if request.timeout_us > 0:
            ends.append(now_ns + request.timeout_us * _US)
        return min(ends)

    def _too_late(self, name: str, request: InferenceRequest | None, until_ns: int = 0) -> BiremeError:
        prefix = request.id_prefix if request is not None else ""
        if request is not None and 0 < request.deadline_ns <= max(until_ns, _now_ns()):
            return DeadlineExceeded(
                f"{prefix}the request's deadline has passed while model '{name}' was loaded"
            )
        return RequestTimedOut(
            f"{prefix}model '{name}' is still being loaded; the same request may succeed later"
        )

    def refuse(self, pending: PendingLoad, request: InferenceRequest, error: BiremeError) -> None:
        """Let ``request`` wait no longer, and answer it with ``error``."""
        if pending.requests.pop(request, None) is None:
            return
        self._deadlines.discard(request)
        request.owner = None
        if request.parent is not None:
            spans.refuse_call(request, error)
        else:
            spans.refuse_request(request, error)
        self._answer(request, error)

    def _answer(self, request: InferenceRequest, error: BiremeError) -> None:
        response = InferenceResponse(request.model_name, request.model_version, request.id, error=error)
        try:
            request.respond(request, response)
        except Exception:
            log.exception("the caller of request '%s' failed to take its response", request.id)

    def _expire(self, request: InferenceRequest) -> None:
        pending: PendingLoad = request.owner
        self.refuse(pending, request, self._too_late(request.model_name, request))

    # Loads.

    def begin(self, name: str) -> None:
        """Begin to load the model unless it is there; `take` or `load` wait for it.

        Raises:
            Unavailable: the last load failed, a moment ago.
        """
        if self.wants(name):
            self._begin(name)

    def _begin(self, name: str) -> PendingLoad:
        """Return the load of a model that is under way, and begin it if there is none."""
        pending = self._pending.get(name)
        if pending is not None:
            return pending
        failure = self._failures.get(name)
        if failure is not None and (left_ns := failure.retry_ns - self._now_ns()) > 0:
            raise Unavailable(
                f"model '{name}' failed to load, the next try is in {left_ns / 1e9:.1f} s: {failure.error.message}"
            )
        task = asyncio.get_running_loop().create_task(self._load(name))
        pending = self._pending[name] = PendingLoad(name, self, task)
        task.add_done_callback(lambda _: self._finish(pending))
        return pending

    async def _load(self, name: str) -> None:
        lifecycle = self._lifecycle
        try:
            storage = await asyncio.to_thread(lifecycle.catalogue.find, name)
        except NotFound as error:
            raise self._table.refusal(name, -1) from error
        except Unavailable as error:
            self._note_failure(name, error)
            raise
        try:
            nbytes = self._usage.expected_nbytes(name)
            if self._options.memory_budget and not nbytes:
                nbytes = await asyncio.to_thread(self._expected_size, storage.check_out(name).path)
            async with self._room:
                self._expected[name] = nbytes
                await self._make_room(name)
            await self._load_now(name)
        except BiremeError as error:
            self._note_failure(name, error)
            raise Unavailable(error.message) from error
        finally:
            self._expected.pop(name, None)
        self._failures.pop(name, None)
        self._metrics.count_load(name)
        async with self._room:  # it may take more than was expected, and an ensemble has brought others along
            await self._make_room(name)

    async def _load_now(self, name: str) -> None:
        for _ in range(_MOST_TRIES - 1):
            try:
                await self._lifecycle.load(name)
            except InvalidArgument as error:
                if f": {UNLOADED}: " not in error.message:
                    raise
                # Somebody has unloaded a composing model meanwhile, which is no failure of the ensemble.
            else:
                return
        await self._lifecycle.load(name)

    def _expected_size(self, model_dir: Path) -> int:
        """Return the size of a model's highest version. Blocking."""
        versions = self._lifecycle.catalogue.list_versions(model_dir).versions
        return size_of_files([model_dir / str(max(versions))]) if versions else 0

    def _note_failure(self, name: str, error: BiremeError) -> None:
        before = self._failures.get(name)
        num_failures = 1 if before is None else before.num_failures + 1
        pause_s = min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2 ** (num_failures - 1))
        self._failures[name] = Failure(error, num_failures, self._now_ns() + int(pause_s * 1e9))
        self._metrics.count_failure(name)

    def _finish(self, pending: PendingLoad) -> None:
        """Give the requests that waited to the model, in order; or answer them with why it is not there."""
        self._pending.pop(pending.name, None)
        task = pending.task
        failed = Unavailable(_STOPPING) if task.cancelled() else task.exception()
        if failed is not None and not isinstance(failed, BiremeError):
            log.error("failed to load model '%s'", pending.name, exc_info=failed)
            failed = Unavailable(f"model '{pending.name}' failed to load; the server's log has the details")
        for request, submit in list(pending.requests.items()):
            if failed is not None:
                self.refuse(pending, request, failed)
                continue
            pending.requests.pop(request)
            self._deadlines.discard(request)
            request.owner = None
            try:
                submit(request)
            except BiremeError as error:
                self._answer(request, error)

    # What is said of models that are not loaded.

    def is_loadable(self, name: str) -> bool:
        """Whether the first request for a model would find it in a repository. A short blocking call.

        Raises:
            Unavailable: its last load failed, and the next request would not try again.
        """
        if not self.wants(name) or not self._lifecycle.catalogue.knows(name):
            return False
        failure = self._failures.get(name)
        if failure is not None and failure.retry_ns > self._now_ns():
            raise Unavailable(f"model '{name}' failed to load: {failure.error.message}")
        return True

    def is_decoupled(self, name: str) -> bool:
        """Whether a model that is not loaded says in its config file that it is decoupled. A short blocking call.

        Of models in an object store nobody can say, before they are loaded.
        """
        catalogue = self._lifecycle.catalogue
        if catalogue.has_remote:
            return False
        try:
            directory = catalogue.find(name).check_out(name)
            config = parse_config(name, directory.path, self._lifecycle.rules).config
        except BiremeError:
            return False
        policy = config.model_transaction_policy
        return policy is not None and policy.decoupled

    # Unloads.

    def start(self) -> None:
        """Look at what is loaded, and unload what has to go, every second from now on."""
        self._sweeping = asyncio.get_running_loop().create_task(self._sweep())

    async def stop(self) -> None:
        """Load nothing more, and answer what waits. The lifecycle ends the loads themselves."""
        self._is_closing = True
        tasks = [pending.task for pending in self._pending.values()]
        if self._sweeping is not None:
            tasks.append(self._sweeping)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        await asyncio.sleep(0)  # what waits is answered when its load has ended
        self._deadlines.close()

    async def _sweep(self) -> None:
        catalogue = self._lifecycle.catalogue
        for num_sweeps in itertools.count(1):
            await asyncio.sleep(_SWEEP_S)
            try:
                await self.sweep()
                if catalogue.has_remote and num_sweeps % _SWEEPS_A_LISTING == 0:
                    await asyncio.to_thread(catalogue.list_names)  # for `Catalogue.knows`
            except Exception:  # one bad look must not be the last one
                log.exception("failed to look for models to unload")

    async def sweep(self) -> None:
        """Unload what has been idle for too long, and what is too much."""
        await self._look()
        idle_ns = self._options.idle_ns
        now_ns = self._now_ns()
        for usage in list(self._usage):
            if idle_ns and now_ns - usage.last_used_ns >= idle_ns and self._may_go(usage.name):
                await self._unload(usage.name, IDLE)
        async with self._room:
            await self._make_room("")

    async def _look(self) -> None:
        """See which models are loaded, when they were used and how large they are."""
        records = self._records()
        now_ns = self._now_ns()
        for record in records:
            self._failures.pop(record.name, None)  # somebody else may have loaded it
            self._usage.observe(record.name, record.ready_versions.values(), now_ns)
        self._usage.keep({record.name for record in records})
        if self._options.memory_budget:
            for record in records:
                await self._measure(record)
            self._metrics.show_memory(self._usage.total_nbytes)

    async def _measure(self, record: ModelRecord) -> None:
        """See how large a model is: its processes, which may grow; without any its files, which are looked at once."""
        models = record.ready_versions
        if record.source is None or not models:
            return
        directory = record.source.directory.path
        pids = pids_of(models.values())
        if pids or not self._usage.is_measured(record.name):
            folders = [directory / str(version) for version in models]
            nbytes = await asyncio.to_thread(measure, folders, pids)
            self._usage.measure(record.name, nbytes)

    def _records(self) -> list[ModelRecord]:
        return [record for record in self._table.records.values() if record.ready_versions]

    def _excess(self) -> str:
        """Return why something has to go, now that all that is being loaded needs room; empty: nothing has."""
        num_loaded = len(self._records()) + len(self._expected.keys() - self._table.latest.keys())
        if self._options.max_models and num_loaded > self._options.max_models:
            return COUNT
        budget = self._options.memory_budget
        nbytes = self._usage.total_nbytes + sum(self._expected.values())
        return BUDGET if budget and nbytes > budget else ""

    async def _make_room(self, name: str) -> None:
        """Unload the least recently used models until there is room, or nothing more that may go."""
        budget = self._options.memory_budget
        nbytes = self._expected.get(name, 0)
        if budget and nbytes > budget:
            raise Unavailable(
                f"model '{name}' takes {nbytes} bytes, more than the whole memory budget of {budget}"
            )
        await self._look()
        while reason := self._excess():
            victim = next((usage.name for usage in self._usage if self._may_go(usage.name)), None)
            if victim is None:
                if name:
                    log.warning(
                        "'%s' is loaded in spite of %s: all other models are in use", name, _EXCESS[reason]
                    )
                return
            await self._unload(victim, reason)

    def _may_go(self, name: str) -> bool:
        record = self._table.records.get(name)
        if record is None or name in self._pending or name in self._awaited or record.lock.locked():
            return False
        users = self._lifecycle.users_of(name)
        if any(user in self._table.latest or user in self._pending for user in users):
            return False
        return not any(map(is_in_use, record.ready_versions.values()))

    async def _unload(self, name: str, why: str) -> None:
        record = self._table.records[name]
        log.info("unloading '%s': %s", name, why)
        self._metrics.count_eviction(name, why)
        await self._lifecycle.unload(name)
        for version in record.versions.values():
            if version.is_unloaded:
                version.reason = f"{UNLOADED}: {why}"
        self._usage.keep([record.name for record in self._records()])
        deadline_ns = self._now_ns() + int(_GONE_S * 1e9)
        while self._is_going(record) and self._now_ns() < deadline_ns:  # noqa: ASYNC110 (it ends elsewhere)
            await asyncio.sleep(TICK_S)

    def _is_going(self, record: ModelRecord) -> bool:
        return any(version.state is VersionState.UNLOADING for version in record.versions.values())


def _ignore(request: InferenceRequest, response: InferenceResponse) -> None:
    """Nobody answers."""
