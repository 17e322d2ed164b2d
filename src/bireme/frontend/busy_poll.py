"""BusyPoll: keeps the loop awake for a moment after each answer, for clients that ask again at once.

A loop that sleeps is woken by the kernel, and on an idle virtual machine that takes longer than the whole request. Off by
default: while it lasts it uses a core, which a model's threads or a container's CPU quota may need more.
"""

from __future__ import annotations

import asyncio
import time

_now_ns = time.monotonic_ns


class BusyPoll:
    """Turns the loop without sleep until ``duration_us`` after the last answer. Loop thread only."""

    __slots__ = ("_duration_ns", "_is_turning", "_loop", "_until_ns")

    def __init__(self, loop: asyncio.AbstractEventLoop, duration_us: int) -> None:
        self._loop = loop
        self._duration_ns = duration_us * 1000
        self._until_ns = 0
        self._is_turning = False

    def extend(self) -> None:
        """Start the time anew: an answer was just written, and its connection waits for nothing else."""
        self._until_ns = _now_ns() + self._duration_ns
        if not self._is_turning:
            self._is_turning = True
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        # A callback that is due makes the loop poll its sockets instead of sleeping on them.
        if _now_ns() < self._until_ns:
            self._loop.call_soon(self._turn)
        else:
            self._is_turning = False
