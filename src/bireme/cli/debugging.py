"""``bireme serve --debug-model``: the main thread and the terminal belong to the model, the server runs beside them."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from concurrent.futures import Future
from types import FrameType

from bireme.backends.python import debug_desk
from bireme.backends.python.debug_desk import DebugDesk

OnSignal = Callable[[int, FrameType | None], None]


def run_beside(desk: DebugDesk, serve: Callable[[], int], on_signal: OnSignal) -> int:
    """Run ``serve`` on another thread and ``desk`` on this one, the main thread, until ``serve`` returns; return that.

    ``on_signal`` handles SIGINT and SIGTERM, here. Raises whatever ``serve`` raises.
    """
    status: Future[int] = Future()

    def work() -> None:
        try:
            status.set_result(serve())
        except BaseException as error:  # noqa: BLE001 - raised in the main thread
            status.set_exception(error)
        finally:
            desk.close()

    def listen() -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, on_signal)

    debug_desk.install(desk)
    listen()
    thread = threading.Thread(target=work, name="bireme-server")
    thread.start()
    # pdb takes SIGINT for itself when it continues: what came back from it is this program's again.
    desk.run(after_each=listen)
    thread.join()
    debug_desk.install(None)
    return status.result()
