"""LoopCalls: calls from any thread that run on a loop, many of them for one wake-up.

A wake-up costs about 10 µs; under load several threads have something for the loop before it looks.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable
from typing import TypeVarTuple, Unpack

Ts = TypeVarTuple("Ts")


class LoopCalls:
    """The way to one loop. Calls run in the order in which they were put; what they raise goes to the loop's handler."""

    __slots__ = ("_calls", "_is_waking", "loop")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._calls: deque[tuple[Callable[..., object], tuple[object, ...]]] = deque()
        self._is_waking = False

    def put(self, function: Callable[[Unpack[Ts]], object], *args: *Ts) -> None:
        """Call ``function(*args)`` on the loop. From any thread; a loop that is closed has nobody left to call."""
        self._calls.append((function, args))
        if not self._is_waking:
            self._is_waking = True
            with contextlib.suppress(RuntimeError):
                self.loop.call_soon_threadsafe(self._run)

    def _run(self) -> None:
        # Cleared before the deque is read: whoever appends after the last look wakes the loop again.
        self._is_waking = False
        calls = self._calls
        try:
            while calls:
                function, args = calls.popleft()
                function(*args)
        except BaseException:
            if calls and not self._is_waking:  # the others must not wait for the next one that is put
                self._is_waking = True
                self.loop.call_soon(self._run)
            raise

    def __repr__(self) -> str:
        return f"LoopCalls({len(self._calls)} waiting)"
