"""Slices: what is compared takes turns, some milliseconds each, many times over; what counts is CPU time.

On a machine that does other things as well, whole runs differ by more than what is to be seen. Of two short slices side by side
both meet the same machine, CPU time leaves out what they waited for, and a median over many pairs has no outliers. A result has
the range in which the true median lies with 95 %, so that it says itself how fine it is.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple


class Median(NamedTuple):
    """A median, and where it lies with 95 %."""

    value: float
    low: float
    high: float

    def as_change(self) -> str:
        """Return a ratio in per cent above 1."""
        value, low, high = ((each - 1) * 100 for each in self)
        return f"{value:+.1f} % ({low:+.1f} to {high:+.1f})"


def median_of(values: Sequence[float]) -> Median:
    """Return the median of ``values``. Its range is that between two of them, by the binomial distribution."""
    ordered = sorted(values)
    count = len(ordered)
    reach = 0.98 * count**0.5
    low, high = max(0, int(count / 2 - reach)), min(count - 1, int(count / 2 + reach))
    return Median(statistics.median(ordered), ordered[low], ordered[high])


def take_turns(rounds: int, measures: Mapping[str, Callable[[], float]]) -> dict[str, list[float]]:
    """Run every measure once a round, each time in another order; return each one's results by round."""
    found: dict[str, list[float]] = {name: [] for name in measures}
    chance = random.Random(0)
    names = list(measures)
    for _ in range(rounds):
        chance.shuffle(names)
        for name in names:
            found[name].append(measures[name]())
    return found


def ratio_of(mine: Sequence[float], other: Sequence[float]) -> Median:
    """Return the median of the rounds' ratios."""
    return median_of([a / b for a, b in zip(mine, other, strict=True)])


def cpu_ns(pid: int) -> int:
    """Return the CPU time of all threads that a process has, or had. Source: Linux ``posix-timers.h`` (CPUCLOCK_SCHED)."""
    return time.clock_gettime_ns((~pid << 3) | 2)
