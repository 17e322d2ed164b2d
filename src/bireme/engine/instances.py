"""Instances at run time: the slot that the scheduler fills, its thread, and the way back to the loop.

A slot belongs to the loop thread. While an execution runs, its thread owns the slot's instance and buffers; nothing
else touches them, so there are no locks.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue

from bireme.backends.interface import ExecuteInto, Instance, Placement
from bireme.engine.batch import GatherBuffers
from bireme.types import BiremeError, Execution, Tensor

Results = list[list[Tensor] | BiremeError]
Run = Callable[["InstanceSlot", Execution], Results]
Finish = Callable[["InstanceSlot", Execution, Results], None]


class CompletionQueue:
    """Carries finished work from any thread to the loop, with one wake-up for many completions.

    A wake-up costs about 10 µs; under load several threads finish before the loop looks.
    """

    __slots__ = ("_done", "_loop", "_waking")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._done: deque[tuple[Finish, InstanceSlot, Execution, Results]] = deque()
        self._waking = False

    def put(self, finish: Finish, slot: InstanceSlot, execution: Execution, results: Results) -> None:
        """Call ``finish`` with the rest on the loop; callable from any thread."""
        self._done.append((finish, slot, execution, results))
        if not self._waking:
            self._waking = True
            # A loop that was closed without waiting for this thread has nobody left to tell.
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._drain)

    def _drain(self) -> None:
        # Cleared before the deque is read: whoever appends after the last look wakes the loop again.
        self._waking = False
        done = self._done
        while done:
            finish, slot, execution, results = done.popleft()
            finish(slot, execution, results)


class InstanceSlot:
    """One instance with its gather buffers and, once it has been needed, its thread."""

    __slots__ = (
        "_completions",
        "_finish",
        "_jobs",
        "_run",
        "_thread",
        "buffers",
        "execute_into",
        "instance",
        "placement",
    )

    def __init__(
        self, placement: Placement, instance: Instance, run: Run, finish: Finish, completions: CompletionQueue
    ) -> None:
        self.placement = placement
        self.instance = instance
        self.execute_into: ExecuteInto | None = getattr(instance, "execute_into", None)
        """For a single request that brings memory for its outputs; None: the instance has no such thing."""
        self.buffers = GatherBuffers()
        self._run = run
        self._finish = finish
        self._completions = completions
        self._jobs: SimpleQueue[Execution | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def submit(self, execution: Execution) -> None:
        """Run ``execution`` on the slot's thread; ``finish`` is then called on the loop."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name=self.placement.name, daemon=True)
            self._thread.start()
        self._jobs.put(execution)

    def close(self) -> None:
        """End the thread (nothing runs on it any more) and close the instance. Blocking: not for the loop."""
        if self._thread is not None:
            self._jobs.put(None)
            self._thread.join()
        self.instance.close()

    def _work(self) -> None:
        while (execution := self._jobs.get()) is not None:
            self._completions.put(self._finish, self, execution, self._run(self, execution))
            # Nothing of the last batch may be kept alive while this thread waits for the next one.
            del execution

    def __repr__(self) -> str:
        return (
            f"InstanceSlot({self.placement.name!r}, {self.placement.kind}, thread={self._thread is not None})"
        )
