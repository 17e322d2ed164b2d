"""SupervisedWorker: one worker process that is started again when it has died. What it is asked to do lies in a subclass."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from bireme.backends.errors import make_error
from bireme.backends.restart import RestartPolicy
from bireme.ipc.ledger import Ledger
from bireme.ipc.messages import Call, ErrorData, Finalize, FromWorker, Released, Result, Start, Started
from bireme.ipc.worker_process import WorkerProcess
from bireme.types import BackendFailed, BiremeError, Unavailable

log = logging.getLogger("bireme.backends.python")

_FINALIZE_TIMEOUT_S: Final = 30.0
_KILL_GRACE_S: Final = 0.05
"""Before a process that was killed on purpose is started again: its model may be about to be closed."""
_EXIT_GRACE_S: Final = 2.0
LOOK_S: Final = 1.0
"""Between two looks of a thread that waits for the loop, which may have been closed meanwhile."""
_FLUSH_S: Final = 1.0
"""How long an idle process waits at most for memory that it lent."""


@dataclass(frozen=True, slots=True)
class Launch:
    """How one instance's process is started."""

    model: str
    """For messages: ``model 'm' version 1``."""
    instance: str
    spawn: Callable[[], WorkerProcess]
    """Blocking; raises `OSError`."""
    settings: dict[str, str]
    """For its `Start` message."""


class SupervisedWorker:
    """Loop thread only, except where a method says otherwise."""

    def __init__(self, loop: asyncio.AbstractEventLoop, launch: Launch) -> None:
        self.unavailable: str | None = f"the process of instance '{launch.instance}' is not started yet"
        self.retry_delay_s = 0.0
        self.num_restarts = 0
        """How often it came back after it had died."""
        self._loop = loop
        self._launch = launch
        self._policy = RestartPolicy()
        self._worker: WorkerProcess | None = None
        """The process, from its start to its end."""
        self._is_up = False
        """The process is initialised."""
        self._opening: Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._is_closed = False
        self._ledger: Ledger
        """That of the process, from its start on."""
        self._flush_timer: asyncio.TimerHandle | None = None
        self._handlers: dict[type, Callable[[Any], None]] = {
            Started: self._on_started,
            Released: self._on_released,
        }

    @property
    def pid(self) -> int | None:
        """The process's id; None while there is none."""
        return None if self._worker is None else self._worker.pid

    # What a subclass does.

    def _on_begin(self, worker: WorkerProcess) -> None:
        """``worker`` is about to initialise."""
        raise NotImplementedError

    def _on_up(self, facts: dict[str, str]) -> None:
        """The process is initialised: what it says of itself."""
        raise NotImplementedError

    def _on_down(self, error: Unavailable) -> None:
        """The initialised process is gone: ``error`` answers whatever it had. ``unavailable`` is set."""
        raise NotImplementedError

    def _on_end(self) -> None:
        """A process is gone, whether it was initialised or not."""
        raise NotImplementedError

    def _on_change(self) -> None:
        """``unavailable`` or ``retry_delay_s`` is another than before."""
        raise NotImplementedError

    # Start.

    def open(self) -> None:
        """Start the process and wait until it is initialised, however long that takes. On a loading thread.

        Raises:
            BiremeError: what the process says that is wrong, or how it ended.
        """
        opening: Future[None] = Future()
        worker = self._spawn()
        self._loop.call_soon_threadsafe(self._begin, worker, opening)
        while True:
            try:
                return opening.result(LOOK_S)
            except TimeoutError:
                if self._loop.is_closed():
                    worker.kill()
                    raise Unavailable(f"{self._launch.model}: the server was stopped") from None

    def _spawn(self) -> WorkerProcess:
        try:
            return self._launch.spawn()
        except OSError as error:
            raise BackendFailed(
                f"{self._launch.model}: cannot start the process of instance '{self._launch.instance}': {error}"
            ) from error

    def _begin(self, worker: WorkerProcess, opening: Future[None] | None) -> None:
        self._worker = worker
        self._opening = opening
        self._ledger = worker.ledger
        self._on_begin(worker)
        worker.attach(self._loop, self._listen(worker), partial(self._on_lost, worker))
        worker.send(Start(self._launch.settings))

    def _listen(self, worker: WorkerProcess) -> Callable[[FromWorker], None]:
        """Return what takes the messages of ``worker``, for as long as it is the current one."""
        handlers = self._handlers

        def take(message: FromWorker) -> None:
            if worker is not self._worker:
                return
            try:
                handlers[type(message)](message)
            except Exception:
                launch = self._launch
                log.exception("%s: instance '%s' said what makes no sense", launch.model, launch.instance)
                self._on_lost(worker, "was ended, as it said what makes no sense")

        return take

    def _on_started(self, message: Started) -> None:
        worker = self._worker
        assert worker is not None
        if message.error is not None:
            # It ends by itself, once it has written what its model printed.
            self._loop.call_later(_EXIT_GRACE_S, worker.kill)
            self._worker = None
            self._on_end()
            self._fail_start(make_error(message.error.code, message.error.message))
            return
        self._is_up = True
        self.unavailable = None
        self.retry_delay_s = 0.0
        self._policy.note_start(time.monotonic_ns())
        self._on_up(message.facts)
        if self._opening is not None:
            opening, self._opening = self._opening, None
            opening.set_result(None)
            return
        self.num_restarts += 1
        log.info(
            "%s: instance '%s' serves again, in process %d",
            self._launch.model,
            self._launch.instance,
            worker.pid,
        )
        self._on_change()

    def _fail_start(self, error: BiremeError) -> None:
        """The process cannot be started, or it did not come to be initialised."""
        self._drop_worker()
        if self._opening is not None:
            opening, self._opening = self._opening, None
            opening.set_exception(error)
            return
        if self._is_closed:
            return
        self.unavailable = f"instance '{self._launch.instance}' cannot be started again: {error.message}"
        self._restart_later(self._policy.note_death(time.monotonic_ns()))
        log.error("%s: %s; the next try is in %g s", self._launch.model, self.unavailable, self.retry_delay_s)
        self._on_change()

    # Death and restart.

    def _on_lost(self, worker: WorkerProcess, reason: str) -> None:
        if worker is not self._worker:
            return
        if self._is_up:
            self._lose(worker, reason)
            return
        self._fail_start(
            BackendFailed(
                f"the process of instance '{self._launch.instance}' (pid {worker.pid}) {reason} while it initialised"
            )
        )

    def _lose(self, worker: WorkerProcess, reason: str, delay_s: float = 0.0) -> None:
        pid = worker.pid
        self._drop_worker()
        self.unavailable = f"the process of instance '{self._launch.instance}' (pid {pid}) {reason}"
        if not self._is_closed:
            self._restart_later(max(delay_s, self._policy.note_death(time.monotonic_ns())))
            when = f"in {self.retry_delay_s:g} s" if self.retry_delay_s else "at once"
            if delay_s:  # it was killed on purpose
                when = "unless its model is closed"
            log.error("%s: %s; it is started again %s", self._launch.model, self.unavailable, when)
        self._on_down(
            Unavailable(
                f"{self._launch.model}: {self.unavailable}; the request was lost and may be sent again"
            )
        )
        self._on_change()

    def _drop_worker(self) -> None:
        worker, self._worker = self._worker, None
        self._is_up = False
        if worker is not None:
            worker.kill()
            if self._flush_timer is not None:
                self._flush_timer.cancel()
                self._flush_timer = None
            self._on_end()

    def _restart_later(self, delay_s: float) -> None:
        # A short one is no reason to turn requests away.
        self.retry_delay_s = delay_s if delay_s > _KILL_GRACE_S else 0.0
        self._timer = self._loop.call_later(delay_s, self._restart)

    def _restart(self) -> None:
        self._timer = None
        if self._is_closed:
            return
        if self.retry_delay_s:
            self.retry_delay_s = 0.0
            self._on_change()
        self._loop.run_in_executor(None, self._spawn).add_done_callback(self._on_spawned)

    def _on_spawned(self, spawned: asyncio.Future[WorkerProcess]) -> None:
        if spawned.cancelled():
            return
        error = spawned.exception()
        if error is not None:
            if not isinstance(error, BiremeError):
                error = BackendFailed(f"{type(error).__name__}: {error}")
            self._fail_start(error)
        elif self._is_closed:
            spawned.result().kill()
        else:
            self._begin(spawned.result(), None)

    # Memory.

    def _on_released(self, message: Released) -> None:
        self._ledger.take_back(message.released)

    def _flush_soon(self) -> None:
        """The process has lent something: it gets its memory back in a while, if no message takes the news along."""
        if self._flush_timer is None:
            self._flush_timer = self._loop.call_later(_FLUSH_S, self._flush)

    def _flush(self) -> None:
        self._flush_timer = None
        ledger = self._ledger
        if self._worker is None or not self._is_up:
            return
        if ledger.released:
            self._worker.send(Released(ledger.take_released()))
        if ledger.num_borrowed:
            self._flush_soon()

    # End.

    def kill(self) -> None:
        """End the process with all that it runs; unless the instance is closed, it is started again."""
        worker = self._worker
        if worker is not None and self._is_up:
            self._lose(worker, "was killed, as what it ran did not end", _KILL_GRACE_S)
        elif worker is not None:
            self._fail_start(Unavailable(f"its process (pid {worker.pid}) was killed while it initialised"))

    def close(self) -> None:
        """Have the process run its finalize and end, or end it after 30 s. Blocking: not on the loop thread."""
        ended: Future[WorkerProcess | None] = Future()
        try:
            self._loop.call_soon_threadsafe(self._begin_close, ended)
        except RuntimeError:  # the loop is closed: nobody reads what the process says
            self._is_closed = True
            worker = self._worker
            if worker is not None:
                worker.kill()
            return
        worker = ended.result()
        if worker is not None:
            worker.stop(_FINALIZE_TIMEOUT_S)
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._end, worker)

    def _end(self, worker: WorkerProcess) -> None:
        """The process has ended as it was told to; a batch that it still had must not wait for ever."""
        if worker is self._worker:
            self._lose(worker, "ended, as its model was closed")

    def _begin_close(self, ended: Future[WorkerProcess | None]) -> None:
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        worker = self._worker
        if worker is not None and self._is_up:
            worker.send(Finalize())
        elif worker is not None:
            self._drop_worker()
            worker = None
        ended.set_result(worker)


class Completion(SupervisedWorker):
    """A process that is asked for its facts once, and ends then."""

    def __init__(self, loop: asyncio.AbstractEventLoop, launch: Launch) -> None:
        super().__init__(loop, launch)
        self.facts: dict[str, str] = {}
        self._handlers[Call] = self._refuse_call

    def _refuse_call(self, message: Call) -> None:
        if message.call and self._worker is not None:
            error = ErrorData(
                "UNAVAILABLE", f"{message.method} is not possible while the config is completed"
            )
            self._worker.send(Result(message.call, error))

    def _on_begin(self, worker: WorkerProcess) -> None:
        """See `SupervisedWorker`."""

    def _on_up(self, facts: dict[str, str]) -> None:
        self.facts = facts
        self._is_closed = True  # it ends by itself, and is not started again

    def _on_down(self, error: Unavailable) -> None:
        """See `SupervisedWorker`."""

    def _on_end(self) -> None:
        """See `SupervisedWorker`."""

    def _on_change(self) -> None:
        """See `SupervisedWorker`."""
