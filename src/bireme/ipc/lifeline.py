"""Lifeline: a pipe whose writing end only the server has; when the server is gone, the kernel kills the child.

The reading end, in the child, sends its process a signal when something happens to the pipe, and that signal is
SIGKILL: it needs neither a thread nor the interpreter, so it reaches a child that is stuck in native code. It does not
depend on the thread that started the child, as PR_SET_PDEATHSIG would.
"""

from __future__ import annotations

import fcntl
import os
import select
import signal
import threading
from typing import Final

_F_SETSIG: Final = getattr(fcntl, "F_SETSIG", None)  # Linux
_O_ASYNC: Final = getattr(os, "O_ASYNC", 0)


def make_lifeline() -> tuple[int, int]:
    """Return the child's end and the server's end, which no other program inherits. Any byte or close kills the child."""
    return os.pipe()


def hold(fd: int) -> None:
    """Have this process killed as soon as the other end of ``fd`` is closed; at once, if it is already."""
    try:
        _let_kernel_watch(fd)
    except OSError:
        threading.Thread(target=_watch, args=(fd,), name="lifeline", daemon=True).start()
        return
    if _is_cut(fd, 0):  # before the kernel watched
        os.kill(os.getpid(), signal.SIGKILL)


def _let_kernel_watch(fd: int) -> None:
    """Raise `OSError` where the system cannot."""
    if _F_SETSIG is None or not _O_ASYNC:
        raise OSError("this system sends no signal of choice")
    fcntl.fcntl(fd, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(fd, _F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) | _O_ASYNC)


def _watch(fd: int) -> None:
    """Wait for the end in a thread: enough, unless the model's code never lets go of the GIL."""
    _is_cut(fd, None)
    os.kill(os.getpid(), signal.SIGKILL)


def _is_cut(fd: int, timeout_ms: int | None) -> bool:
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(timeout_ms))
