"""Forker: what the fork server does (see `bireme.ipc.fork_server`).

It is the parent of its workers, and of what their models leave behind (a subreaper). Orders come over a SEQPACKET socket,
one at a time. The answer to each is a number; below zero it is an errno.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import os
import select
import signal
import socket
import sys
import traceback
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, Final, NoReturn

import msgspec

from bireme.ipc import worker
from bireme.ipc.lifeline import hold

SOURCE_DIRECTORY: Final = str(Path(__file__).resolve().parents[2])
"""Where this package lies: the last folder in which workers look for modules."""
MAX_ORDER: Final = 64 << 10
"""Bytes of an order."""
QUIET: Final = (signal.SIGINT, signal.SIGTERM)
"""Signals that say nothing to it, as to workers: the server alone decides."""

_NUM_FDS: Final = 3
_PR_SET_CHILD_SUBREAPER: Final = 36


class Fork(msgspec.Struct, tag=True):
    """Fork a worker; comes with its three descriptors. The answer is its id."""

    first_segment: int
    entry: str
    environment: dict[str, str | None]
    """What is different from the fork server's own; None: not there."""


class Reap(msgspec.Struct, tag=True):
    """Reap a worker that has ended. The answer is its wait status."""

    pid: int


_decode = msgspec.msgpack.Decoder(Fork | Reap).decode
_encode = msgspec.msgpack.Encoder().encode


def run(orders: socket.socket, lifeline: int, preload: Sequence[str], mask: set[Any]) -> NoReturn:
    """Be the fork server, until the server is gone."""
    try:
        hold(lifeline)
        for number in QUIET:
            signal.signal(number, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        os.setpgid(0, 0)  # Ctrl-C and supervisors signal the whole group
        _close_all_but(orders.fileno(), lifeline)
        _be_plain_program()
        _set_title("bireme.ipc.fork_server")
        _adopt_orphans()
        for module in preload:
            import_module(module)
        gc.collect()
        gc.freeze()
        _Forker(orders, lifeline).run()
    except BaseException:  # noqa: BLE001 - whatever it is, it must not go on as the server
        traceback.print_exc()
    finally:
        worker.flush()
        os._exit(1)


def _close_all_but(*fds: int) -> None:
    """Close what was inherited: a worker has nothing but its standard streams either. Its input is empty."""
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    first = 3
    for fd in sorted(fds):
        os.closerange(first, fd)
        first = fd + 1
    os.closerange(first, os.sysconf("SC_OPEN_MAX"))
    sys.stdin = open(0, closefd=False)  # noqa: SIM115 (of the process)


def _be_plain_program() -> None:
    """Look like a worker that was started by ``python -c``, to the model and what it starts."""
    if not sys.flags.safe_path:
        del sys.path[0]  # the folder of the ``bireme`` script, or the current one
    sys.path.append(SOURCE_DIRECTORY)
    main = ModuleType("__main__")
    main.__dict__["__builtins__"] = __builtins__
    main.__dict__["_of_the_server"] = sys.modules["__main__"]  # its functions still run
    sys.modules["__main__"] = main


def _adopt_orphans() -> None:
    """Become the parent of what workers leave behind, which is reaped here."""
    import ctypes

    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _set_title(title: str) -> None:
    """Have ``ps`` show ``title``, as far as there is room."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        Path("/proc/self/comm").write_text(title)
        fields = Path("/proc/self/stat").read_text("ascii", "replace").rpartition(")")[2].split()
        start, end = int(fields[45]), int(fields[46])
        # By way of the system, as a wrong address is an error there.
        with Path("/proc/self/mem").open("r+b", buffering=0) as memory:
            if 0 < start < end:
                memory.seek(start)
                memory.write(title.encode()[: end - start - 1].ljust(end - start, b"\0"))


class _Forker:
    """Obeys orders."""

    def __init__(self, orders: socket.socket, lifeline: int) -> None:
        self._orders = orders
        self._lifeline = lifeline
        self._workers: set[int] = set()
        self._ended, self._wakeup = os.pipe()
        for fd in (self._ended, self._wakeup):
            os.set_blocking(fd, False)

    def run(self) -> None:
        """Return when the server is gone."""
        signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
        signal.set_wakeup_fd(self._wakeup, warn_on_full_buffer=False)
        poll = select.poll()
        poll.register(self._orders, select.POLLIN)
        poll.register(self._ended, select.POLLIN)
        while True:
            ready = [fd for fd, _ in poll.poll()]
            if self._ended in ready:
                os.read(self._ended, MAX_ORDER)
            if self._orders.fileno() in ready and not self._obey():
                return
            self._reap_orphans()

    def _obey(self) -> bool:
        """Take an order; False: there will be none."""
        try:
            data, fds, _, _ = socket.recv_fds(self._orders, MAX_ORDER, _NUM_FDS)
        except ConnectionError:
            return False
        if not data:
            return False
        order = _decode(data)
        try:
            answer = self._reap(order.pid) if isinstance(order, Reap) else self._fork(order, fds)
        except OSError as error:
            answer = -(error.errno or errno.EIO)
        finally:
            for fd in fds:
                os.close(fd)
        self._orders.send(_encode(answer))
        return True

    def _fork(self, order: Fork, fds: list[int]) -> int:
        if len(fds) != _NUM_FDS:  # there was no room for them
            return -errno.EMFILE
        pid = os.fork()
        if pid == 0:
            self._be_worker(order, fds)
        self._workers.add(pid)
        with contextlib.suppress(OSError):  # it has done so itself
            os.setpgid(pid, pid)
        return pid

    def _be_worker(self, order: Fork, fds: list[int]) -> NoReturn:
        try:
            os.setpgid(0, 0)  # so that what a model forks ends with it
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            self._orders.close()
            for fd in (self._lifeline, self._ended, self._wakeup):
                os.close(fd)
            _change_environment(order.environment)
            _seed()
            _set_title("bireme.ipc.worker")
            words = [*map(str, fds), str(order.first_segment), order.entry]
            sys.argv[:] = ["-c", *words]
            worker.main()
        except BaseException:  # noqa: BLE001 - it must not go on as the fork server
            traceback.print_exc()
        finally:
            os._exit(1)

    def _reap(self, pid: int) -> int:
        if pid not in self._workers:
            return -errno.ECHILD
        status = os.waitpid(pid, 0)[1]
        self._workers.discard(pid)
        return status

    def _reap_orphans(self) -> None:
        """Reap what models left behind; behind a worker that waits to be reaped, the next time."""
        with contextlib.suppress(ChildProcessError):
            while True:
                ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
                if ended is None or ended.si_pid in self._workers:
                    return
                os.waitpid(ended.si_pid, 0)


def _change_environment(changes: dict[str, str | None]) -> None:
    for name, value in changes.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def _seed() -> None:
    """Let workers draw different random numbers (those of `random` do)."""
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None:
        numpy_random.seed()
