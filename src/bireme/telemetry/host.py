"""The machine's CPU and memory, read from /proc when someone asks: an idle server is never woken for it.

Source: Triton ``metrics.cc`` (ParseCpuInfo, ParseMemInfo, CpuUtilization).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

ReadText = Callable[[str], str]


@dataclass(frozen=True, slots=True)
class HostUsage:
    """One reading. ``cpu_utilization`` is 0 to 1, over the time since the reading before."""

    cpu_utilization: float
    memory_total_bytes: int
    memory_used_bytes: int


def parse_cpu_times(stat: str) -> tuple[int, int]:
    """Return (busy, idle) ticks of all CPUs together from the text of /proc/stat.

    Raises:
        ValueError: it does not start with the line of all CPUs.
    """
    name, *fields = stat.partition("\n")[0].split()
    if name != "cpu" or len(fields) < 8:
        raise ValueError("/proc/stat does not start with the times of all CPUs")
    # guest time is part of user time already
    user, nice, system, idle, iowait, irq, softirq, steal = (int(ticks) for ticks in fields[:8])
    return user + nice + system + irq + softirq + steal, idle + iowait


def parse_memory(meminfo: str) -> tuple[int, int]:
    """Return (total, used) bytes from the text of /proc/meminfo; used is what is not available.

    Raises:
        ValueError: the total or the available memory is missing.
    """
    sizes_kb = {}
    for line in meminfo.splitlines():
        name, _, rest = line.partition(":")
        if name in ("MemTotal", "MemAvailable"):
            sizes_kb[name] = int(rest.split()[0])
    if len(sizes_kb) != 2:
        raise ValueError("/proc/meminfo names no MemTotal or no MemAvailable")
    total_kb = sizes_kb["MemTotal"]
    return total_kb * 1024, max(total_kb - sizes_kb["MemAvailable"], 0) * 1024


class HostSampler:
    """Reads the machine's usage, at most once per interval; in between it repeats the last reading."""

    __slots__ = ("_clock_ns", "_cpu_times", "_interval_ns", "_last", "_next_at_ns", "_read")

    def __init__(
        self,
        interval_ns: int,
        *,
        read: ReadText = lambda path: Path(path).read_text(encoding="ascii"),
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        """Take the CPU times of now as the baseline of the first reading."""
        self._interval_ns = interval_ns
        self._read = read
        self._clock_ns = clock_ns
        self._next_at_ns = 0
        self._last: HostUsage | None = None
        try:
            self._cpu_times = parse_cpu_times(read("/proc/stat"))
        except (OSError, ValueError):
            self._cpu_times = (0, 0)

    def sample(self) -> HostUsage | None:
        """Return the usage now; None where /proc does not tell it (not Linux)."""
        now_ns = self._clock_ns()
        if self._last is None or now_ns >= self._next_at_ns:
            self._next_at_ns = now_ns + self._interval_ns
            try:
                self._last = self._measure()
            except (OSError, ValueError):
                self._last = None
        return self._last

    def _measure(self) -> HostUsage:
        busy, idle = parse_cpu_times(self._read("/proc/stat"))
        total_bytes, used_bytes = parse_memory(self._read("/proc/meminfo"))
        # The kernel's counters may step back a little (iowait does); never below zero then.
        busy_delta = max(busy - self._cpu_times[0], 0)
        idle_delta = max(idle - self._cpu_times[1], 0)
        self._cpu_times = (busy, idle)
        elapsed = busy_delta + idle_delta
        return HostUsage(busy_delta / elapsed if elapsed else 0.0, total_bytes, used_bytes)
