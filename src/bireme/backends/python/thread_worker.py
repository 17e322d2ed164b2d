"""What runs in the server's process for a Python model: the user's object, and the threads that execute requests with it.

A thread takes executions one by one and reports each one's outcome. Where ``execute`` is asynchronous the thread runs an
event loop, on which several executions overlap.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from inspect import iscoroutine, iscoroutinefunction
from queue import SimpleQueue
from typing import Any, NamedTuple

from bireme.backends.loop_calls import LoopCalls
from bireme.backends.python import dropped
from bireme.backends.python.async_runner import make_loop
from bireme.backends.python.batch import BadReturn
from bireme.backends.python.debug_desk import DebugDesk
from bireme.backends.python.model_file import format_error
from bireme.backends.python.readiness import judge_readiness
from bireme.backends.python.thread_batches import Batches, Outcome
from bireme.backends.python.thread_runtime import ThreadRuntime, enter, execution_of_context
from bireme.types import BackendFailed, BiremeError, Execution, InferenceRequest, Unavailable

log = logging.getLogger("bireme.backends.python")

Report = Callable[[Execution, list[InferenceRequest], Outcome], None]


class UserModel:
    """A ``TritonPythonModel`` object. Initialised once and finalised once, whatever the number of threads that use it."""

    def __init__(
        self, find_class: Callable[[], Any], runtime: ThreadRuntime, arguments: dict[str, str]
    ) -> None:
        """``find_class`` imports the model's file; ``arguments`` are those of ``initialize``."""
        self.runtime = runtime
        self.is_async = False
        self.has_ready_hook = False
        self.has_drop_hook = False
        self.num_users = 0
        """Instances that hold it."""
        self.execute: Callable[[list[Any]], Any]
        self._find_class = find_class
        self._arguments = arguments
        self._object: Any = None

    @property
    def is_initialised(self) -> bool:
        """Whether the object is ready to execute."""
        return self._object is not None

    def load(self) -> Callable[[], None]:
        """Import the model's class; return the function that makes and initialises the object. On the same thread.

        Both raise whatever the model's code raises.
        """
        model_class = self._find_class()
        self.is_async = iscoroutinefunction(model_class.execute)

        def initialize() -> None:
            made = model_class()
            hook = getattr(made, "initialize", None)
            if hook is not None:
                hook(dict(self._arguments))
            self.has_ready_hook = hasattr(made, "is_ready")
            self.has_drop_hook = hasattr(made, dropped.HOOK)
            self.execute = made.execute
            self._object = made
            self.runtime.may_call = True

        return initialize

    def is_ready(self) -> bool:
        """Ask the model's ``is_ready``, synchronous or not; what it raises means no."""
        before = enter(self.runtime)
        failure: BaseException | None = None
        answer: Any = None
        try:
            answer = self._object.is_ready()
            if iscoroutine(answer):
                answer = asyncio.run(answer)
        except BaseException as error:  # noqa: BLE001 - a model that fails here is not ready
            failure = error
        finally:
            enter(before)
        is_ready, reason = judge_readiness(answer, failure)
        if not is_ready:
            log.warning("model '%s': its is_ready says no: %s", self.runtime.model_name, reason)
        return is_ready

    def drop(self, sequence_id: int | str) -> None:
        """Tell the model that a sequence is over, on the thread that executes."""
        dropped.tell(self._object, sequence_id, self._log_error)

    async def drop_async(self, sequence_id: int | str) -> None:
        """As `drop`, on the loop that executes."""
        await dropped.tell_async(self._object, sequence_id, self._log_error)

    def _log_error(self, text: str) -> None:
        log.error("model '%s': %s", self.runtime.model_name, text)

    def release(self) -> None:
        """An instance needs the model no more; the last one finalises it. What ``finalize`` raises is logged."""
        self.num_users -= 1
        if self.num_users:
            return
        self.runtime.may_call = False
        made, self._object = self._object, None
        try:
            hook = getattr(made, "finalize", None)
            result = None if hook is None else hook()
            if iscoroutine(result):
                asyncio.run(result)
        except BaseException as error:  # noqa: BLE001 - the model ends in any case
            log.error(  # noqa: TRY400 (with the traceback as models know it)
                "Failed to finalize the model: %s", format_error(error)
            )
        self.runtime.close()


class _Drop(NamedTuple):
    sequence_id: int | str


class ModelThread:
    """The thread of one instance."""

    def __init__(self, model: UserModel, batches: Batches, report: Report, name: str) -> None:
        """``report`` takes the outcomes, on this thread."""
        self._model = model
        self._batches = batches
        self._report = report
        self._jobs: SimpleQueue[Execution | _Drop | None] = SimpleQueue()
        self._calls: LoopCalls | None = None
        """The way to the event loop of an asynchronous model."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._end: asyncio.Future[None] | None = None
        self._started: Future[None] = Future()
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)

    def start(self) -> None:
        """Start the thread, and wait until the model is initialised on it.

        Raises:
            BackendFailed: with the exception's text and where it was raised.
        """
        self._thread.start()
        self._started.result()

    def put(self, execution: Execution) -> None:
        """Run ``execution`` as soon as the thread is free."""
        if self._calls is None:
            self._jobs.put(execution)
        else:
            self._calls.put(self._begin, execution)

    def drop(self, sequence_id: int | str) -> None:
        """Tell the model that a sequence is over, after what was put before."""
        if self._calls is None:
            self._jobs.put(_Drop(sequence_id))
        else:
            self._calls.put(self._spawn, self._model.drop_async(sequence_id))

    def end(self, timeout_s: float | None) -> None:
        """Have the thread let go of the model and end; after ``timeout_s`` it is left alone with what it does."""
        if self._calls is None:
            self._jobs.put(None)
        else:
            self._calls.put(self._begin_end)
        self._thread.join(timeout_s)

    def _work(self) -> None:
        model = self._model
        enter(model.runtime)
        loop: asyncio.AbstractEventLoop | None = None
        try:
            initialize = None if model.is_initialised else model.load()
            if model.is_async:
                loop = make_loop()
                model.runtime.loops.add(loop)
                asyncio.set_event_loop(loop)  # of what the model makes for it in ``initialize``
                self._calls = LoopCalls(loop)
                self._end = loop.create_future()
            if initialize is not None:
                initialize()
        except BaseException as error:  # noqa: BLE001 - raised where it is waited for
            if loop is not None:
                model.runtime.loops.discard(loop)
                loop.close()
            self._started.set_exception(BackendFailed(describe(error)))
            return
        model.num_users += 1
        self._started.set_result(None)
        if loop is None:
            self._serve()
        else:
            loop.run_until_complete(self._serve_async())
        model.release()
        if loop is not None:
            model.runtime.loops.discard(loop)
            loop.close()

    def _serve(self) -> None:
        batches = self._batches
        executions = self._model.runtime.executions
        while (execution := self._jobs.get()) is not None:
            if isinstance(execution, _Drop):
                self._model.drop(execution.sequence_id)
                continue
            execution_of_context.set(execution)
            executions.append(execution)
            requests = list(execution.requests)
            outcome = batches.run(execution, requests)
            executions.remove(execution)
            self._report(execution, requests, outcome)
            # Nothing of the last batch may be kept alive while this thread waits for the next one.
            execution_of_context.set(None)
            del execution, requests, outcome

    async def _serve_async(self) -> None:
        assert self._end is not None
        await self._end
        while self._tasks:
            await asyncio.wait(self._tasks)

    def _begin_end(self) -> None:
        assert self._end is not None
        self._end.set_result(None)

    def _begin(self, execution: Execution) -> None:
        self._spawn(self._run(execution))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        assert self._calls is not None
        task = self._calls.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self, execution: Execution) -> None:
        execution_of_context.set(execution)
        executions = self._model.runtime.executions
        executions.append(execution)
        requests = list(execution.requests)
        outcome = await self._batches.run_async(execution, requests)
        executions.remove(execution)
        self._report(execution, requests, outcome)


class DeskWorker:
    """What `ModelThread` is for other instances: the way of one instance's executions to the desk."""

    def __init__(self, desk: DebugDesk, model: UserModel, batches: Batches, report: Report) -> None:
        self._desk = desk
        self._model = model
        self._batches = batches
        self._report = report
        self._loop: asyncio.AbstractEventLoop | None = None

    def start(self) -> None:
        """As `ModelThread.start`."""
        self._desk.call(self._initialize)

    def put(self, execution: Execution) -> None:
        """As `ModelThread.put`."""
        self._desk.post(partial(self._run, execution))

    def drop(self, sequence_id: int | str) -> None:
        """As `ModelThread.drop`."""
        self._desk.post(partial(self._drop, sequence_id))

    def _drop(self, sequence_id: int | str) -> None:
        before = enter(self._model.runtime)
        if self._loop is None:
            self._model.drop(sequence_id)
        else:
            self._loop.run_until_complete(self._model.drop_async(sequence_id))
        enter(before)

    def end(self, timeout_s: float | None) -> None:
        """As `ModelThread.end`."""
        with suppress(TimeoutError, Unavailable):
            self._desk.call(self._release, timeout_s)

    def _initialize(self) -> None:
        model = self._model
        before = enter(model.runtime)
        try:
            initialize = None if model.is_initialised else model.load()
            if model.is_async:
                self._loop = make_loop()
                model.runtime.loops.add(self._loop)
                asyncio.set_event_loop(self._loop)
            if initialize is not None:
                initialize()
        except BaseException as error:  # noqa: BLE001 - a model may even call exit()
            raise BackendFailed(describe(error)) from None
        finally:
            enter(before)
        model.num_users += 1

    def _run(self, execution: Execution) -> None:
        runtime = self._model.runtime
        requests = list(execution.requests)
        before = enter(runtime)
        execution_of_context.set(execution)
        runtime.executions.append(execution)
        if self._loop is None:
            outcome = self._batches.run(execution, requests)
        else:
            outcome = self._loop.run_until_complete(self._batches.run_async(execution, requests))
        runtime.executions.remove(execution)
        execution_of_context.set(None)
        enter(before)
        self._report(execution, requests, outcome)

    def _release(self) -> None:
        before = enter(self._model.runtime)
        self._model.release()
        enter(before)
        if self._loop is not None:
            self._model.runtime.loops.discard(self._loop)
            self._loop.close()


def describe(error: BaseException) -> str:
    """Return what is told of an exception of a model's own code."""
    return str(error) if isinstance(error, BadReturn | BiremeError) else format_error(error)
