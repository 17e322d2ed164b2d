"""ThreadModel and ThreadInstance: a Python model in the server's own process, each instance on a thread of its own.

For trusted, light code: its requests and tensors are the engine's own objects, so nothing is copied and no message is
sent; in return the model shares the server's interpreter (and its lock), its memory and its fate.

Parameter ``SHARE_MODEL`` (``yes``, or ``no``, the default): all instances use one ``TritonPythonModel`` object, which is
initialised once. Its weights are in memory once, and its ``execute`` is called by several threads at the same time.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from functools import partial
from typing import Any, Final

import orjson

from bireme.backends.interface import Host, ModelContext, Placement, ResponseSink
from bireme.backends.lone_host import LoneHost
from bireme.backends.python import pb_utils
from bireme.backends.python.arguments import config_text, make_arguments
from bireme.backends.python.batch import BadReturn
from bireme.backends.python.debug_desk import DebugDesk, desk_for
from bireme.backends.python.inline_worker import InlineWorker
from bireme.backends.python.model_file import load_model_class
from bireme.backends.python.thread_answers import Answer
from bireme.backends.python.thread_batches import RUN_AGAIN, Batches, Outcome
from bireme.backends.python.thread_runtime import (
    ThreadRuntime,
    enter,
    execution_of_context,
    forget,
    register,
)
from bireme.backends.python.thread_worker import DeskWorker, ModelThread, UserModel, describe
from bireme.config import ModelConfig, parse_json
from bireme.types import (
    BackendFailed,
    Execution,
    InferenceRequest,
    InferenceResponse,
    InvalidArgument,
    Unavailable,
)

READY_TIMEOUT_S: Final = 5.0
"""How long a model's ``is_ready`` may take."""
_STUCK_S: Final = 1.0
"""How long a thread has to end once its requests were taken from it."""

_package_numbers = itertools.count(1)


class ThreadModel:
    """One version of a model that runs in the server's process."""

    def __init__(self, ctx: ModelContext) -> None:
        """Find the model's file.

        Raises:
            InvalidArgument: a parameter is wrong.
            NotFound: there is no model file.
        """
        from bireme.backends.python.backend import find_model_file, read_settings

        self._ctx = ctx
        self._config = ctx.config
        settings = read_settings(ctx.config)
        self._max_concurrent = settings.max_concurrent
        self._runs_inline = settings.mode == "inline"
        self._shares = _read_share_model(ctx.config)
        self._shared: UserModel | None = None
        self._desk = desk_for(ctx.name)
        self._packages: list[str] = []
        self._model_file = find_model_file(ctx)
        host = ctx.host
        self._lone_host: LoneHost | None = None
        if host is None:
            host = self._lone_host = LoneHost()
        self._host: Host = host
        pb_utils.install()

    def complete_config(self, config: ModelConfig) -> ModelConfig:
        """Ask the model's ``auto_complete_config``, if it has one.

        Raises:
            BackendFailed: it raised, or what it returned is no config.
            InvalidArgument: what it returned is not valid.
        """
        self._config = config
        text = self._complete() if self._desk is None else self._desk.call(self._complete)
        if text is None:
            return config
        return parse_json(text, f"what auto_complete_config of '{self._model_file}' returned")

    def _complete(self) -> bytes | None:
        config = self._config
        runtime = ThreadRuntime(self._host, config.name, self._ctx.version, str(self._ctx.version_dir))
        runtime.logs_to_stderr = True
        package = self._new_package(runtime)
        before = enter(runtime)
        try:
            complete = getattr(self._import(package), "auto_complete_config", None)
            if complete is None:
                return None
            completed = complete(pb_utils.ModelConfig(config_text(config)))
            if not isinstance(completed, pb_utils.ModelConfig):
                raise BadReturn(
                    f"auto_complete_config function in model '{config.name}' must return a valid pb.ModelConfig object."
                )
            return orjson.dumps(completed.as_dict())
        except BaseException as error:  # noqa: BLE001 - a model may even call exit()
            raise BackendFailed(describe(error)) from None
        finally:
            enter(before)
            forget(package)

    def check_config(self, config: ModelConfig) -> None:
        """Take the final config; a model file says nothing that it could be compared with."""
        self._config = config

    def create_instance(self, placement: Placement) -> ThreadInstance:
        """Start an instance's thread and wait until its model is initialised there.

        Raises:
            BackendFailed: the model's ``initialize`` failed: its exception's text.
        """
        model = self._shared or self._make_model(placement)
        if self._shares:
            self._shared = model
        return ThreadInstance(
            model,
            self._batches(model, placement),
            placement.name,
            self._max_concurrent,
            self._desk,
            runs_inline=self._runs_inline,
        )

    def close(self) -> None:
        """Forget the model's modules."""
        for package in self._packages:
            forget(package)
        if self._lone_host is not None:
            self._lone_host.close()

    def _make_model(self, placement: Placement) -> UserModel:
        ctx = self._ctx
        runtime = ThreadRuntime(self._host, ctx.name, ctx.version, str(ctx.version_dir))
        package = self._new_package(runtime)
        arguments = make_arguments(self._config, ctx.version, ctx.model_dir, placement)
        return UserModel(partial(self._import, package), runtime, arguments)

    def _new_package(self, runtime: ThreadRuntime) -> str:
        package = f"bireme_model_{next(_package_numbers)}"
        self._packages.append(package)
        register(package, runtime)
        return package

    def _import(self, package: str) -> Any:
        ctx = self._ctx
        return load_model_class(
            self._model_file,
            model_dir=ctx.model_dir,
            version_dir=ctx.version_dir,
            backend_dir=ctx.backend_dir,
            package=package,
        )

    def _batches(self, model: UserModel, placement: Placement) -> Batches:
        config = self._config
        policy = config.model_transaction_policy
        return Batches(
            model,
            instance_name=placement.name,
            output_names=[output.name for output in config.output],
            is_decoupled=policy is not None and policy.decoupled,
        )


class ThreadInstance:
    """Takes whole requests: `bireme.backends.interface.RequestInstance`. Made on a loading thread."""

    def __init__(
        self,
        model: UserModel,
        batches: Batches,
        name: str,
        max_concurrent: int,
        desk: DebugDesk | None = None,
        *,
        runs_inline: bool = False,
    ) -> None:
        """Start the thread and wait until the model is initialised; on the main thread if there is a ``desk``.

        With ``runs_inline`` there is no thread: requests run where they are put.

        Raises:
            BackendFailed: ``initialize`` failed: its exception's text.
        """
        self.unavailable: str | None = None
        self.retry_delay_s = 0.0
        self.batches = batches
        self._name = name
        self._model = model
        self._runtime = model.runtime
        self._loop_calls = model.runtime.loop_calls
        self._executions: set[Execution] = set()
        self._sink: ResponseSink | None = None
        self._readiness: asyncio.Future[bool] | None = None
        self.runs_inline = runs_inline and desk is None
        self._thread: ModelThread | DeskWorker | InlineWorker
        if desk is not None:
            self._thread = DeskWorker(desk, model, batches, self._report)
        elif runs_inline:
            self._thread = InlineWorker(model, batches, self._finish)
        else:
            self._thread = ModelThread(model, batches, self._report, name)
        self._thread.start()
        self.max_concurrent = max_concurrent if model.is_async and desk is None else 1
        self.has_ready_hook = model.has_ready_hook
        self.can_be_called = not model.is_async and desk is None

    def start(self, sink: ResponseSink) -> None:
        """See `RequestInstance.start`."""
        self._sink = self._runtime.sink = sink

    def execute_requests(self, execution: Execution) -> None:
        """See `RequestInstance.execute_requests`."""
        self._executions.add(execution)
        self._thread.put(execution)

    def call(self, execution: Execution) -> InferenceResponse:
        """See `RequestInstance.call`."""
        (request,) = execution.requests
        runtime = self._runtime
        answer = Answer()
        runtime.direct[request] = answer
        before = enter(runtime)
        outer = execution_of_context.set(execution)
        runtime.executions.append(execution)
        try:
            outcome = self.batches.run(execution, [request])
            if isinstance(outcome, BackendFailed):
                return runtime.error_response(request, outcome)
            if outcome[0] is RUN_AGAIN:
                return self.batches.refuse_again(request)
            # A model that answers through a sender may do so later.
            return runtime.stamp(outcome[0] or answer.wait())
        finally:
            runtime.executions.remove(execution)
            execution_of_context.reset(outer)
            enter(before)
            runtime.direct.pop(request, None)

    def cancel(self, request: InferenceRequest) -> None:
        """See `RequestInstance.cancel`. The model sees the request's own flag."""
        self._runtime.holds.release(request)

    def expect(self) -> None:
        """Nothing is to do: a thread is woken by its task."""

    def hold(self, request: InferenceRequest) -> None:
        """See `RequestInstance.hold`."""
        if self.batches.is_decoupled:
            self._runtime.hold(request)

    def resume(self, request: InferenceRequest) -> None:
        """See `RequestInstance.resume`."""
        self._runtime.holds.release(request)

    async def check_ready(self) -> bool:
        """See `RequestInstance.check_ready`. One question answers all who ask meanwhile."""
        if self.unavailable is not None:
            return False
        if not self.has_ready_hook:
            return True
        if self._readiness is None:
            loop = self._loop_calls.loop
            self._readiness = loop.run_in_executor(None, self._model.is_ready)
            self._readiness.add_done_callback(self._forget_readiness)
        try:
            return await asyncio.wait_for(asyncio.shield(self._readiness), READY_TIMEOUT_S)
        except TimeoutError:
            return False

    def _forget_readiness(self, _: asyncio.Future[bool]) -> None:
        self._readiness = None

    def drop_sequence(self, sequence_id: int | str) -> None:
        """See `RequestInstance`."""
        if self._model.has_drop_hook:
            self._thread.drop(sequence_id)

    def kill(self) -> None:
        """See `RequestInstance.kill`. The thread cannot be ended: it is left alone with what it runs."""
        if not (self._executions or self._runtime.open or self._runtime.direct):
            return
        self.unavailable = f"the thread of instance '{self._name}' is stuck in the model's code"
        error = Unavailable(f"{self.unavailable}; the request was given up")
        executions, self._executions = self._executions, set()
        sink = self._sink
        if sink is None:
            return
        for execution in executions:
            execution.compute_input_end_ns = execution.compute_input_end_ns or execution.compute_start_ns
            execution.compute_output_start_ns = execution.compute_end_ns = time.monotonic_ns()
            sink.finish(execution, error)
        for request in list(self._runtime.open):  # of decoupled models: their executions have ended
            self._runtime.close_request(request)
            sink.respond(request, self._runtime.error_response(request, error))
        sink.change()

    def close(self) -> None:
        """See `Instance.close`: the model is finalised, unless its thread is stuck."""
        self._runtime.holds.end()
        self._thread.end(None if self.unavailable is None else _STUCK_S)

    def _report(self, execution: Execution, requests: list[InferenceRequest], outcome: Outcome) -> None:
        """Take what came of an execution, on the instance's thread."""
        self._loop_calls.put(self._finish, execution, requests, outcome)

    def _finish(self, execution: Execution, requests: list[InferenceRequest], outcome: Outcome) -> None:
        sink = self._sink
        if execution not in self._executions or sink is None:
            return
        self._executions.discard(execution)
        if isinstance(outcome, BackendFailed):
            sink.finish(execution, outcome)
            return
        if RUN_AGAIN in outcome:
            for index, request in enumerate(requests):
                if outcome[index] is RUN_AGAIN:
                    outcome[index] = None if sink.run_again(request) else self.batches.refuse_again(request)
        # First of all the thread gets its next batch: it does not wait for this one's answers to be written.
        sink.finish(execution)
        for request, response in zip(requests, outcome, strict=True):
            if response is not None:
                sink.respond(request, response)

    def __repr__(self) -> str:
        return f"ThreadInstance({self._name!r}, {len(self._executions)} executions)"


def _read_share_model(config: ModelConfig) -> bool:
    """Return whether the instances use one object.

    Raises:
        InvalidArgument: the parameter is neither ``yes`` nor ``no``.
    """
    value = config.parameter("SHARE_MODEL", "no")
    if value not in {"yes", "no"}:
        raise InvalidArgument(
            f"model '{config.name}': parameter SHARE_MODEL is '{value}'; expected 'yes' or 'no'"
        )
    return value == "yes"
