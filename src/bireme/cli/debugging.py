"""``bireme serve --debug-model``: the main thread and the terminal belong to the model, the server runs beside them."""

from __future__ import annotations

import signal
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial

from bireme.backends.python import debug_desk
from bireme.backends.python.debug_desk import DebugDesk

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def run_beside(desk: DebugDesk, serve: Callable[[], int], on_signal: Callable[[int], None]) -> int:
    """Run ``serve`` on another thread and ``desk`` on this one, the main thread, until ``serve`` returns; return that.

    ``on_signal`` is told of SIGINT and SIGTERM, on another thread. Raises whatever ``serve`` raises.
    """
    status: Future[int] = Future()
    thread = threading.Thread(target=_work, args=(desk, serve, status), name="bireme-server")
    debug_desk.install(desk)
    with _watch_signals(on_signal):
        thread.start()
        desk.run(after_each=_take_signals)
        thread.join()
    debug_desk.install(None)
    return status.result()


def _work(desk: DebugDesk, serve: Callable[[], int], status: Future[int]) -> None:
    try:
        status.set_result(serve())
    except BaseException as error:  # noqa: BLE001 - raised in the main thread
        status.set_exception(error)
    finally:
        desk.close()


@contextmanager
def _watch_signals(on_signal: Callable[[int], None]) -> Iterator[None]:
    """Have a thread wait for signals: the main one may sleep in the debugger, and would miss one that comes just before."""
    received, sent = socket.socketpair()
    sent.setblocking(False)
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    _take_signals()
    signal.set_wakeup_fd(sent.fileno(), warn_on_full_buffer=False)
    watcher = threading.Thread(
        target=partial(_watch, received, on_signal), name="bireme-signals", daemon=True
    )
    watcher.start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(-1)
        sent.close()
        watcher.join()
        received.close()
        for number, handler in before.items():
            signal.signal(number, handler)


def _watch(received: socket.socket, on_signal: Callable[[int], None]) -> None:
    while numbers := received.recv(64):
        for number in numbers:
            # pdb takes SIGINT for itself when it continues: then it stops the model, not the server.
            if number in _SIGNALS and signal.getsignal(number) is _leave_it_to_the_watcher:
                on_signal(number)


def _take_signals() -> None:
    """Take the signals, back from pdb if need be."""
    for number in _SIGNALS:
        signal.signal(number, _leave_it_to_the_watcher)


def _leave_it_to_the_watcher(_number: int, _frame: object) -> None:
    """Do nothing in the main thread, least of all raise `KeyboardInterrupt`."""
