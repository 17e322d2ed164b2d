"""ThreadRuntime: what a model that runs in the server's process needs from it, and whose code is running in a thread.

Requests, responses and tensors are the engine's own objects, handed on as they are. What belongs to the engine happens
on its loop: calls go there through one queue, which keeps their order.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from concurrent.futures import Future
from contextlib import suppress
from contextvars import ContextVar
from typing import Any, Final, TypeVar

from bireme.backends.errors import UNANSWERED
from bireme.backends.interface import Host, ResponseSink
from bireme.backends.loop_calls import LoopCalls
from bireme.backends.python import runtime
from bireme.backends.python.callee import check_callee
from bireme.backends.python.holds import Holds, Passage, Wake, running_loop, size_of
from bireme.backends.python.process_runtime import ABANDONED, RETURNED, RUNNING
from bireme.backends.python.thread_answers import Answer, Stream, TaskAnswer
from bireme.telemetry.log import get_logger, verbose_level
from bireme.types import (
    BackendFailed,
    BiremeError,
    Execution,
    InferenceRequest,
    InferenceResponse,
    Unavailable,
)

T = TypeVar("T")

_NO_ANSWER: Final = frozenset({"increment", "set", "observe", "drop_series", "drop_family"})
"""Metric operations that return nothing: nobody waits for them."""

_VERBOSE: Final = 5
"""The level of verbose lines, as models say it."""

_LOOK_S: Final = 1.0
"""Between two looks of a thread that waits for the loop, which may have been closed meanwhile."""

execution_of_context: Final[ContextVar[Execution | None]] = ContextVar("execution", default=None)
"""The execution whose code is running here, in threads and tasks that run ``execute``."""


class ThreadRuntime:
    """One model object's way to the engine: `bireme.backends.python.runtime.Runtime`. Any thread may use it."""

    def __init__(self, host: Host, model_name: str, model_version: int, version_dir: str) -> None:
        self.model_name = model_name
        self.model_version = model_version
        self.version_dir = version_dir
        self.executions: list[Execution] = []
        """What its instances run."""
        self.open: dict[InferenceRequest, int] = {}
        """The requests that have no final response yet: `RUNNING`, `ABANDONED` or `RETURNED`."""
        self.direct: dict[InferenceRequest, Answer] = {}
        """The requests of callers that wait on their own threads for them."""
        self.holds: Holds[InferenceRequest] = Holds()
        self.loops: set[asyncio.AbstractEventLoop | None] = {host.loop}
        """Loops on which no send waits: those of its instances that execute asynchronously, and the server's."""
        self.may_call = False
        self._refusal = RuntimeError("BLS is only supported during the 'execute' function.")
        """Why other models cannot be called while ``may_call`` is false."""
        """Whether it executes requests, so that its code may ask other models."""
        self.logs_to_stderr = False
        """Whether its lines are no part of the server's log (``auto_complete_config``)."""
        self.sink: ResponseSink | None = None
        self.loop_calls = LoopCalls(host.loop)
        self._passage = Passage(self._ask_receipt)
        self._host = host
        self._logger = get_logger(f"bireme.model.{model_name}")

    def refuse_calls(self, reason: str) -> None:
        """Let the model call no others, and say why to those who try."""
        self.may_call = False
        self._refusal = runtime.CallsRefused(reason)

    # Other models. ``request.respond`` is set here: a request is given to the engine once.

    def infer(self, request: InferenceRequest) -> InferenceResponse:
        """See `Runtime.infer`."""
        if self.may_call:
            request.parent = self._find_execution()
            try:
                response = self._host.call_directly(request)
            except BiremeError as error:
                return _refused(request, error)
            if response is not None:
                return response
        answer = Answer()
        self._send(request, answer.take, is_decoupled=False)
        return answer.wait()

    def infer_async(self, request: InferenceRequest) -> Awaitable[InferenceResponse]:
        """See `Runtime.infer_async`. Cancelling the future takes the call back."""
        answer = TaskAnswer()
        self._send(request, answer.take, is_decoupled=False)

        def on_done(future: asyncio.Future[InferenceResponse]) -> None:
            if future.cancelled():
                self._take_back(request)

        answer.future.add_done_callback(on_done)
        return answer.future

    def stream(self, request: InferenceRequest) -> Stream:
        """See `Runtime.stream`."""
        host, put = self._host, self.loop_calls.put
        stream = Stream(
            lambda: put(host.cancel, request),
            lambda: host.hold(request),
            lambda: put(host.resume, request),
        )
        self._send(request, stream.take, is_decoupled=True)
        return stream

    def _send(
        self,
        request: InferenceRequest,
        respond: Callable[[InferenceRequest, InferenceResponse], None],
        *,
        is_decoupled: bool,
    ) -> None:
        if not self.may_call:
            raise self._refusal
        request.respond = respond
        request.parent = self._find_execution()
        self.loop_calls.put(self._submit, request, is_decoupled)

    def _find_execution(self) -> Execution | None:
        """Return the execution whose code asks; in a thread that ``execute`` started, the one that runs."""
        execution = execution_of_context.get()
        if execution is None and len(self.executions) == 1:
            execution = self.executions[0]
        return execution

    def _submit(self, request: InferenceRequest, is_decoupled: bool) -> None:  # noqa: FBT001 (a call through a queue)
        try:
            check_callee(self._host, request, takes_many=is_decoupled)
            self._host.submit(request)
        except BiremeError as error:
            request.respond(request, _refused(request, error))

    def _take_back(self, request: InferenceRequest) -> None:
        self.loop_calls.put(self._host.cancel, request)

    # The requests that this model runs.

    def respond(self, request: InferenceRequest, response: InferenceResponse) -> None:
        """See `Runtime.respond`. What comes after a final response is dropped."""
        if request not in self.open:
            return
        if response.final:
            self.close_request(request)
            self._deliver_soon(request, self.stamp(response))
            return
        self._await_room(request)
        if request in self.open:  # still
            self._deliver_soon(request, self.stamp(response))
            self._passage.note(size_of(response.outputs))

    def hold(self, request: InferenceRequest) -> None:
        """Have senders to ``request`` wait, until it is released, cancelled or has had its final response."""
        if not request.cancelled:
            self.holds.hold(request)
        if request not in self.open:  # it may have had its final response, and nobody would release it
            self.holds.release(request)

    def close_request(self, request: InferenceRequest) -> None:
        """``request`` needs no more responses."""
        self.open.pop(request, None)
        self.holds.release(request)

    def _await_room(self, request: InferenceRequest) -> None:
        """Return when ``request`` is not held (any more)."""
        holds = self.holds
        while request in holds:
            if running_loop() in self.loops:
                holds.owe(request)
                return
            lock = threading.Lock()
            lock.acquire()
            if holds.join(request, lock.release):
                lock.acquire()

    def _ask_receipt(self) -> Wake:
        """See `Passage`."""
        lock = threading.Lock()
        lock.acquire()
        self.loop_calls.put(lock.release)

        def wait() -> None:
            if running_loop() is self.loop_calls.loop:
                return
            while not lock.acquire(timeout=_LOOK_S):
                if self.loop_calls.loop.is_closed():
                    return

        return wait

    def abandon(self, request: InferenceRequest) -> None:
        """See `Runtime.abandon`. Called by the garbage collector, in any thread."""
        state = self.open.get(request)
        if state == RUNNING:
            self.open[request] = ABANDONED
        elif state == RETURNED:
            self.close_request(request)
            self._deliver_soon(request, self.orphan_response(request))

    def orphan_response(self, request: InferenceRequest) -> InferenceResponse:
        """Return the answer to a request that the model cannot answer any more."""
        return self.error_response(request, BackendFailed(f"model '{self.model_name}' {UNANSWERED}"))

    def error_response(self, request: InferenceRequest, error: BiremeError) -> InferenceResponse:
        """Return the response that ends ``request`` with ``error``."""
        return InferenceResponse(self.model_name, self.model_version, request.id, error=error)

    def stamp(self, response: InferenceResponse) -> InferenceResponse:
        """Have ``response`` say which version answers: its request may have asked for the latest."""
        response.model_version = self.model_version
        return response

    def _deliver_soon(self, request: InferenceRequest, response: InferenceResponse) -> None:
        answer = self.direct.get(request)
        if answer is None:
            self.loop_calls.put(self._deliver, request, response)
        else:
            answer.take(request, response)

    def _deliver(self, request: InferenceRequest, response: InferenceResponse) -> None:
        if self.sink is not None:
            self.sink.respond(request, response)

    def is_cancelled(self, request: InferenceRequest) -> bool:
        """See `Runtime.is_cancelled`."""
        return request.cancelled

    # The server.

    def log(self, level: int, message: str, file: str, line: int) -> None:
        """See `Runtime.log`."""
        if self.logs_to_stderr:
            sys.stderr.write(f"{message}\n")
            return
        logger = self._logger
        level = verbose_level(1) if level <= _VERBOSE else level
        if logger.isEnabledFor(level):
            logger.handle(logger.makeRecord(logger.name, level, file, line, message, (), None))

    def load_model(self, name: str, config: str, files: Mapping[str, bytes] | None) -> None:
        """See `Runtime.load_model`."""
        self._await(self._host.load_model(name, config or None, files))

    def unload_model(self, name: str, *, unload_dependents: bool) -> None:
        """See `Runtime.unload_model`."""
        self._await(self._host.unload_model(name, unload_dependents=unload_dependents))

    def is_model_ready(self, name: str, version: str) -> bool:
        """See `Runtime.is_model_ready`."""
        return self._await(self._host.is_model_ready(name, int(version) if version else -1))

    def metric(self, operation: str, **arguments: Any) -> float | None:
        """See `Runtime.metric`. Changes of values are not waited for: their errors are in the server's log."""
        if self._is_on_loop():
            return self._host.custom_metrics.do(self, operation, arguments)
        if operation in _NO_ANSWER:
            self.loop_calls.put(self._change_metric, operation, arguments)
            return None
        outcome: Future[float | None] = Future()
        self.loop_calls.put(self._ask_metric, operation, arguments, outcome)
        return outcome.result()

    def _change_metric(self, operation: str, arguments: dict[str, Any]) -> None:
        try:
            self._host.custom_metrics.do(self, operation, arguments)
        except BiremeError as error:
            self._logger.warning("a call of the model failed: %s", error.message)

    def _ask_metric(self, operation: str, arguments: dict[str, Any], outcome: Future[float | None]) -> None:
        try:
            outcome.set_result(self._host.custom_metrics.do(self, operation, arguments))
        except BaseException as error:  # noqa: BLE001 - raised where it was asked for
            outcome.set_exception(error)

    def _is_on_loop(self) -> bool:
        """Whether this is the server's own loop thread, which must not wait for itself."""
        return running_loop() is self._host.loop

    def _await(self, work: Coroutine[Any, Any, T]) -> T:
        if self._is_on_loop():
            work.close()
            raise RuntimeError(
                f"model '{self.model_name}' runs on the server's loop and cannot wait for the server"
            )
        try:
            future = asyncio.run_coroutine_threadsafe(work, self._host.loop)
        except RuntimeError:
            work.close()
            raise Unavailable("Server not ready: it has been stopped") from None
        return future.result()

    def close(self) -> None:
        """Let go of what the model holds in the server."""
        self.may_call = False
        self.holds.end()
        self.loop_calls.put(self._host.custom_metrics.forget, self)

    def __repr__(self) -> str:
        return f"ThreadRuntime({self.model_name!r}, {len(self.executions)} executions)"


# Whose code is running? An instance's own thread says so itself. In any other thread (of a pool, or started by the
# model) it is the model whose module is nearest on the stack.

_thread: Final = threading.local()
_runtimes: Final[dict[str, ThreadRuntime]] = {}
"""By the top package under which a model's modules are imported."""


def enter(current: ThreadRuntime | None) -> ThreadRuntime | None:
    """Say whose code runs in the calling thread from now on; return what was said before."""
    before: ThreadRuntime | None = getattr(_thread, "runtime", None)
    _thread.runtime = current
    return before


def register(package: str, current: ThreadRuntime) -> None:
    """Have modules of ``package`` belong to ``current``."""
    _runtimes[package] = current
    runtime.set_current(find)


def forget(package: str) -> None:
    """Undo `register`, and forget the modules of ``package``."""
    with suppress(KeyError):
        del _runtimes[package]
    for name in [name for name in list(sys.modules) if name.partition(".")[0] == package]:
        sys.modules.pop(name, None)


def find() -> ThreadRuntime:
    """Return the runtime of the model whose code called this.

    Raises:
        RuntimeError: no model did.
    """
    current: ThreadRuntime | None = getattr(_thread, "runtime", None)
    if current is not None:
        return current
    frame = sys._getframe(1)  # noqa: SLF001 (the interpreter's way to the stack)
    while frame is not None:
        package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        current = _runtimes.get(package)
        if current is not None:
            return current
        frame = frame.f_back  # type: ignore[assignment]
    raise RuntimeError("no model's code is running in this thread")


def _refused(request: InferenceRequest, error: BiremeError) -> InferenceResponse:
    # Source: Triton ``request_executor.cc`` (Infer): whatever the reason, the code is INTERNAL.
    failure = BackendFailed(f"Model {request.model_name} - Error when running inference: {error.message}")
    return InferenceResponse(request.model_name, request.model_version, request.id, error=failure)
