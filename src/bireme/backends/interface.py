"""The interface that every backend implements. Nothing above this floor knows which framework runs a model."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from bireme.config import ModelConfig
from bireme.types import Array, BiremeError, Execution, InferenceRequest, InferenceResponse, Way

if TYPE_CHECKING:
    from bireme.ipc.arena import Arena
    from bireme.telemetry.custom_metrics import CustomMetrics


class Host(Protocol):
    """The server, as seen by the models that it runs. Loop thread only, but for ``loop`` itself."""

    loop: asyncio.AbstractEventLoop
    arena: Arena
    """Where tensors are put for worker processes."""
    custom_metrics: CustomMetrics
    """Metric families that models make."""

    def submit(self, request: InferenceRequest) -> None:
        """Run ``request`` on the model that it names; as `bireme.engine.server.Server.submit`.

        ``request.parent`` is the execution whose model asks.

        Raises:
            BiremeError: it cannot be run, or waiting for it would never end.
        """

    def call_directly(self, request: InferenceRequest) -> InferenceResponse | None:
        """Run ``request`` on the calling thread, if its model runs in this process and is free; None: `submit` it.

        Any thread.

        Raises:
            BiremeError: the request does not fit the model.
        """

    def way_to(self, name: str, version: int) -> Way:
        """Return the shortest way to a model; for other ways than its queue there is `call_directly`. Any thread."""

    def cancel(self, request: InferenceRequest) -> None:
        """Take a submitted request back."""

    def expect(self, name: str, version: int) -> None:
        """A request for a model will be submitted within microseconds: its process may wake up for it meanwhile."""

    def hold(self, request: InferenceRequest) -> None:
        """Let the model of a submitted request send no more responses to it, until `resume`: nobody has room for them.

        Those that are on their way still come. A model that cannot be held goes on, as does one that has not begun: say it
        again when there is a response. Twice is as once.
        """

    def resume(self, request: InferenceRequest) -> None:
        """The model of a request that is held may go on; one that is not held, or answered, is no error."""

    def find_config(self, name: str, version: int) -> ModelConfig:
        """Return the final config of a model version that serves (-1: the latest). Any thread.

        Raises:
            BiremeError: it does not serve.
        """

    def is_model_decoupled(self, name: str, version: int) -> bool:
        """Whether a model that serves answers with any number of responses.

        Raises:
            BiremeError: it does not serve.
        """

    async def is_model_ready(self, name: str, version: int) -> bool:
        """Whether a model version can run now, its own ``is_ready`` included; false for an unknown one, too."""

    async def load_model(self, name: str, config: str | None, files: Mapping[str, bytes] | None) -> None:
        """Load a model and return when it serves. Raises `BiremeError`."""

    async def unload_model(self, name: str, *, unload_dependents: bool) -> None:
        """Unload a model. Raises `BiremeError`."""


@dataclass(frozen=True, slots=True)
class ModelContext:
    """Everything a backend may know when it loads one version of a model."""

    name: str
    version: int
    model_dir: Path
    """The model's directory: holds config.pbtxt and the version directories."""
    version_dir: Path
    config: ModelConfig
    """Normalised: backend, default file name and instance groups are filled in."""
    backend_config: Mapping[str, str] = field(default_factory=dict)
    """``--backend-config`` settings for this backend, the global ones included."""
    backend_dir: Path | None = None
    """Where a backend that is a directory with a ``model.py`` lies; None: it is one of ours or installed."""
    host: Host | None = None
    """The server that loads the model; None: there is none (tests, tools)."""


@dataclass(frozen=True, slots=True)
class Placement:
    """Where one instance runs."""

    name: str
    kind: str = "KIND_CPU"
    device_id: int = 0
    profile: tuple[str, ...] = ()
    """Of its instance group: the optimization profiles of a TensorRT engine that it uses."""


Execute = Callable[[dict[str, Array]], dict[str, Array]]
"""As `Instance.execute`."""
ExecuteInto = Callable[[dict[str, Array], Mapping[str, memoryview]], dict[str, Array]]
"""``execute_into(inputs, targets)``: as `Instance.execute`, where an output that fits into the memory ``targets`` has for
its name may be written to the start of that; its array then is a view of it. What does not fit is no error."""


class Instance(Protocol):
    """One executable copy of a model. The engine never runs two executions of one instance at a time.

    ``execute`` runs on the instance's thread. An instance may have an attribute ``may_run_inline``; where it is true
    (native code that waits for nothing), a model that proves to be fast runs on the loop thread instead.

    It may also have an ``execute_into`` (see `ExecuteInto`), for large outputs whose memory the caller provides. One that
    can be away for a while, as its process died, has the attributes of a `SupervisedInstance`.
    """

    def execute(self, inputs: dict[str, Array]) -> dict[str, Array]:
        """Run the model over one batch.

        ``inputs`` are borrowed, shaped as the backend sees them (batch dimension first when the model batches;
        ``reshape`` applied) and may be absent when optional. They are C-contiguous, unless a caller in this process
        gave a strided array and it makes up the whole batch. The result is owned by the caller; it holds every
        configured output that the model produced. BYTES are object arrays (results may hold bytes or str).

        The tensors of implicit state are among both, whether the config lists them or not: what the instance has to run is
        `bireme.config.state_tensors.with_state_tensors` of the config.

        Raises:
            InvalidArgument: an input holds what the model does not take, and nothing has been changed: the engine runs the
                requests of the batch once more, each alone, so that the error is the answer to those that it is about.
            Exception: whatever the framework raises; the engine answers it as `BackendFailed`.
        """

    def close(self) -> None:
        """Give back what the instance holds. Called once, when nothing runs on it any more."""


@runtime_checkable
class SupervisedInstance(Protocol):
    """What an instance has whose process may die and be started again."""

    unavailable: str | None
    """Why it cannot run anything now; None: it can."""
    retry_delay_s: float
    """While it is unavailable: how long until it is started again, 0 when that is under way."""

    def watch(self, change: Callable[[], None]) -> None:
        """Call ``change`` on the loop thread whenever ``unavailable`` is another than before."""

    def kill(self) -> None:
        """End the process with all that runs in it; unless the instance is closed, it is started again. On the loop thread."""


class ResponseSink(Protocol):
    """The engine's model, as its request instances see it. Loop thread only."""

    @property
    def has_waiting(self) -> bool:
        """Whether another execution may begin as soon as this one is finished."""

    def respond(self, request: InferenceRequest, response: InferenceResponse) -> None:
        """Answer ``request``: any number of times, the last time with a final response. What comes after that is dropped."""

    def finish(self, execution: Execution, error: BiremeError | None = None) -> None:
        """The instance is done with ``execution`` and takes another one. Its ``compute_*_ns`` are set.

        Requests whose responses come later (decoupled models) stay open. ``error``: the answer to all that are open.
        """

    def run_again(self, request: InferenceRequest) -> bool:
        """Let ``request``, whose execution is not finished yet, run again when it is; False: its model is not iterative."""

    def change(self) -> None:
        """The instance's ``unavailable`` is another than before."""


@runtime_checkable
class RequestInstance(Protocol):
    """An instance that takes whole requests and answers each through the sink (python models, decoupled ones).

    It may have a ``drop_sequence(sequence_id)``, called on the loop thread: the sequence is over without its END, and the
    instance may let go of what it keeps for it. Nothing of the sequence runs.
    """

    max_concurrent: int
    """Executions that it takes at one time; known before `start`."""
    unavailable: str | None
    """Why it cannot run anything now (its process died and is being started again); None: it can. It then holds no
    execution: all that it had were finished, with an error."""
    retry_delay_s: float
    """While it is unavailable: how long until it is started again, 0 when that is under way."""
    has_ready_hook: bool
    """Whether the model has something to say on `check_ready`."""
    can_be_called: bool
    """Whether it runs in this process and has a `call`; one that does not need not have it."""

    def start(self, sink: ResponseSink) -> None:
        """Get to know who takes the responses from now on.

        On the loop thread, before the first `execute_requests`; again when a model that was warmed up begins to serve.
        """

    def execute_requests(self, execution: Execution) -> None:
        """Begin to run the requests of ``execution``; returns at once and never raises. On the loop thread.

        The request list of ``execution`` is the engine's: copy it if it is needed after `ResponseSink.finish`.
        """

    def call(self, execution: Execution) -> InferenceResponse:
        """Run the one request of ``execution`` on the calling thread, whichever it is, and return its final response.

        The instance runs nothing else meanwhile. Never raises; sets ``compute_*_ns``.
        """

    def cancel(self, request: InferenceRequest) -> None:
        """The caller of ``request``, which is open here, has taken it back: tell the model. On the loop thread."""

    def expect(self) -> None:
        """A request will come within microseconds. On the loop thread."""

    def hold(self, request: InferenceRequest) -> None:
        """As `Host.hold`, for a request that is open here. On the loop thread."""

    def resume(self, request: InferenceRequest) -> None:
        """As `Host.resume`. On the loop thread."""

    async def check_ready(self) -> bool:
        """Ask the model itself whether it is ready; True when it has nothing to say on that."""

    def kill(self) -> None:
        """End whatever runs, without waiting for it; the open requests are answered `Unavailable`. On the loop thread.

        Does nothing if nothing runs and no request is open: such an instance can be closed in order.
        """

    def close(self) -> None:
        """As `Instance.close`. Blocking: not on the loop thread."""


class LoadedModel(Protocol):
    """A model file that is open: its weights are in memory once, whatever the number of instances."""

    def complete_config(self, config: ModelConfig) -> ModelConfig:
        """Return ``config`` with what the model file itself says filled in.

        May change only ``max_batch_size``, ``input``, ``output``, the scheduling choice where none was made and
        ``model_transaction_policy``. Not called with ``--disable-auto-complete-config``.

        Raises:
            InvalidArgument: the file contradicts the config.
        """

    def check_config(self, config: ModelConfig) -> None:
        """Compare the final config with the model file (names, data types, shapes).

        Raises:
            InvalidArgument: names the tensor, what the config says and what the file has.
        """

    def create_instance(self, placement: Placement) -> Instance | RequestInstance:
        """Make an instance. Weights are shared by all instances of this model where the framework can."""

    def close(self) -> None:
        """Give the weights back. Called once, after every instance was closed."""


class Backend(Protocol):
    """A framework. Imported lazily, on the first model that names it; one object per server."""

    name: str

    def load(self, ctx: ModelContext) -> LoadedModel:
        """Open the model file of one version. Runs on a loading thread, never on the serving one.

        Raises:
            InvalidArgument: the file or a setting is wrong; names the file, what was found and what is expected.
            NotFound: the file is missing; lists what the directory holds.
        """
