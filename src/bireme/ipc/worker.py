"""A worker process: ``python -m bireme.ipc.worker CONNECTION INTRODUCTIONS LIFELINE FIRST_SEGMENT MODULE:FUNCTION``.

The first three are descriptors. It calls ``function(channel, ledger)`` and ends with it. It imports `bireme.types`,
`bireme.ipc` and what that function needs, so that any interpreter with numpy and msgspec can run it.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import traceback
from collections.abc import Callable
from importlib import import_module
from typing import Any

from bireme.ipc.arena import Arena
from bireme.ipc.channel import Channel
from bireme.ipc.ledger import Ledger
from bireme.ipc.lifeline import hold

Entry = Callable[[Channel, Ledger], object]

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def main() -> None:
    """Be the worker that the arguments say. Does not return."""
    status = 1
    try:
        connection, introductions, lifeline, first_segment = (int(word) for word in sys.argv[1:5])
        # What the model's code starts must not hold them.
        for fd in (connection, introductions, lifeline):
            os.set_inheritable(fd, False)
        hold(lifeline)
        ignore_signals()
        ledger = Ledger(Arena(first_segment), socket.socket(fileno=introductions))
        find_entry(sys.argv[5])(Channel(socket.socket(fileno=connection), ledger), ledger)
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:  # noqa: BLE001 - whatever it is, the status tells the server
        traceback.print_exc()
    finally:
        flush()
        # Skips the interpreter's own tidying up: threads of the model would hold it up.
        os._exit(status)


def find_entry(name: str) -> Entry:
    """Import the function that ``module:function`` names."""
    module, _, function = name.partition(":")
    entry: Any = getattr(import_module(module), function)
    return entry  # type: ignore[no-any-return]


def ignore_signals() -> None:
    """Let the server alone decide when this process ends: Ctrl-C and supervisors signal the whole group.

    By a handler that does nothing: unlike SIG_IGN, programs that the model starts do not inherit it.
    """
    for number in _SIGNALS:
        signal.signal(number, _ignore)
        signal.siginterrupt(number, False)
    os.register_at_fork(after_in_child=_heed_signals)


def _heed_signals() -> None:
    for number in _SIGNALS:
        if signal.getsignal(number) is _ignore:
            signal.signal(number, signal.SIG_DFL)


def _ignore(_number: int, _frame: object) -> None:
    return


def flush() -> None:
    """Write what the model printed."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (AttributeError, OSError, ValueError):  # closed, or replaced by the model
            continue


if __name__ == "__main__":
    main()
