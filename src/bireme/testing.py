"""Fakes for tests of servers, schedulers and front ends: models that are Python functions, under full control.

`FakeBackend` stands in for a framework. Its models run a function over named arrays, wait for an event, take a set
time or fail where they are told to; it counts what is open, so a test can prove that nothing was left behind.

`FakeRequestBackend` stands in for one whose instances take whole requests (Python models, decoupled ones): the test
itself answers, response by response.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping

from bireme.backends.interface import ModelContext, Placement, ResponseSink
from bireme.config import ModelConfig
from bireme.types import (
    Array,
    BiremeError,
    Execution,
    InferenceRequest,
    InferenceResponse,
    Tensor,
    Unavailable,
)

Run = Callable[[dict[str, Array]], dict[str, Array]]


class FakeBackend:
    """A backend whose models are Python functions. All public attributes may be changed while a test runs.

    ``gate`` starts open; clear it and every execution waits for it (``started`` is released when an execution begins, so
    a test can wait for that). ``delay_s`` is slept before the function runs. The ``*_error`` attributes, where set, are
    raised by the step they name. Counters are exact whatever threads the engine uses.
    """

    def __init__(
        self,
        run: Run | None = None,
        *,
        functions: Mapping[str, Run] | None = None,
        complete: Callable[[ModelConfig], ModelConfig] | None = None,
        delay_s: float = 0.0,
        may_run_inline: bool = False,
        name: str = "fake",
    ) -> None:
        """Run ``functions[model name]``, else ``run``, else give the inputs back as the configured outputs, in order.

        ``complete`` plays the part of the model file in auto-completion; None: the config stays as it is. With
        ``may_run_inline`` the engine may run fast models on its loop thread.
        """
        self.name = name
        self.run = run
        self.functions: dict[str, Run] = dict(functions or {})
        self.complete = complete
        self.delay_s = delay_s
        self.may_run_inline = may_run_inline
        self.gate = threading.Event()
        self.gate.set()
        self.started = threading.Semaphore(0)

        self.load_error: Exception | None = None
        self.config_error: Exception | None = None
        self.instance_error: Exception | None = None
        self.execute_error: Exception | None = None

        self.contexts: list[ModelContext] = []
        """The context of every `load`, failed ones included."""
        self.instances: list[FakeInstance] = []
        """Every instance ever made."""
        self.num_open_models = 0
        self.num_open_instances = 0
        self.num_executing = 0
        self.max_executing = 0
        """Most executions that ever ran at one time, over all instances."""
        self.batches: list[dict[str, tuple[int, ...]]] = []
        """Input shapes of every execution, in the order of their start."""
        self.threads: set[int] = set()
        """Identifiers of the threads that executed something."""
        self._lock = threading.Lock()

    def load(self, ctx: ModelContext) -> FakeModel:
        """Open a model; reads no file."""
        with self._lock:
            self.contexts.append(ctx)
        if self.load_error is not None:
            raise self.load_error
        self.count("num_open_models", 1)
        return FakeModel(self, ctx)

    def count(self, counter: str, step: int) -> None:
        """Change one of the counters; for the backend's own models and instances."""
        with self._lock:
            setattr(self, counter, getattr(self, counter) + step)
            self.max_executing = max(self.max_executing, self.num_executing)

    def begin(self, inputs: dict[str, Array]) -> None:
        """Note that an execution begins; for the backend's own instances."""
        with self._lock:
            self.batches.append({name: array.shape for name, array in inputs.items()})
            self.threads.add(threading.get_ident())
        self.count("num_executing", 1)
        self.started.release()


class FakeModel:
    """An open model of a `FakeBackend`."""

    def __init__(self, backend: FakeBackend, ctx: ModelContext) -> None:
        self.backend = backend
        self.ctx = ctx
        self.config = ctx.config
        self.num_closes = 0

    def complete_config(self, config: ModelConfig) -> ModelConfig:
        """Return what the backend's ``complete`` makes of ``config``."""
        return config if self.backend.complete is None else self.backend.complete(config)

    def check_config(self, config: ModelConfig) -> None:
        """Raise the backend's ``config_error``, if any; remember the final config."""
        self.config = config
        if self.backend.config_error is not None:
            raise self.backend.config_error

    def create_instance(self, placement: Placement) -> FakeInstance:
        """Make an instance, or raise the backend's ``instance_error``."""
        if self.backend.instance_error is not None:
            raise self.backend.instance_error
        instance = FakeInstance(self, placement)
        self.backend.instances.append(instance)
        self.backend.count("num_open_instances", 1)
        return instance

    def close(self) -> None:
        """Count the close."""
        self.num_closes += 1
        self.backend.count("num_open_models", -1)


class FakeInstance:
    """An instance of a `FakeModel`; ``num_executions`` and ``num_closes`` say what was done with it."""

    def __init__(self, model: FakeModel, placement: Placement) -> None:
        self.model = model
        self.placement = placement
        self.num_executions = 0
        self.num_closes = 0
        self._busy = threading.Lock()

    @property
    def may_run_inline(self) -> bool:
        """What the backend says at this moment."""
        return self.model.backend.may_run_inline

    def execute(self, inputs: dict[str, Array]) -> dict[str, Array]:
        """Wait for the gate, sleep, then run the model's function.

        Raises:
            RuntimeError: two executions of this one instance overlap, or it is closed: the engine is at fault.
        """
        if self.num_closes:
            raise RuntimeError(f"instance {self.placement.name} is closed")
        if not self._busy.acquire(blocking=False):
            raise RuntimeError(f"instance {self.placement.name} is already executing")
        backend = self.model.backend
        backend.begin(inputs)
        try:
            self.num_executions += 1
            backend.gate.wait()
            if backend.delay_s:
                time.sleep(backend.delay_s)
            if backend.execute_error is not None:
                raise backend.execute_error
            run = backend.functions.get(self.model.ctx.name) or backend.run or self._give_back
            return run(inputs)
        finally:
            backend.count("num_executing", -1)
            self._busy.release()

    def close(self) -> None:
        """Count the close."""
        self.num_closes += 1
        self.model.backend.count("num_open_instances", -1)

    def _give_back(self, inputs: dict[str, Array]) -> dict[str, Array]:
        """Return input i as output i; with fewer inputs than outputs, start over."""
        arrays = list(inputs.values())
        outputs = self.model.config.output
        return {output.name: arrays[index % len(arrays)] for index, output in enumerate(outputs)}


class FakeRequestBackend:
    """A backend whose instances take whole requests and leave the answers to the test.

    ``max_concurrent`` and ``ready`` (what `check_ready` says; None: no hook) hold for the instances made afterwards.
    """

    def __init__(self, *, max_concurrent: int = 1, ready: bool | None = None, name: str = "fake") -> None:
        self.name = name
        self.max_concurrent = max_concurrent
        self.ready = ready
        self.instances: list[FakeRequestInstance] = []

    def load(self, ctx: ModelContext) -> FakeRequestModel:
        """Open a model; reads no file."""
        return FakeRequestModel(self, ctx)


class FakeRequestModel:
    """An open model of a `FakeRequestBackend`."""

    def __init__(self, backend: FakeRequestBackend, ctx: ModelContext) -> None:
        self.backend = backend
        self.ctx = ctx

    def complete_config(self, config: ModelConfig) -> ModelConfig:
        """Leave the config as it is."""
        return config

    def check_config(self, config: ModelConfig) -> None:
        """Find nothing wrong."""

    def create_instance(self, placement: Placement) -> FakeRequestInstance:
        """Make an instance."""
        instance = FakeRequestInstance(self, placement)
        self.backend.instances.append(instance)
        return instance

    def close(self) -> None:
        """Hold nothing."""


class FakeRequestInstance:
    """An instance that keeps what it is given until the test answers. Loop thread only."""

    def __init__(self, model: FakeRequestModel, placement: Placement) -> None:
        self.model = model
        self.placement = placement
        self.max_concurrent = model.backend.max_concurrent
        self.has_ready_hook = model.backend.ready is not None
        self.can_be_called = False
        self.unavailable: str | None = None
        self.retry_delay_s = 0.0
        self.executions: list[Execution] = []
        """What was begun and is not finished, oldest first."""
        self.requests: list[InferenceRequest] = []
        """Every request ever taken."""
        self.cancelled: list[InferenceRequest] = []
        self.held: set[InferenceRequest] = set()
        """Open requests that must get no response now."""
        self.num_kills = 0
        self.num_closes = 0
        self._sink: ResponseSink | None = None

    def start(self, sink: ResponseSink) -> None:
        """Keep the sink."""
        self._sink = sink

    def execute_requests(self, execution: Execution) -> None:
        """Keep the execution."""
        self.executions.append(execution)
        self.requests += execution.requests

    def call(self, execution: Execution) -> InferenceResponse:
        """Not for this one."""
        raise NotImplementedError

    def cancel(self, request: InferenceRequest) -> None:
        """Note it."""
        self.cancelled.append(request)

    def expect(self) -> None:
        """Nothing sleeps here."""

    def hold(self, request: InferenceRequest) -> None:
        """Remember that the request is held."""
        self.held.add(request)

    def resume(self, request: InferenceRequest) -> None:
        """Remember that the request is not held any more."""
        self.held.discard(request)

    async def check_ready(self) -> bool:
        """Say what the backend says."""
        return self.model.backend.ready is not False

    def kill(self) -> None:
        """Fail what runs."""
        self.num_kills += 1
        self.die("was killed", retry_delay_s=0.0)

    def close(self) -> None:
        """Count the close."""
        self.num_closes += 1

    # What the test does.

    @property
    def sink(self) -> ResponseSink:
        """Who takes the responses."""
        assert self._sink is not None
        return self._sink

    def send(
        self,
        request: InferenceRequest,
        outputs: Mapping[str, Array] | None = None,
        *,
        final: bool = False,
        error: BiremeError | None = None,
    ) -> None:
        """Answer ``request`` once; with neither outputs nor error by the mark alone that no more responses come."""
        tensors = [Tensor.from_numpy(name, array) for name, array in (outputs or {}).items()]
        flag_only = outputs is None and error is None
        response = InferenceResponse(
            self.model.ctx.name,
            self.model.ctx.version,
            request.id,
            tensors,
            error=error,
            final=final or flag_only,
            flag_only=flag_only,
        )
        self.sink.respond(request, response)

    def finish(self, error: BiremeError | None = None) -> None:
        """Be done with the oldest execution."""
        execution = self.executions.pop(0)
        now_ns = time.monotonic_ns()
        execution.compute_input_end_ns = execution.compute_start_ns
        execution.compute_output_start_ns = execution.compute_end_ns = now_ns
        self.sink.finish(execution, error)

    def answer(self, outputs: Mapping[str, Array]) -> None:
        """Answer every request of the oldest execution finally, and be done with it."""
        for request in list(self.executions[0].requests):
            self.send(request, outputs, final=True)
        self.finish()

    def die(self, reason: str, *, retry_delay_s: float) -> None:
        """Be away from now on, as a worker that died; what runs fails."""
        self.unavailable = reason
        self.retry_delay_s = retry_delay_s
        while self.executions:
            self.finish(Unavailable(reason))
        self.sink.change()

    def revive(self) -> None:
        """Be there again."""
        self.unavailable = None
        self.retry_delay_s = 0.0
        self.sink.change()
