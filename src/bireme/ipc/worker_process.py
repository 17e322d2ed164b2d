"""WorkerProcess: the server's side of one worker process, from its spawn to the moment that nothing of it is left."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from bireme.ipc import fork_server
from bireme.ipc.arena import Arena, claim_segments
from bireme.ipc.channel import LoopChannel, make_pair
from bireme.ipc.fork_server import Process
from bireme.ipc.forker import SOURCE_DIRECTORY
from bireme.ipc.ledger import Ledger
from bireme.ipc.lifeline import make_lifeline
from bireme.ipc.messages import FromWorker, ToWorker

PATH_VARIABLE: Final = "BIREME_WORKER_PATH"
"""The environment variable with the folders, separated as in ``PATH``, in which a worker looks for modules last."""
# The environment's own packages win: where ours lie comes last. The current directory is not one of them.
_BOOTSTRAP: Final = (
    f"import os, sys; sys.path[:] = [p for p in sys.path if p] + os.environ.pop({PATH_VARIABLE!r}).split(os.pathsep); "
    "from bireme.ipc.worker import main; main()"
)
_CLOSE_GRACE_S: Final = 0.5
"""How long a worker that closed its connection may take to end."""
_KILL_TIMEOUT_S: Final = 10.0
"""How long the system may take to end a process that was killed: large ones take a while."""
_LOOP_TIMEOUT_S: Final = 1.0
"""How long `WorkerProcess.stop` waits for a loop that may be busy, or about to be closed."""


class WorkerProcess:
    """A running worker. `attach`, `send` and ``ledger`` belong to the loop thread; the rest may be used on any thread.

    Once the process is gone and reaped, all that was lent to it is free again, and its memory is unmapped with the last
    view of it.
    """

    def __init__(self, process: Process, channel: LoopChannel, lifeline: int) -> None:
        """Take charge of all three. See `start`."""
        self.pid = process.pid
        self.ledger = channel.ledger
        self.send: Callable[[ToWorker], None] = channel.send
        """`LoopChannel.send`."""
        self._process = process
        self._exit_code: int | None = None
        self._channel = channel
        self._lifeline = lifeline
        self._loop: asyncio.AbstractEventLoop | None = None
        self._on_lost: Callable[[str], None] | None = None
        self._grace: asyncio.TimerHandle | None = None
        self._is_expected = False
        """Its end was asked for: nobody is told."""
        self._is_killed = False
        """Nobody listens any more either."""
        self._is_cut_off = False
        """It was killed because it closed its connection."""
        self._is_ended = False
        """It is about to be reaped."""
        self._reaping = threading.Lock()
        self._is_reaped = threading.Event()
        self._is_finished = threading.Event()
        # The connection says nothing while something that the model forked holds it: the process itself must be watched.
        # A thread can do that on every kernel, whatever becomes of the loop.
        threading.Thread(target=self._reap, name=f"worker-{self.pid}", daemon=True).start()

    @classmethod
    def start(
        cls,
        entry: str,
        arena: Arena,
        *,
        executable: str | os.PathLike[str] | None = None,
        env: Mapping[str, str] | None = None,
        path_prefix: Sequence[str] = (),
    ) -> WorkerProcess:
        """Start a process that calls ``entry`` (``module:function``) with its channel and ledger. Blocks for the spawn only.

        Tensors for it are put into ``arena``. ``executable`` is the interpreter (None: this one), ``env`` what is
        different in its environment, ``path_prefix`` the folders in which it looks for modules first. Without any of
        these the fork server forks it, if there is one.

        Raises:
            OSError: it cannot be started.
        """
        with contextlib.ExitStack() as theirs, contextlib.ExitStack() as ours:
            connection, its_connection = make_pair()
            introductions, its_introductions = make_pair()
            introductions.setblocking(False)
            its_lifeline, lifeline = make_lifeline()
            for end in (connection, introductions):
                ours.enter_context(end)
            ours.callback(os.close, lifeline)
            for end in (its_connection, its_introductions):
                theirs.enter_context(end)
            theirs.callback(os.close, its_lifeline)
            fds = (its_connection.fileno(), its_introductions.fileno(), its_lifeline)
            first_segment = claim_segments()
            process: Process | None = None
            if executable in {None, sys.executable} and not env and not path_prefix:
                process = fork_server.fork_worker(fds, first_segment, entry)
            if process is None:
                words = [*map(str, fds), str(first_segment), entry]
                process = _Program(
                    subprocess.Popen(  # noqa: S603 (our own module, no shell)
                        [executable or sys.executable, "-c", _BOOTSTRAP, *words],
                        stdin=subprocess.DEVNULL,
                        pass_fds=fds,
                        env=_environment(env or {}, path_prefix),
                        # A group of its own, so that what a model forked ends with it.
                        process_group=0,
                    )
                )
            ours.pop_all()
        return cls(process, LoopChannel(connection, Ledger(arena, introductions)), lifeline)

    def attach(
        self,
        loop: asyncio.AbstractEventLoop,
        on_message: Callable[[FromWorker], None],
        on_lost: Callable[[str], None],
    ) -> None:
        """Read what it says: ``on_message``. ``on_lost`` is told once how it ended, unless that was by `stop` or `kill`.

        Both are called on the loop thread, ``on_lost`` when the process is gone and after its last message. The reason
        completes "the process …": ``ended with exit code 3``, ``was killed by signal 9 (SIGKILL)``, ``closed its
        connection``.
        """
        self._on_lost = on_lost
        self._channel.attach(loop, on_message, self._on_closed)
        with self._reaping:
            self._loop = loop
        if self._is_reaped.is_set():
            loop.call_soon(self._finish)

    def stop(self, timeout_s: float) -> None:
        """Return when it has ended by itself, as it was told to (`Finalize`), or was killed after ``timeout_s``.

        Not on the loop thread, which handles its last messages meanwhile.
        """
        self._is_expected = True
        if not self._is_reaped.wait(timeout_s):
            self._signal()
            self._is_reaped.wait(_KILL_TIMEOUT_S)
        if self._loop is None:
            self._finish()
        else:
            self._is_finished.wait(_LOOP_TIMEOUT_S)

    def kill(self) -> None:
        """End it at once, with what it forked; ``on_message`` is not called any more. Returns before it is gone.

        Does nothing if it is gone.
        """
        self._is_expected = self._is_killed = True
        self._signal()
        loop = self._loop
        if loop is None:
            if self._is_reaped.is_set():
                self._finish()
        elif _is_running(loop):
            self._channel.close()
        else:
            with contextlib.suppress(RuntimeError):  # it is closed, and reads nothing
                loop.call_soon_threadsafe(self._channel.close)

    @property
    def is_alive(self) -> bool:
        """Whether it has not been found to be gone yet."""
        return not self._is_reaped.is_set()

    # Its end, in the order of events.

    def _on_closed(self) -> None:
        """It closed the connection: it has just ended, or never will."""
        if not self._is_reaped.is_set():  # else nothing is left to wait for, and the loop may be closed
            assert self._loop is not None
            self._grace = self._loop.call_later(_CLOSE_GRACE_S, self._cut_off)

    def _cut_off(self) -> None:
        self._is_cut_off = not self._is_reaped.is_set()
        self._signal()

    def _signal(self) -> None:
        with self._reaping:  # an id is its own until it is reaped
            if not self._is_ended:
                _kill_group(self.pid)

    def _reap(self) -> None:
        """Wait for its end (a thread of its own)."""
        self._process.wait()
        with self._reaping:
            _kill_group(self.pid)  # what is left of it: forks of the model's
            self._is_ended = True
        self._exit_code = self._process.reap()
        with self._reaping:
            self._is_reaped.set()
            loop = self._loop
        if loop is not None:
            try:
                loop.call_soon_threadsafe(self._finish)
                return
            except RuntimeError:  # the loop is closed
                pass
        elif not self._is_expected:
            return  # `attach` goes on
        self._finish()

    def _finish(self) -> None:
        """Handle its last messages and give back all that it had."""
        if self._is_finished.is_set():
            return
        if not self._is_killed:
            self._channel.drain()
        self._is_finished.set()
        self._channel.close()
        self.ledger.drop_all()
        os.close(self._lifeline)
        if self._grace is not None:
            self._grace.cancel()
        if self._on_lost is not None and not self._is_expected:
            self._on_lost(self._reason())

    def _reason(self) -> str:
        status = self._exit_code
        if self._is_cut_off:
            return "closed its connection"
        if status is None:
            return "ended, nobody knows how"
        if status >= 0:
            return f"ended with exit code {status}"
        try:
            name = signal.Signals(-status).name
        except ValueError:  # a real-time signal
            return f"was killed by signal {-status}"
        return f"was killed by signal {-status} ({name})"

    def __repr__(self) -> str:
        state = "alive" if self.is_alive else self._reason()
        return f"WorkerProcess({self.pid}, {state})"


class _Program:
    """A worker that is a program of its own."""

    __slots__ = ("_popen", "pid")

    def __init__(self, popen: subprocess.Popen[bytes]) -> None:
        self.pid = popen.pid
        self._popen = popen

    def wait(self) -> None:
        """See `Process`."""
        os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)

    def reap(self) -> int:
        """See `Process`."""
        return self._popen.wait()


def _kill_group(pid: int) -> None:
    """Kill the process, which is not reaped yet, and all of its group."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def _is_running(loop: asyncio.AbstractEventLoop) -> bool:
    """Whether this is the loop's thread."""
    try:
        return asyncio.get_running_loop() is loop
    except RuntimeError:
        return False


def _environment(changes: Mapping[str, str], path_prefix: Sequence[str]) -> dict[str, str]:
    environment = {**os.environ, PATH_VARIABLE: SOURCE_DIRECTORY, **changes}
    if path_prefix:
        rest = environment.get("PYTHONPATH")
        environment["PYTHONPATH"] = os.pathsep.join([*path_prefix, *([rest] if rest else [])])
    return environment
