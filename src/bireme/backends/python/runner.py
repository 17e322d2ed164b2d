"""Runner: the main loop of a worker process whose model's ``execute`` is an ordinary function.

The main thread receives a batch, runs it and answers it, one after the other.
"""

from __future__ import annotations

import asyncio
import threading
from inspect import iscoroutine
from typing import Any

from bireme.backends.python import dropped
from bireme.backends.python.batches import Batch, Batches
from bireme.backends.python.exchange import Waiter
from bireme.backends.python.readiness import judge_readiness
from bireme.ipc.messages import CheckReady, DropSequence, Readiness


class Runner:
    """Serves one model instance on the thread that calls `run`."""

    def __init__(self, model: Any, batches: Batches) -> None:
        self._model = model
        self._batches = batches
        self._runtime = batches.runtime
        self._tasks = _Tasks(self)
        self.is_busy = False
        """Whether the main thread runs the model's code."""

    def run(self) -> None:
        """Run what the server asks for, until it says `Finalize` or is gone."""
        exchange = self._runtime.exchange
        exchange.open_batch = self._batches.open
        exchange.take_tasks(self._tasks)
        released = exchange.ledger.released
        self._runtime.can_infer = True
        while True:
            if released:
                exchange.flush()
            message = exchange.wait(self._tasks)
            kind = type(message)
            if kind is Batch:
                self.is_busy = True
                self._execute(message)
                self.is_busy = False
            elif kind is CheckReady:
                self.check_ready(message.number)
            elif kind is DropSequence:
                dropped.tell(self._model, message.sequence_id, self._runtime.log_error)
            else:
                break
        self._runtime.can_infer = False

    def _execute(self, batch: Batch) -> None:
        self._runtime.execution = batch.number
        try:
            returned = self._model.execute(batch.start())
            if returned.__class__ is not list and iscoroutine(returned):
                returned = asyncio.run(returned)
            batch.finish(returned)
        except BaseException as error:  # noqa: BLE001 - SystemExit, too: it ends the batch, not the process
            batch.fail(error)
        self._runtime.execution = 0
        returned = None  # it may hold the last references to inputs, whose leases go back with the answer
        batch.answer()

    def check_ready(self, number: int) -> None:
        """Ask the model whether it is ready, and tell the server."""
        is_ready, reason = self._ask_ready()
        self._runtime.exchange.send(Readiness(number, is_ready, reason))

    def _ask_ready(self) -> tuple[bool, str]:
        try:
            answer = self._model.is_ready()
            if iscoroutine(answer):
                answer = asyncio.run(answer)
        except BaseException as error:  # noqa: BLE001 - a model that fails here is not ready
            return judge_readiness(None, error)
        return judge_readiness(answer)


class _Tasks(Waiter):
    """What the main thread is to do."""

    __slots__ = ("_runner",)

    def __init__(self, runner: Runner) -> None:
        super().__init__()
        self._runner = runner

    def deliver(self, message: Any) -> None:
        """Take a task, from any thread. Readiness is not to wait for a batch that waits for another model."""
        if type(message) is CheckReady and self._runner.is_busy:
            threading.Thread(target=self._runner.check_ready, args=(message.number,), daemon=True).start()
            return
        super().deliver(message)
