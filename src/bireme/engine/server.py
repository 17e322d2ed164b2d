"""Server: the in-process API. Front ends call nothing else, and neither do programs that embed Bireme.

    async with Server("models") as server:                      # shares the program's event loop
        result = await server.ainfer("plus", {"X": [1, 2]})

    with Server("models") as server:                            # plain script: a loop in a background thread
        result = server.infer("plus", {"X": [1, 2]})["Y"]

A server belongs to the loop it was started on. Only `infer` may be called from other threads.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, Unpack

from bireme import __version__
from bireme.backends.interface import Backend
from bireme.config import to_json
from bireme.engine.description import EXTENSIONS, describe_model, status_table
from bireme.engine.inference import (
    InferResult,
    InferSettings,
    Waiter,
    make_request,
    result_of,
    wake_task,
    wake_thread,
)
from bireme.engine.lifecycle import Lifecycle
from bireme.engine.memory import MemoryTrimmer
from bireme.engine.model import Model
from bireme.engine.model_control import ModelControl
from bireme.engine.model_host import ModelHost
from bireme.engine.on_demand import OnDemand
from bireme.engine.options import ServerOptions
from bireme.engine.repository_calls import RepositoryCalls
from bireme.engine.request_deadlines import take_parameters
from bireme.engine.server_state import ServerState
from bireme.engine.step_namespaces import with_names
from bireme.ipc.arena import Arena
from bireme.ipc.shared_memory import SharedMemoryRegions
from bireme.repository import Catalogue
from bireme.telemetry import ServerMetrics
from bireme.telemetry.spans import refuse_request
from bireme.telemetry.tracing import Tracing
from bireme.types import (
    BiremeError,
    InferenceRequest,
    InferenceResponse,
    Internal,
    Unavailable,
)

if TYPE_CHECKING:
    from bireme.engine.blocking import BlockingServer

log = logging.getLogger("bireme.engine")

_SILENCE_S = 5.0
"""How long a sequence may be silent while the server stops: beyond that its client has left it."""
_STOPPING = "Server is stopping, scheduler for model has stopped accepting new inference requests"
_NOTHING: dict[Any, Model] = {}
_FIRST_SEGMENT = 1
"""Number of the arena's first segment; those of worker processes begin far above."""


class Server(RepositoryCalls):
    """An inference server without sockets."""

    def __init__(
        self,
        model_repository: str | Path | Sequence[str | Path] = (),
        *,
        options: ServerOptions | None = None,
        backends: Mapping[str, Backend] | None = None,
        **settings: Any,
    ) -> None:
        """Prepare a server of the models in one or several repositories; nothing is read before `start`.

        ``settings`` are the fields of `ServerOptions`; or give a whole ``options`` instead of both. ``backends`` by
        name come before those that are installed.

        Raises:
            InvalidArgument: a setting is wrong.
            Unsupported: a setting asks for what this server does not do.
            TypeError: a setting is unknown, or ``options`` stands beside others.
        """
        if options is None:
            paths = [model_repository] if isinstance(model_repository, (str, Path)) else model_repository
            options = ServerOptions(model_repository=tuple(map(str, paths)), **settings)
        elif model_repository or settings:
            raise TypeError("Server takes either 'options' or a repository with single settings, not both")
        options.check()
        self.options = options
        self.metrics = ServerMetrics(options.metrics)
        self.shared_memory = SharedMemoryRegions(is_allowed=options.allow_client_shm)
        """The regions that clients registered; for front ends, on the loop thread."""
        self.arena = Arena(_FIRST_SEGMENT)
        """Memory that can be handed to the processes of models; bodies of requests are received into it."""
        self._trimmer = MemoryTrimmer(self.arena)
        self.tracing = Tracing(options.tracing)
        """Which requests are traced; front ends offer theirs."""
        self._backends = dict(backends or {})
        self._state = ServerState.NEW
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread_id = 0
        self._lifecycle: Lifecycle | None = None
        self._control: ModelControl | None = None
        self.on_demand: OnDemand | None = None
        """Loads models when they are asked for; None: not in this control mode, or not now."""
        self._starting: asyncio.Task[None] | None = None
        self._stopping: asyncio.Task[bool] | None = None
        self._blocking: BlockingServer | None = None
        # The lifecycle's look-up tables while the server is ready, else empty ones: requests test no state.
        self._latest: Mapping[str, Model] = _NOTHING
        self._versions: Mapping[tuple[str, int], Model] = _NOTHING

    # Start and stop.

    async def start(self) -> None:
        """Load the models that the control mode wants at start, then be ready.

        Raises:
            InvalidArgument: a repository is no directory, or cannot be listed.
            Internal: with ``exit_on_error``, a model failed to load; says which and why.
            Unavailable: `stop` was called meanwhile.
        """
        if self._state in (ServerState.INITIALIZING, ServerState.READY, ServerState.EXITING):
            raise RuntimeError(f"the server cannot start: it is {self._state}")
        self._state = ServerState.INITIALIZING
        self._stopping = self._lifecycle = self._control = None
        self._loop = asyncio.get_running_loop()
        self._thread_id = threading.get_ident()
        self._starting = self._loop.create_task(self._start())
        try:
            await self._starting
        except BaseException as error:
            if self._is_stopping():
                raise Unavailable("the server was stopped while it was starting") from error
            self._starting.cancel()
            self._state = ServerState.FAILED
            await self._close_lifecycle(0)
            raise

    async def _start(self) -> None:
        assert self._loop is not None
        start_ns = time.monotonic_ns()
        self.tracing.start()
        catalogue = await asyncio.to_thread(
            Catalogue.open,
            self.options.model_repository,
            has_namespaces=self.options.model_namespacing,
            cache=self.options.store_cache,
        )
        host = ModelHost(
            self._loop,
            arena=self.arena,
            metrics=self.metrics,
            allows_loads=self.options.allows_loads,
        )
        lifecycle = Lifecycle(
            catalogue, self.options, backends=self._backends, metrics=self.metrics, host=host
        )
        self._lifecycle = lifecycle
        self._control = ModelControl(lifecycle, self.options)
        host.on_demand = self._control.on_demand
        failures = await self._control.load_initial()
        directories = await asyncio.to_thread(catalogue.list_names)
        for line in status_table(lifecycle.table.index(directories)):
            log.info("%s", line)
        if failures and self.options.exit_on_error:
            reasons = "; ".join(error.message.strip().rstrip(";") for error in failures.values())
            raise Internal(f"failed to load all models: {reasons}")
        self._latest = lifecycle.table.latest
        self._versions = lifecycle.table.versions
        self.on_demand = self._control.on_demand
        self._state = ServerState.READY
        self._trimmer.start(self._loop)
        self._control.start_polling()
        seconds = (time.monotonic_ns() - start_ns) / 1e9
        log.info("server '%s': models loaded in %.2f s", self.options.id, seconds)

    @property
    def has_sequences(self) -> bool:
        """Whether sequences have begun that are not over: also while the server stops their requests are taken."""
        return any(model.num_sequences for model in self._versions.values())

    def announce_stop(self) -> None:
        """Be not ready from now on. Requests are still taken until `stop`: front ends hand over what they have received."""
        if self._state in (ServerState.INITIALIZING, ServerState.READY):
            self._state = ServerState.EXITING

    async def stop(self, timeout_s: float | None = None) -> bool:
        """Refuse new requests at once, finish those in flight, close the models; whether all of it was done.

        Sequences that have begun are finished, too: their requests are still taken. One of which nothing comes for 5 s, or for
        half of ``timeout_s``, is over as if it were idle.

        ``timeout_s`` (default: ``exit_timeout_secs``) bounds the wait. What still waits in a queue afterwards is
        answered `Unavailable`. Calling it again waits for the stop that is under way.
        """
        if self._stopping is None:
            if self._state not in (ServerState.INITIALIZING, ServerState.READY, ServerState.EXITING):
                return True
            assert self._loop is not None
            assert self._starting is not None
            self._starting.cancel()
            self._state = ServerState.EXITING
            self.on_demand = None
            timeout_s = self.options.exit_timeout_secs if timeout_s is None else timeout_s
            # Only sequences that have begun go on. Half of the time is left for what the others have in flight.
            grace_ns = int(min(_SILENCE_S, timeout_s / 2) * 1e9)
            self._versions = {
                key: model for key, model in self._versions.items() if model.stop_starts(grace_ns)
            }
            going_on = set(self._versions.values())
            self._latest = {name: model for name, model in self._latest.items() if model in going_on}
            self._stopping = self._loop.create_task(self._stop(timeout_s))
        return await asyncio.shield(self._stopping)

    async def _stop(self, timeout_s: float) -> bool:
        log.info("Waiting for in-flight requests to complete.")
        if self._control is not None:
            await self._control.stop_polling()
        is_clean = await self._close_lifecycle(timeout_s)
        self._trimmer.stop()
        await asyncio.to_thread(self.tracing.close)
        self.shared_memory.close()
        self._state = ServerState.STOPPED
        return is_clean

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    def __enter__(self) -> BlockingServer:
        from bireme.engine.blocking import BlockingServer

        self._blocking = BlockingServer(self)
        return self._blocking

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._blocking is not None:
            self._blocking.close()

    # Requests.

    def submit(self, request: InferenceRequest) -> None:
        """Give ``request`` to its model. From here on it is answered exactly once, through ``request.respond``.

        Raises:
            InvalidArgument: the request does not fit the model.
            NotFound: there is no such model or version, or no version is ready.
            Unavailable: the version is not ready, the queue is full, or the server is starting or stopping.
        """
        version = request.model_version
        try:
            if version == -1:
                model = self._latest.get(request.model_name)
            else:
                model = self._versions.get((request.model_name, version))
            if model is None:
                if self.on_demand is not None and self.on_demand.take(request, self.submit):
                    return
                raise self._refusal(request.model_name, version, request.id_prefix)
            if request.parameters is not None:
                take_parameters(request)
            model.enqueue(request)
        except BiremeError as error:
            refuse_request(request, error)
            raise

    def cancel(self, request: InferenceRequest) -> None:
        """Take ``request`` back: it is answered `Cancelled` if it still waits, and flagged if it runs."""
        model: Model | None = request.owner
        if model is not None:
            model.cancel(request)

    async def ainfer(
        self, name: str, inputs: Mapping[str, Any], **settings: Unpack[InferSettings]
    ) -> InferResult:
        """Run a model on arrays, lists or scalars and return its outputs by name.

        Lists and scalars take the data type of the model; arrays are converted only where nothing is lost. On a
        batching model every input starts with the batch dimension. Cancelling the awaiting task cancels the request.

        Raises:
            BiremeError: as `submit`; or what the model or its queue answered.
        """
        loop = self._loop
        if loop is not None and asyncio.get_running_loop() is not loop:
            raise RuntimeError(
                "ainfer() belongs to the loop that the server was started on; use infer() elsewhere"
            )
        if self.on_demand is not None and self.on_demand.wants(name):
            await self.on_demand.load_for(name, settings)
        request = self._make_request(name, inputs, **settings)
        assert loop is not None
        future: asyncio.Future[InferenceResponse] = loop.create_future()
        request.context = future
        request.respond = wake_task
        if self.tracing.is_on:
            self.tracing.offer(request)
        self.submit(request)
        try:
            return result_of(await future)
        except asyncio.CancelledError:
            self.cancel(request)
            raise

    def infer(self, name: str, inputs: Mapping[str, Any], **settings: Unpack[InferSettings]) -> InferResult:
        """As `ainfer`, for any thread but the loop's; any number of threads may call it at once.

        Raises:
            BiremeError: as `ainfer`.
            RuntimeError: called on the loop's own thread, which it would block for ever.
        """
        if threading.get_ident() == self._thread_id:
            raise RuntimeError(
                "infer() would block the server's event loop: use 'await server.ainfer(...)' here"
            )
        loop = self._loop
        on_demand = self.on_demand
        if on_demand is not None and loop is not None and on_demand.wants(name):
            asyncio.run_coroutine_threadsafe(on_demand.load_for(name, settings), loop).result()
        request = self._make_request(name, inputs, **settings)
        waiter = Waiter()
        request.context = waiter
        request.respond = wake_thread
        assert loop is not None
        try:
            loop.call_soon_threadsafe(self._submit_for, request, waiter)
        except RuntimeError:
            raise Unavailable("Server not ready: its event loop has ended") from None
        try:
            return result_of(waiter.wait(loop))
        except KeyboardInterrupt:
            loop.call_soon_threadsafe(self.cancel, request)
            raise

    def _make_request(
        self, name: str, inputs: Mapping[str, Any], *, version: int = -1, **settings: Any
    ) -> InferenceRequest:
        """Return a request with ``inputs`` as tensors; the caller sets ``respond`` and ``context``."""
        if self._state is ServerState.NEW:
            raise Unavailable(
                "Server not ready: start it, by 'with Server(...) as server' or 'await server.start()'"
            )
        request = make_request(self.model(name, version), inputs, version, settings)
        request.model_name = name  # with namespaces it may be a key
        return request

    def _submit_for(self, request: InferenceRequest, waiter: Waiter) -> None:
        try:
            if self.tracing.is_on:
                self.tracing.offer(request)
            self.submit(request)
        except BiremeError as error:
            waiter.put(InferenceResponse(request.model_name, -1, request.id, error=error))

    # Health.

    @property
    def state(self) -> ServerState:
        """Where the server is between start and stop."""
        return self._state

    @property
    def is_live(self) -> bool:
        """Whether the server has started and is not stopping."""
        return self._state is ServerState.READY

    @property
    def is_ready(self) -> bool:
        """Whether the server takes requests and, with ``strict_readiness``, every known model is ready.

        A model that was unloaded on purpose does not count; one whose load failed or is under way does.
        """
        if self._state is not ServerState.READY:
            return False
        return not self.options.counts_models or (
            self._running().table.all_settled() and all(model.is_up for model in self._versions.values())
        )

    def is_model_ready(self, name: str, version: int = -1) -> bool:
        """Whether a model version can run now, as far as the server knows. Raises as `model` for one that does not serve.

        One that is loaded at its first request can, unless its last load failed.
        """
        if self.on_demand is not None and self.on_demand.is_loadable(name):
            return True
        return self.model(name, version).is_up

    @property
    def asks_models(self) -> bool:
        """Whether a model that serves has to be asked if it is ready (`check_ready`, `check_model_ready`)."""
        return any(model.has_ready_hook for model in self._versions.values())

    async def check_ready(self) -> bool:
        """As `is_ready`, and every model says so itself, if it has an ``is_ready`` of its own."""
        if not self.is_ready:
            return False
        if not self.options.counts_models or not self.asks_models:
            return True
        return all(await asyncio.gather(*(model.check_ready() for model in self._latest.values())))

    async def check_model_ready(self, name: str, version: int = -1) -> bool:
        """As `is_model_ready`, and the model says so itself, if it has an ``is_ready`` of its own."""
        if self.on_demand is not None and self.on_demand.is_loadable(name):
            return True
        return await self.model(name, version).check_ready()

    # Descriptions.

    def model(self, name: str, version: int = -1) -> Model:
        """Return a model version that serves; -1 is the highest.

        Raises:
            NotFound: there is no such model or version, or no version is ready.
            Unavailable: the version is not ready, or the server is starting or stopping.
        """
        found = self._latest.get(name) if version == -1 else self._versions.get((name, version))
        if found is None:
            raise self._refusal(name, version)
        return found

    def metadata(self) -> dict[str, Any]:
        """Return the server metadata."""
        return {"name": self.options.id, "version": __version__, "extensions": list(EXTENSIONS)}

    def model_metadata(self, name: str, version: int = -1) -> dict[str, Any]:
        """Return a model's metadata: of one version, or of the latest with all that are ready. Raises as `model`."""
        model = self.model(name, version)
        record = self._running().table.record_of(name)
        assert record is not None  # as the model serves
        return describe_model(model, [version] if version != -1 else record.ready_versions)

    def model_config(self, name: str, version: int = -1) -> dict[str, Any]:
        """Return the whole config that a model version runs with. Raises as `model`."""
        return to_json(with_names(self.model(name, version).config))

    def model_statistics(self, name: str | None = None, version: int = -1) -> dict[str, Any]:
        """Return the statistics of all ready versions: of every model, of one, or of one version.

        Raises:
            InvalidArgument: the model or the version is not ready.
            Unavailable: the server is starting or stopping.
        """
        self._require_ready()
        models = self._running().table.select(name, version)
        for model in models:
            if model.direct_calls is not None:
                model.direct_calls.settle()
        return {"model_stats": [model.statistics.to_json() for model in models]}

    # Helpers.

    async def _close_lifecycle(self, timeout_s: float) -> bool:
        return self._lifecycle is None or await self._lifecycle.close(timeout_s)

    def _is_stopping(self) -> bool:
        return self._stopping is not None

    def _running(self) -> Lifecycle:
        assert self._lifecycle is not None
        return self._lifecycle

    def _require_ready(self) -> None:
        if self._state is not ServerState.READY:
            raise Unavailable("Server not ready")

    def _refusal(self, name: str, version: int, prefix: str = "") -> BiremeError:
        """Return the error for a model version that is not in the look-up tables."""
        if self._state is ServerState.READY:
            return self._running().table.refusal(name, version)
        if self._state in (ServerState.EXITING, ServerState.STOPPED):
            return Unavailable(prefix + _STOPPING)
        return Unavailable("Server not ready")

    def __repr__(self) -> str:
        return f"Server({self.options.id!r}, {self._state}, {len(self._versions)} model versions ready)"
