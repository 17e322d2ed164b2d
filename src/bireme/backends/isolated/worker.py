"""IsolatedWorker: the process of a model, as its instances see it, whose threads wait for what it answers."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING

from bireme.backends.errors import ModelError, make_error
from bireme.backends.loop_calls import LoopCalls
from bireme.backends.supervised import LOOK_S, Launch, SupervisedWorker
from bireme.ipc.messages import Answer, Ask, Execute, Executed, LogLine, RequestData
from bireme.telemetry.log import get_logger
from bireme.types import Array, Tensor, Unavailable

if TYPE_CHECKING:
    from bireme.ipc.ledger import Ledger
    from bireme.ipc.worker_process import WorkerProcess


class ExecutionFailed(Exception):
    """What the framework raised in the model's process."""


class _Run:
    """One execution in the process, and the thread that waits for it."""

    __slots__ = ("_lock", "_outcome")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()
        self._outcome: list[Tensor] | Exception

    def end(self, outcome: list[Tensor] | Exception) -> None:
        self._outcome = outcome
        self._lock.release()

    def wait(self) -> list[Tensor]:
        self._lock.acquire()
        outcome = self._outcome
        if isinstance(outcome, Exception):
            raise outcome
        return outcome


class IsolatedWorker(SupervisedWorker):
    """`execute` is for the threads of instances, `ask` for loading threads, the rest for the loop thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop, launch: Launch) -> None:
        super().__init__(loop, launch)
        self._ledger: Ledger
        self._loop_calls = LoopCalls(loop)
        self._numbers = itertools.count(1)
        self._runs: dict[int, _Run] = {}
        self._asked: dict[int, Future[str]] = {}
        self._watchers: list[Callable[[], None]] = []
        self._death = ""
        """What was told of the last process that died. No exception: each that is raised has frames that hold tensors."""
        self._logger = get_logger("bireme.backends.isolated")
        self._handlers |= {
            Executed: self._on_executed,
            Answer: self._on_answer,
            LogLine: self._on_log,
        }

    def watch(self, change: Callable[[], None]) -> None:
        """Call ``change`` on the loop whenever ``unavailable`` is another than before."""
        self._watchers.append(change)

    # What instances and loads ask.

    def execute(self, index: int, inputs: dict[str, Array]) -> dict[str, Array]:
        """Run instance ``index`` over one batch; wait for its outputs.

        Raises:
            Unavailable: the process has died, or is not up again.
            ExecutionFailed: with the text of the exception there.
        """
        worker = self._worker
        if worker is None or not self._is_up:
            raise self._away()
        ledger = worker.ledger
        number = next(self._numbers)
        run = _Run()
        try:
            tensors = [ledger.export(Tensor.from_numpy(name, array)) for name, array in inputs.items()]
        except Unavailable as error:  # maybe as the process has just died: the loop knows
            self._loop_calls.put(self._fail_run, worker, error, run)
            run.wait()
            raise
        # Sent on the loop, which alone writes to the connection; large inputs were copied here, on this thread.
        message = Execute(number, [RequestData(index, "", tensors)], ledger.take_released())
        self._loop_calls.put(self._send_run, worker, message, run)
        return {tensor.name: tensor.to_numpy() for tensor in run.wait()}

    def ask(self, method: str, argument: str) -> str:
        """Have the process do ``method``; return its result.

        Raises:
            BiremeError: whatever was raised there, or how the process ended.
        """
        answer: Future[str] = Future()
        self._loop_calls.put(self._send_ask, Ask(next(self._numbers), method, argument), answer)
        while True:
            try:
                return answer.result(LOOK_S)
            except TimeoutError:
                if self._loop.is_closed():
                    raise Unavailable(f"{self._launch.model}: the server was stopped") from None

    def _send_run(self, worker: WorkerProcess, message: Execute, run: _Run) -> None:
        if worker is not self._worker:
            run.end(Unavailable(self._death) if self._death else self._away())
            return
        self._runs[message.number] = run
        worker.send(message)

    def _fail_run(self, worker: WorkerProcess, error: Unavailable, run: _Run) -> None:
        run.end(Unavailable(self._death) if worker is not self._worker and self._death else error)

    def _send_ask(self, message: Ask, answer: Future[str]) -> None:
        if self._worker is None or not self._is_up:
            answer.set_exception(self._away())
            return
        self._asked[message.number] = answer
        self._worker.send(message)

    def _away(self) -> Unavailable:
        return Unavailable(f"{self._launch.model}: {self.unavailable or 'its process is not up'}")

    # What the process says.

    def _on_executed(self, message: Executed) -> None:
        ledger = self._ledger
        if message.released:
            ledger.take_back(message.released)
        run = self._runs.pop(message.number, None)
        failure = message.error
        outputs = [
            ledger.adopt(data) for response in message.responses if response for data in response.outputs
        ]
        if run is not None:
            run.end(outputs if failure is None else _error(failure.code, failure.message))
        self._flush_soon()

    def _on_answer(self, message: Answer) -> None:
        answer = self._asked.pop(message.number, None)
        if answer is None:
            return
        if message.error is None:
            answer.set_result(message.result)
        else:
            answer.set_exception(make_error(message.error.code, message.error.message))

    def _on_log(self, message: LogLine) -> None:
        logger = self._logger
        if logger.isEnabledFor(message.level):
            logger.handle(
                logger.makeRecord(
                    logger.name, message.level, message.file, message.line, message.message, (), None
                )
            )

    # The life of the process: see `SupervisedWorker`.

    def _on_begin(self, worker: WorkerProcess) -> None:
        """See `SupervisedWorker`."""

    def _on_up(self, facts: dict[str, str]) -> None:
        """See `SupervisedWorker`."""

    def _on_down(self, error: Unavailable) -> None:
        self._death = error.message
        runs, self._runs = self._runs, {}
        asked, self._asked = self._asked, {}
        for run in runs.values():
            run.end(Unavailable(self._death))
        for answer in asked.values():
            answer.set_exception(error)

    def _on_end(self) -> None:
        """See `SupervisedWorker`."""

    def _on_change(self) -> None:
        for change in self._watchers:
            change()

    def __repr__(self) -> str:
        return f"IsolatedWorker({self._launch.instance!r}, pid {self.pid}, {len(self._runs)} executions)"


def _error(code: str, message: str) -> Exception:
    return ExecutionFailed(message) if code == ModelError.code else make_error(code, message)
