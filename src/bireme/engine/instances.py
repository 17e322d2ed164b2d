"""Instances at run time: the slot that the scheduler fills, its thread, and the way back to the loop.

A slot belongs to the loop thread. An instance that takes tensors gets a thread, for frameworks that block; one that takes
whole requests answers them in its own time, from a process or a thread of its own.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from queue import SimpleQueue

from bireme.backends.interface import ExecuteInto, Instance, Placement, RequestInstance
from bireme.backends.loop_calls import LoopCalls
from bireme.engine.batch import GatherBuffers
from bireme.types import BiremeError, Execution, Tensor

Results = list[list[Tensor] | BiremeError]
Run = Callable[["TensorSlot", Execution], Results]
Finish = Callable[["TensorSlot", Execution, Results], None]


class Slot:
    """An instance's place in its model. Loop thread only."""

    __slots__ = ("active", "capacity", "instance", "placement")

    def __init__(self, placement: Placement, instance: Instance | RequestInstance, capacity: int = 1) -> None:
        self.placement = placement
        self.instance = instance
        self.capacity = capacity
        """Executions that the instance takes at one time."""
        self.active: set[Execution] = set()
        """What it runs."""

    @property
    def unavailable(self) -> str | None:
        """Why the instance cannot run anything now (its process died); None: it can."""
        return getattr(self.instance, "unavailable", None)

    @property
    def retry_delay_s(self) -> float:
        """How long until an instance that is unavailable is started again."""
        return getattr(self.instance, "retry_delay_s", 0.0)

    def submit(self, execution: Execution) -> None:
        """Begin to run ``execution``, beside the loop."""
        raise NotImplementedError

    def close(self) -> None:
        """Close the instance, on which nothing runs any more. Blocking: not for the loop."""
        self.instance.close()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.placement.name!r}, {self.placement.kind}, {len(self.active)} active)"


class TensorSlot(Slot):
    """One instance with its gather buffers and, once it has been needed, its thread.

    While an execution runs, its thread owns the instance and the buffers; nothing else touches them, so there are no locks.
    """

    __slots__ = ("_finish", "_jobs", "_loop_calls", "_run", "_thread", "buffers", "execute_into", "tensors")

    def __init__(
        self, placement: Placement, instance: Instance, run: Run, finish: Finish, loop_calls: LoopCalls
    ) -> None:
        super().__init__(placement, instance)
        self.tensors = instance
        self.execute_into: ExecuteInto | None = getattr(instance, "execute_into", None)
        """For a single request that brings memory for its outputs; None: the instance has no such thing."""
        self.buffers = GatherBuffers()
        self._run = run
        self._finish = finish
        self._loop_calls = loop_calls
        self._jobs: SimpleQueue[Execution | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def submit(self, execution: Execution) -> None:
        """Run ``execution`` on the slot's thread; ``finish`` is then called on the loop."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name=self.placement.name, daemon=True)
            self._thread.start()
        self._jobs.put(execution)

    def close(self) -> None:
        """End the thread, then close the instance."""
        if self._thread is not None:
            self._jobs.put(None)
            self._thread.join()
        super().close()

    def _work(self) -> None:
        while (execution := self._jobs.get()) is not None:
            self._loop_calls.put(self._finish, self, execution, self._run(self, execution))
            # Nothing of the last batch may be kept alive while this thread waits for the next one.
            del execution


class RequestSlot(Slot):
    """An instance that takes whole requests and answers them itself."""

    __slots__ = ("requests",)

    def __init__(self, placement: Placement, instance: RequestInstance) -> None:
        super().__init__(placement, instance, instance.max_concurrent)
        self.requests = instance

    def submit(self, execution: Execution) -> None:
        """Hand ``execution`` over."""
        instance = self.requests
        for request in execution.requests:
            request.execution = execution
            request.instance = instance
        execution.compute_start_ns = time.monotonic_ns()
        instance.execute_requests(execution)
