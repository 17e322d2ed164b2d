"""Gives memory back to the operating system: after a model has gone, and what large requests have left behind."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import os
import sys
import time
import weakref
from collections.abc import Callable
from pathlib import Path

from bireme.ipc.arena import Arena

_TRIM_PERIOD_S = 2.0
"""How long unused memory is kept for reuse, at least."""
_IDLE_CPU_S = 0.1
"""CPU time of the process in that time up to which it counts as idle."""
_WORTH_NBYTES = 16 << 20
"""The heap is trimmed when the process has grown by so much since the last time."""
_PAGE_NBYTES = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096


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


def resident_nbytes() -> int:
    """Return how much memory of the machine this process has; 0 where the system does not tell."""
    try:
        return int(Path("/proc/self/statm").read_bytes().split()[1]) * _PAGE_NBYTES
    except (OSError, IndexError, ValueError):
        return 0


class MemoryTrimmer:
    """Gives memory back that was used once: of the arena, and of the heap while there is little to do. Loop thread only.

    Large bodies that were inflated, parsed or written as JSON lie in the heap, and glibc keeps what it has had to grow by. A
    trim of it takes milliseconds in which nobody can allocate, so it waits for idle seconds, and for something to be gained.
    """

    def __init__(self, arena: Arena) -> None:
        self._arena = arena
        self._timer: asyncio.TimerHandle | None = None
        self._cpu_s = 0.0
        self._kept_nbytes = 0
        """What the process had after the last trim, or when there was nothing to be gained yet."""
        self._trimming: asyncio.Future[None] | None = None

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Trim now, and every `_TRIM_PERIOD_S` from now on."""
        self._arena.trim()
        if _malloc_trim is not None and self._trimming is None and self._is_idle():
            nbytes = resident_nbytes()
            if not self._kept_nbytes or nbytes < self._kept_nbytes:
                self._kept_nbytes = nbytes
            elif nbytes > self._kept_nbytes + _WORTH_NBYTES:
                self._trimming = loop.run_in_executor(None, self._trim_heap)
                self._trimming.add_done_callback(self._end)
        self._timer = loop.call_later(_TRIM_PERIOD_S, self.start, loop)

    def _is_idle(self) -> bool:
        before_s, self._cpu_s = self._cpu_s, time.process_time()
        return self._cpu_s - before_s < _IDLE_CPU_S

    def _trim_heap(self) -> None:
        assert _malloc_trim is not None
        _malloc_trim(0)
        self._kept_nbytes = resident_nbytes()

    def _end(self, _: asyncio.Future[None]) -> None:
        self._trimming = None

    def stop(self) -> None:
        """Trim no more."""
        if self._timer is not None:
            self._timer.cancel()
