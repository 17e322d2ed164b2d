"""Fork server: a child of ``bireme serve`` that has imported what workers need, and forks them. The server's side.

Workers that start as programs of their own have each another address layout, and the processor's caches and branch
predictors, which go by addresses, are cold whenever it changes from the one to the other: that is a third of what a call
from process to process takes. Forked ones have the server's layout, start in milliseconds and share what was imported.
They are forked from another process (`bireme.ipc.forker`), as the server has threads.

A worker that has ended stays a zombie until the server asks for its exit status: until then the server may signal its id.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import signal
import socket
import sys
import threading
import warnings
from collections.abc import Iterator, Sequence
from typing import Any, Final, Protocol

import msgspec

from bireme.ipc import forker
from bireme.ipc.forker import MAX_ORDER, QUIET, Fork, Reap
from bireme.ipc.lifeline import make_lifeline

VARIABLE: Final = "BIREME_FORK_SERVER"
"""The environment variable that, if it is ``0``, lets every worker start as a program of its own."""

_TIMEOUT_S: Final = 60.0
"""For an answer; the first one comes when all is imported."""

log = logging.getLogger("bireme.ipc")

_encode = msgspec.msgpack.Encoder().encode
_decode_answer = msgspec.msgpack.Decoder(int).decode


class Process(Protocol):
    """What `bireme.ipc.worker_process` needs of a child, however it was started."""

    pid: int

    def wait(self) -> None:
        """Return when it has ended. Its id remains its own."""

    def reap(self) -> int | None:
        """Forget it, as it has ended; return its exit code, or minus the signal that killed it; None: nobody knows."""


class ForkedProcess:
    """A worker that the fork server forked."""

    __slots__ = ("_pidfd", "_server", "pid")

    def __init__(self, server: ForkServer, pid: int) -> None:
        """Raise `OSError` where there is no descriptor for it."""
        self.pid = pid
        self._server = server
        self._pidfd = os.pidfd_open(pid)

    def wait(self) -> None:
        """See `Process`."""
        poll = select.poll()
        poll.register(self._pidfd, select.POLLIN)
        poll.poll()

    def reap(self) -> int | None:
        """See `Process`. Nobody knows how it ended if the fork server ended before."""
        os.close(self._pidfd)
        status = self._server.reap(self.pid)
        return None if status is None else os.waitstatus_to_exitcode(status)


class ForkServer:
    """The server's side. Any thread may use it."""

    def __init__(self, pid: int, orders: socket.socket, lifeline: int) -> None:
        """Take charge of all three. See `start`."""
        orders.settimeout(_TIMEOUT_S)
        self.pid = pid
        self._orders = orders
        self._lifeline = lifeline
        self._environment = dict(os.environ)
        self._lock = threading.Lock()
        self._is_gone = False

    def fork(self, fds: Sequence[int], first_segment: int, entry: str) -> ForkedProcess | None:
        """Return a worker with copies of ``fds``; None: it has to be started in another way."""
        order = Fork(first_segment, entry, self._changes())
        with self._lock:
            pid = self._ask(order, fds)
        if pid is None or pid < 0:
            return None
        try:
            return ForkedProcess(self, pid)
        except OSError:  # no descriptors are left
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            self.reap(pid)
            return None

    def reap(self, pid: int) -> int | None:
        """Return the wait status of a worker that has ended, or is about to; None: nobody knows it."""
        with self._lock:
            status = self._ask(Reap(pid))
        if status is not None and status >= 0:
            return status
        with contextlib.suppress(ChildProcessError):  # in a container, the server may be who adopts it
            return os.waitpid(pid, 0)[1]
        return None

    def close(self) -> None:
        """End it, if it has not ended, and wait for its end; its workers go on."""
        with self._lock:
            self._end()

    def _changes(self) -> dict[str, str | None]:
        now, then = dict(os.environ), self._environment
        changes: dict[str, str | None] = {
            name: value for name, value in now.items() if then.get(name) != value
        }
        changes.update((name, None) for name in then.keys() - now.keys())
        return changes

    def _ask(self, order: Fork | Reap, fds: Sequence[int] = ()) -> int | None:
        """Return the answer; None: there is none, now or ever."""
        if self._is_gone:
            return None
        data = _encode(order)
        if len(data) > MAX_ORDER:
            return None
        try:
            socket.send_fds(self._orders, [data], fds)
            answer = self._orders.recv(MAX_ORDER)
        except OSError as error:  # gone, or it does not answer
            self._lose(str(error))
            return None
        if not answer:
            self._lose("it is gone")
            return None
        return _decode_answer(answer)

    def _lose(self, reason: str) -> None:
        log.warning(
            "the fork server of worker processes failed (%s): they start without it from now on", reason
        )
        self._end()

    def _end(self) -> None:
        if self._is_gone:
            return
        self._is_gone = True
        self._orders.close()
        os.close(self._lifeline)
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.pid, 0)


_current: ForkServer | None = None


def start(preload: Sequence[str]) -> ForkServer | None:
    """Fork this process's fork server, which imports the modules ``preload`` while this process goes on.

    To be called before the process has threads, descriptors or settings: it inherits what there is. Returns it; None
    where there is none, as the system cannot have one or the environment says so.
    """
    global _current  # noqa: PLW0603 (one for the process)
    if not _is_possible():
        return None
    orders, its_orders = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    its_lifeline, lifeline = make_lifeline()
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    with _blocked_signals() as restore, warnings.catch_warnings():
        # Of threads: those of numpy's linear algebra know forks.
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
        if pid == 0:
            forker.run(its_orders, its_lifeline, preload, restore)
    its_orders.close()
    os.close(its_lifeline)
    _current = ForkServer(pid, orders, lifeline)
    return _current


def stop() -> None:
    """End this process's fork server, if there is one."""
    global _current  # noqa: PLW0603
    if _current is not None:
        _current.close()
        _current = None


def fork_worker(fds: Sequence[int], first_segment: int, entry: str) -> ForkedProcess | None:
    """Return a worker by this process's fork server (see `ForkServer.fork`); None: there is none, or it cannot."""
    return None if _current is None else _current.fork(fds, first_segment, entry)


def _is_possible() -> bool:
    if sys.platform != "linux" or os.environ.get(VARIABLE) == "0" or _current is not None:
        return False
    if threading.active_count() > 1:
        return False
    try:
        os.close(os.pidfd_open(os.getpid()))
    except (OSError, AttributeError):  # an old kernel, or a sandbox
        return False
    return True


@contextlib.contextmanager
def _blocked_signals() -> Iterator[set[Any]]:
    """Hold back the signals that a fork would not know yet what to do with; yield the mask of before."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, QUIET)
    try:
        yield before
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
