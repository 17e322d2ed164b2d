"""AsyncRunner: the main loop of a worker process whose model's ``execute`` is a coroutine function.

An asyncio loop on the main thread reads the channel and runs the batches as tasks, several at a time.
"""

from __future__ import annotations

import asyncio
import select
import threading
from collections.abc import Coroutine
from contextlib import suppress
from inspect import iscoroutine
from typing import Any, Final

from bireme.backends.python import dropped
from bireme.backends.python.batches import Batch, Batches
from bireme.backends.python.holds import paced
from bireme.backends.python.model_file import format_error
from bireme.backends.python.process_runtime import execution_of_task
from bireme.backends.python.readiness import judge_readiness
from bireme.ipc.messages import CheckReady, DropSequence, Readiness

_MANY_LEASES: Final = 8
_IDLE_S: Final = 1.0
_IDLE_ROUNDS: Final = 3
"""After so many ticks without a message nobody wakes up any more: the first one only marks what the arena has free."""
_END_S: Final = 1.0
"""How long the model's own tasks may take to end once they are cancelled, after ``finalize``."""


def make_loop() -> asyncio.AbstractEventLoop:
    """Return a new event loop: uvloop's, where the model's environment has it."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


class AsyncRunner:
    """Serves one model instance on the thread that calls `run`."""

    def __init__(
        self, model: Any, batches: Batches, loop: asyncio.AbstractEventLoop, channel_fd: int
    ) -> None:
        self._model = model
        self._batches = batches
        self._runtime = batches.runtime
        self._exchange = batches.runtime.exchange
        self._loop = loop
        # libuv makes what it watches non-blocking: not the channel, in which threads of the model wait, and in which
        # a send waits while the server is behind.
        self._arrivals = select.epoll()
        self._arrivals.register(channel_fd, select.EPOLLIN)
        self._thread = threading.get_ident()
        self._tasks: set[asyncio.Task[None]] = set()
        self._end: asyncio.Future[bool] = loop.create_future()
        """Whether the server said so (or else is gone)."""
        self._idle_rounds = 0
        self._has_clock = False

    def run(self) -> None:
        """Run what the server asks for, until it says `Finalize` or is gone; then finish what runs."""
        loop = self._loop
        self._thread = threading.get_ident()
        self._runtime.loop = loop
        self._runtime.can_infer = True
        self._exchange.open_batch = self._batches.open
        self._exchange.take_tasks(self)
        loop.add_reader(self._arrivals, self._on_readable)
        # What the model's own tasks raise to end the process comes out of the loop; it ends only them.
        self._run_until(self._end)
        if self._end.result():
            self._run_until(loop.create_task(self._drain()))
        self._runtime.can_infer = False

    def close(self) -> None:
        """Cancel what the model left running and close the loop."""
        loop = self._loop
        loop.remove_reader(self._arrivals)
        self._arrivals.close()
        self._runtime.loop = None
        left = asyncio.all_tasks(loop)
        for task in left:
            task.cancel()
        if left:
            self._run_until(loop.create_task(_wait(left)))
        loop.close()

    def deliver(self, message: Any) -> None:
        """Take a task from whichever thread read it."""
        if threading.get_ident() == self._thread:
            self._begin(message)
        else:
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._begin, message)

    def _begin(self, message: Any) -> None:
        kind = type(message)
        if kind is Batch:
            self._spawn(self._execute(message))
        elif kind is CheckReady:
            self._spawn(self._check_ready(message.number))
        elif kind is DropSequence:
            self._spawn(dropped.tell_async(self._model, message.sequence_id, self._runtime.log_error))
        elif not self._end.done():
            self._end.set_result(message is not None)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _execute(self, batch: Batch) -> None:
        execution_of_task.set(batch.number)
        returned: Any = None
        try:
            returned = self._model.execute(batch.start())
            if iscoroutine(returned):
                returned = await paced(returned, self._runtime.holds, batch.request_numbers)
            batch.finish(returned)
        except BaseException as error:  # noqa: BLE001 - SystemExit, too: it ends the batch, not the process
            batch.fail(error)
        returned = None  # it may hold the last references to inputs, whose leases go back with the answer
        batch.answer()

    async def _check_ready(self, number: int) -> None:
        answer: Any = None
        failure: BaseException | None = None
        try:
            answer = self._model.is_ready()
            if iscoroutine(answer):
                answer = await answer
        except BaseException as error:  # noqa: BLE001 - a model that fails here is not ready
            failure = error
        self._exchange.send(Readiness(number, *judge_readiness(answer, failure)))

    def _on_readable(self) -> None:
        exchange = self._exchange
        exchange.poll(1)  # where there is more, the loop calls again: cheaper than to look in vain
        if exchange.is_lost or exchange.is_forked:
            self._loop.remove_reader(self._arrivals)
            return
        exchange.flush(_MANY_LEASES)
        self._idle_rounds = 0
        if not self._has_clock:
            self._has_clock = True
            self._loop.call_later(_IDLE_S, self._tick)

    def _tick(self) -> None:
        """Give back what nobody used for a while: to the server, and to the system."""
        exchange = self._exchange
        if not exchange.is_lost and not exchange.is_forked:
            exchange.flush()
            exchange.ledger.arena.trim()
        self._idle_rounds += 1
        self._has_clock = self._idle_rounds < _IDLE_ROUNDS
        if self._has_clock:
            self._loop.call_later(_IDLE_S, self._tick)

    async def _drain(self) -> None:
        while self._tasks:
            await asyncio.wait(self._tasks)

    def _run_until(self, future: asyncio.Future[Any]) -> None:
        while not future.done():
            try:
                self._loop.run_until_complete(future)
            except (SystemExit, KeyboardInterrupt) as error:
                self._log_error(error)
            except RuntimeError as error:  # the model stopped the loop: it is the server that ends it
                if self._loop.is_closed():
                    raise
                self._log_error(error)

    def _log_error(self, error: BaseException) -> None:
        self._runtime.log_error(format_error(error))


async def _wait(tasks: set[asyncio.Task[Any]]) -> None:
    await asyncio.wait(tasks, timeout=_END_S)
