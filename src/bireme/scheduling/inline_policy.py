"""InlinePolicy: whether a model runs on the loop's own thread.

Handing a batch to a thread and back costs about 16 µs; a run much shorter than a few of those is cheaper on the spot,
but a long one there would hold up every other model. So a model earns the loop thread by a row of short runs and
loses it when runs get long; a loss soon after the last makes it harder to earn again.

On a busy machine a run of 15 µs now and then takes milliseconds by the clock, because another process had the core or another
thread the interpreter. That says nothing about the model, so what counts against it is the CPU time of the thread that runs
it; what earns the loop is a short run by the clock, since a model that waits for something uses no CPU time either. By
the clock alone, 16 clients on 2 shared cores made a tiny model leave the loop again and again, for a third of the throughput.
"""

from __future__ import annotations

from typing import Final

GOOD_RUN_NS: Final = 60_000
"""A run up to this counts towards going inline."""
LONG_RUN_NS: Final = 300_000
"""Two inline runs above this within `LONG_RUNS_WINDOW` end inline mode."""
LONG_RUNS_WINDOW: Final = 32
LIMIT_RUN_NS: Final = 3_000_000
"""One inline run above this ends inline mode."""
MAX_ACCIDENT_NS: Final = 20_000_000
"""No accident takes an inline run longer than this by the clock: it ends inline mode, whatever CPU time it used."""
MAX_ACCIDENTS: Final = 8
"""So many inline runs in a row that are long by the clock alone are none: the model waits for something."""
LIMIT_AVERAGE_NS: Final = 100_000
"""An average of recent inline runs above this ends inline mode; a single run counts for `LONG_RUN_NS` at most."""
NUM_GOOD_RUNS_AT_FIRST: Final = 8
NUM_GOOD_RUNS_AFTER_LOSS: Final = 64
"""Doubles, up to `MAX_GOOD_RUNS`, with every loss within `PROVEN_RUNS` of the return."""
MAX_GOOD_RUNS: Final = 4096
PROVEN_RUNS: Final = 1024

_AVERAGE_SHIFT: Final = 3  # each run has a weight of 1/8


class InlinePolicy:
    """Watches how long a model's runs take; starts not inline."""

    __slots__ = (
        "_average_ns",
        "_last_long",
        "_num_accidents",
        "_num_good",
        "_num_losses",
        "_num_needed",
        "_num_runs",
        "inline",
    )

    def __init__(self) -> None:
        self.inline = False
        """Whether the next run should happen on the loop thread."""
        self._num_good = 0  # in a row
        self._num_needed = NUM_GOOD_RUNS_AT_FIRST
        self._num_losses = 0
        self._num_runs = 0  # since inline mode began
        self._last_long = -LONG_RUNS_WINDOW  # the number of the last long run
        self._average_ns = 0
        self._num_accidents = 0  # in a row

    def observe(self, duration_ns: int, cpu_ns: int) -> None:
        """Take in one run, wherever it happened, without any hand-over: its time by the clock, and its thread's CPU time."""
        if self.inline:
            self._observe_inline(duration_ns, cpu_ns)
        elif duration_ns <= GOOD_RUN_NS:
            self._num_good += 1
            if self._num_good >= self._num_needed:
                self.inline = True
                self._average_ns = cpu_ns
                self._num_runs = self._num_accidents = 0
                self._last_long = -LONG_RUNS_WINDOW
        elif cpu_ns > GOOD_RUN_NS:
            self._num_good = 0  # else it may have been an accident, or a wait: it earns nothing

    def _observe_inline(self, duration_ns: int, cpu_ns: int) -> None:
        self._num_runs += 1
        if duration_ns > LONG_RUN_NS:
            self._num_accidents += 1
            if duration_ns > MAX_ACCIDENT_NS or self._num_accidents >= MAX_ACCIDENTS:
                self._leave()
                return
        else:
            self._num_accidents = 0
        if cpu_ns > LONG_RUN_NS:
            is_second = self._num_runs - self._last_long < LONG_RUNS_WINDOW
            self._last_long = self._num_runs
            if is_second or cpu_ns > LIMIT_RUN_NS:
                self._leave()
                return
            cpu_ns = LONG_RUN_NS
        self._average_ns += (cpu_ns - self._average_ns) >> _AVERAGE_SHIFT
        if self._average_ns > LIMIT_AVERAGE_NS:
            self._leave()

    def _leave(self) -> None:
        self.inline = False
        self._num_good = 0
        if self._num_losses and self._num_runs < PROVEN_RUNS:
            self._num_needed = min(2 * self._num_needed, MAX_GOOD_RUNS)
        else:
            self._num_needed = NUM_GOOD_RUNS_AFTER_LOSS
        self._num_losses += 1

    def __repr__(self) -> str:
        if self.inline:
            return (
                f"InlinePolicy(inline, average {self._average_ns // 1000} us, lost {self._num_losses} times)"
            )
        return f"InlinePolicy(not inline, {self._num_good} of {self._num_needed} good runs)"
