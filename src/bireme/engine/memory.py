"""Gives memory back to the operating system: after a model has gone, and what the arena does not use."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import sys
import weakref
from collections.abc import Callable

from bireme.ipc.arena import Arena

_TRIM_PERIOD_S = 2.0
"""How long unused memory of the arena is kept for reuse, at least."""


def _find_malloc_trim() -> Callable[[int], int] | None:
    if not sys.platform.startswith("linux"):
        return None
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError):  # a C library other than glibc
        return None
    trim.argtypes = [ctypes.c_size_t]
    trim.restype = ctypes.c_int
    return trim


_malloc_trim = _find_malloc_trim()


def release_memory(*remains: weakref.ref[object]) -> None:
    """Return free heap pages to the system, after collecting reference cycles if that is needed. Blocking.

    ``remains`` are what should have gone; a collection is needed only when one of them is still there, because it
    holds the interpreter, and with it every request, for 10 to 40 ms. (A program that knows what it does calls
    `gc.freeze` before its first model, and then a collection takes no time.) Without the trim glibc keeps what a
    model's weights took, and load/unload rounds look like a leak.
    """
    if not remains or any(remain() is not None for remain in remains):
        gc.collect()
    if _malloc_trim is not None:
        _malloc_trim(0)


class ArenaTrimmer:
    """Gives unused memory of ``arena`` back, again and again. Loop thread only."""

    def __init__(self, arena: Arena) -> None:
        self._arena = arena
        self._timer: asyncio.TimerHandle | None = None

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Trim now, and every `_TRIM_PERIOD_S` from now on."""
        self._arena.trim()
        self._timer = loop.call_later(_TRIM_PERIOD_S, self.start, loop)

    def stop(self) -> None:
        """Trim no more."""
        if self._timer is not None:
            self._timer.cancel()
