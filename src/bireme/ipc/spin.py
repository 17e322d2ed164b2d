"""Spinning: looking again and again for a message that is expected at once, instead of sleeping until it is there.

To wake a sleeping processor takes longer than most messages' work, on virtual machines several times as long; a call from
one process through the server to another one has four such wake-ups. So whoever has just sent something looks for the
answer for a moment, as locks do. Where that has been in vain, it is done more and more rarely: then answers take longer
than sleeping costs, or nobody asks.
"""

from __future__ import annotations

import asyncio
import os
import time
from typing import Final
from weakref import WeakKeyDictionary

from bireme.ipc.cpu_limit import cpu_limit

VARIABLE: Final = "BIREME_BUSY_POLL_US"
"""The environment variable with the microseconds that a spin lasts; 0: none. For servers and workers."""
DEFAULT_US: Final = 200

_MAX_MISSES: Final = 2
_FIRST_SKIPS: Final = 16
_MAX_SKIPS: Final = 1024

_now_ns = time.monotonic_ns
sched_yield = getattr(os, "sched_yield", lambda: None)
"""Let another process run that is ready to, if there is one."""


def window_ns() -> int:
    """Return how long a spin lasts in this process: what the environment says, else nothing if there is but one processor."""
    try:
        return max(0, int(os.environ[VARIABLE])) * 1000
    except (KeyError, ValueError):
        return DEFAULT_US * 1000 if cpu_limit() > 1 else 0


class SpinPolicy:
    """Whether to spin this time, by what came of it before."""

    __slots__ = ("_num_misses", "_num_skips", "_skips_left", "window_ns")

    def __init__(self, window_ns: int) -> None:
        self.window_ns = window_ns
        self._num_misses = 0
        self._num_skips = 0
        self._skips_left = 0

    def wants(self) -> bool:
        """Whether to spin now."""
        if self._skips_left:
            self._skips_left -= 1
            return False
        return self.window_ns > 0

    def hit(self) -> None:
        """What was expected came while it spun."""
        self._num_misses = self._num_skips = 0

    def miss(self) -> None:
        """It did not. After a few times the next ones are skipped, twice as many each time."""
        self._num_misses += 1
        if self._num_misses >= _MAX_MISSES:
            self._num_skips = min(max(2 * self._num_skips, _FIRST_SKIPS), _MAX_SKIPS)
            self._skips_left = self._num_skips


class LoopSpin:
    """Keeps a loop from sleeping while the answer of a worker process is expected. Loop thread only."""

    __slots__ = ("_has_arrived", "_is_turning", "_loop", "_policy", "_until_ns")

    def __init__(self, loop: asyncio.AbstractEventLoop, window_ns: int) -> None:
        self._loop = loop
        self._policy = SpinPolicy(window_ns)
        self._is_turning = False
        self._has_arrived = False
        self._until_ns = 0

    def expect(self) -> None:
        """Something was sent whose answer may come at once."""
        if self._is_turning:
            self._until_ns = _now_ns() + self._policy.window_ns
        elif self._policy.wants():
            self._until_ns = _now_ns() + self._policy.window_ns
            self._is_turning = True
            self._has_arrived = False
            self._loop.call_soon(self._turn)

    def arrived(self) -> None:
        """Something came."""
        self._has_arrived = True

    def _turn(self) -> None:
        # A callback that is due makes the loop poll its sockets instead of sleeping on them.
        if _now_ns() < self._until_ns:
            sched_yield()  # the worker may be waiting for this processor
            self._loop.call_soon(self._turn)
            return
        self._is_turning = False
        if self._has_arrived:
            self._policy.hit()
        else:
            self._policy.miss()


_spins: WeakKeyDictionary[asyncio.AbstractEventLoop, LoopSpin] = WeakKeyDictionary()


def spin_of(loop: asyncio.AbstractEventLoop) -> LoopSpin:
    """Return the one spin of ``loop``."""
    spin = _spins.get(loop)
    if spin is None:
        spin = _spins[loop] = LoopSpin(loop, window_ns())
    return spin
