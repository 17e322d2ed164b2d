"""DebugDesk: the main thread, where models that are to be debugged run.

A debugger wants the main thread and the terminal: only there ``breakpoint()`` can be interrupted, step through the code and
read commands. So the server's event loop runs on another thread, and the main one works off what it is handed, one job
after the other. Source: ``bireme serve --debug-model``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import TypeVar

from bireme.types import Unavailable

T = TypeVar("T")


class DebugDesk:
    """Runs jobs on the thread that calls `run`."""

    def __init__(self, names: Iterable[str]) -> None:
        """``names`` are the models that are to run here."""
        self._missing = dict.fromkeys(names)
        self._names = frozenset(self._missing)
        self._jobs: SimpleQueue[Callable[[], object] | None] = SimpleQueue()
        self._is_closed = False

    def takes(self, name: str) -> bool:
        """Whether the model called ``name`` is to run here; it is no longer missing then."""
        self._missing.pop(name, None)
        return name in self._names

    @property
    def missing(self) -> list[str]:
        """Names of models that nobody has loaded."""
        return list(self._missing)

    def post(self, job: Callable[[], object]) -> None:
        """Run ``job``, which raises nothing, after those that wait."""
        self._jobs.put(job)

    def call(self, function: Callable[[], T], timeout_s: float | None = None) -> T:
        """Run ``function`` and return what it returns. From another thread than the desk's own.

        Raises:
            Unavailable: the desk is closed.
            TimeoutError: it took longer than ``timeout_s``; it is run all the same.
            Exception: whatever ``function`` raises.
        """
        if self._is_closed:
            raise Unavailable("Server not ready: it has been stopped")
        outcome: Future[T] = Future()

        def job() -> None:
            try:
                outcome.set_result(function())
            except BaseException as error:  # noqa: BLE001 - raised where it is waited for
                outcome.set_exception(error)

        self._jobs.put(job)
        return outcome.result(timeout_s)

    def run(self, after_each: Callable[[], object]) -> None:
        """Run jobs until `close`; ``after_each`` is called after each of them."""
        while (job := self._jobs.get()) is not None:
            job()
            after_each()

    def close(self) -> None:
        """Have `run` return when the jobs that wait are done."""
        self._is_closed = True
        self._jobs.put(None)


_desk: DebugDesk | None = None


def install(desk: DebugDesk | None) -> None:
    """Have the models that ``desk`` takes run there: there is one main thread, so there is one desk; None: none."""
    global _desk  # noqa: PLW0603 (as there is one main thread)
    _desk = desk


def desk_for(name: str) -> DebugDesk | None:
    """Return the desk if the model called ``name`` is to run there."""
    return _desk if _desk is not None and _desk.takes(name) else None
