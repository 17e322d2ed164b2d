"""DeadlineTimer: microsecond-exact callbacks on the event loop.

uvloop's ``call_later`` works in whole milliseconds and fires at once below one, so queue delays and timeouts, which
are configured in microseconds, use one ``timerfd`` that the loop reads (it fires within about 40 µs). Where there is no
timerfd (macOS, Windows) the loop's own timers serve, rounded up to a millisecond.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import heapq
import itertools
import os
import sys
import time
from collections.abc import Callable

_CLOCK_MONOTONIC = 1
_TFD_TIMER_ABSTIME = 1
_TFD_FLAGS = os.O_NONBLOCK | getattr(os, "O_CLOEXEC", 0)


class Deadline:
    """A callback that will be called at ``when_ns`` unless it is cancelled first."""

    __slots__ = ("callback", "when_ns")

    def __init__(self, when_ns: int, callback: Callable[[], None]) -> None:
        self.when_ns = when_ns
        self.callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        """Forget the callback; the heap entry goes when its time comes."""
        self.callback = None


class DeadlineTimer:
    """Calls callbacks at points of ``time.monotonic_ns``; for use on the loop's thread only."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._heap: list[tuple[int, int, Deadline]] = []
        self._order = itertools.count()
        self._alarm = _TimerFd(loop, self._fire) if sys.platform == "linux" else _LoopAlarm(loop, self._fire)
        self._armed_ns: int | None = None

    def call_at(self, when_ns: int, callback: Callable[[], None]) -> Deadline:
        """Call ``callback`` on the loop at ``when_ns`` or as soon after it as possible."""
        deadline = Deadline(when_ns, callback)
        heapq.heappush(self._heap, (when_ns, next(self._order), deadline))
        self._arm()
        return deadline

    def close(self) -> None:
        """Drop every callback and give the descriptor back."""
        self._heap.clear()
        self._alarm.close()

    def _arm(self) -> None:
        while self._heap and self._heap[0][2].callback is None:
            heapq.heappop(self._heap)
        if not self._heap:
            return
        when_ns = self._heap[0][0]
        if self._armed_ns is None or when_ns < self._armed_ns:
            self._armed_ns = when_ns
            self._alarm.set(when_ns)

    def _fire(self) -> None:
        self._armed_ns = None
        now_ns = time.monotonic_ns()
        due: list[Deadline] = []
        while self._heap and self._heap[0][0] <= now_ns:
            due.append(heapq.heappop(self._heap)[2])
        self._arm()
        for deadline in due:
            if deadline.callback is not None:
                deadline.callback()

    def __repr__(self) -> str:
        return f"DeadlineTimer(waiting={len(self._heap)})"


class _TimerSpec(ctypes.Structure):
    """struct itimerspec of <sys/timerfd.h>: interval and value, each seconds and nanoseconds."""

    _fields_ = (
        ("interval_s", ctypes.c_long),
        ("interval_ns", ctypes.c_long),
        ("value_s", ctypes.c_long),
        ("value_ns", ctypes.c_long),
    )


class _TimerFd:
    """One kernel timer whose descriptor the loop reads."""

    def __init__(self, loop: asyncio.AbstractEventLoop, fire: Callable[[], None]) -> None:
        self._loop = loop
        self._fire = fire
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._fd: int = self._libc.timerfd_create(_CLOCK_MONOTONIC, _TFD_FLAGS)
        if self._fd < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create failed")
        loop.add_reader(self._fd, self._read)

    def set(self, when_ns: int) -> None:
        # A value of zero would disarm the timer, so a time in the past is one nanosecond.
        seconds, nanoseconds = divmod(max(when_ns, 1), 1_000_000_000)
        spec = _TimerSpec(0, 0, seconds, nanoseconds)
        if self._libc.timerfd_settime(self._fd, _TFD_TIMER_ABSTIME, ctypes.byref(spec), None) != 0:
            raise OSError(ctypes.get_errno(), "timerfd_settime failed")

    def close(self) -> None:
        if self._fd >= 0:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self._fd = -1

    def _read(self) -> None:
        with contextlib.suppress(BlockingIOError):  # set again between the event and this read
            os.read(self._fd, 8)
        self._fire()


class _LoopAlarm:
    """The portable alarm: the loop's own timer, never early."""

    def __init__(self, loop: asyncio.AbstractEventLoop, fire: Callable[[], None]) -> None:
        self._loop = loop
        self._fire = fire
        self._handle: asyncio.TimerHandle | None = None

    def set(self, when_ns: int) -> None:
        self.close()
        delay_s = max(0, when_ns - time.monotonic_ns()) / 1e9
        self._handle = self._loop.call_later(delay_s + 0.001, self._fire)

    def close(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
