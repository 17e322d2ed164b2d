"""InlinePolicy: whether a model runs on the loop's own thread.

Handing a batch to a thread and back costs about 16 µs; a run much shorter than a few of those is cheaper on the spot,
but a long one there would hold up every other model. So a model earns the loop thread by a row of short runs and
loses it when runs get long; a loss soon after the last makes it harder to earn again.

Durations are wall-clock time, so on a busy machine a run of 15 µs now and then measures milliseconds because another
process had the core. One such outlier says nothing about the model: on 2 shared cores, leaving for each of them moved
the median latency of a tiny model from 60 to 250 µs. Hence "long" is one run that could not be an accident, or two
close together.
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

    def observe(self, duration_ns: int) -> None:
        """Take in the duration of one run, wherever it happened, without any hand-over."""
        if self.inline:
            self._observe_inline(duration_ns)
        elif duration_ns > GOOD_RUN_NS:
            self._num_good = 0
        else:
            self._num_good += 1
            if self._num_good >= self._num_needed:
                self.inline = True
                self._average_ns = duration_ns
                self._num_runs = 0
                self._last_long = -LONG_RUNS_WINDOW

    def _observe_inline(self, duration_ns: int) -> None:
        self._num_runs += 1
        if duration_ns > LONG_RUN_NS:
            is_second = self._num_runs - self._last_long < LONG_RUNS_WINDOW
            self._last_long = self._num_runs
            if is_second or duration_ns > LIMIT_RUN_NS:
                self._leave()
                return
            duration_ns = LONG_RUN_NS
        self._average_ns += (duration_ns - self._average_ns) >> _AVERAGE_SHIFT
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
