"""InlinePolicy: whether a model runs on the loop's own thread.

Handing a batch to a thread and back costs about 16 µs; a run much shorter than a few of those is cheaper on the spot,
but a long one there would hold up every other model. So a model earns the loop thread by a row of short runs and
loses it at the first long one, or when its runs get longer on the whole; each loss makes it harder to earn again.
"""

from __future__ import annotations

from typing import Final

GOOD_RUN_NS: Final = 60_000
"""A run up to this counts towards going inline."""
LIMIT_RUN_NS: Final = 300_000
"""One inline run above this ends inline mode."""
LIMIT_AVERAGE_NS: Final = 100_000
"""An average of recent inline runs above this ends inline mode."""
NUM_GOOD_RUNS_AT_FIRST: Final = 8
NUM_GOOD_RUNS_AFTER_LOSS: Final = 64
"""Doubles with every loss, up to `MAX_GOOD_RUNS`."""
MAX_GOOD_RUNS: Final = 4096

_AVERAGE_SHIFT: Final = 3  # each run has a weight of 1/8


class InlinePolicy:
    """Watches how long a model's runs take; starts not inline."""

    __slots__ = ("_average_ns", "_num_good", "_num_losses", "_num_needed", "inline")

    def __init__(self) -> None:
        self.inline = False
        """Whether the next run should happen on the loop thread."""
        self._num_good = 0  # in a row
        self._num_needed = NUM_GOOD_RUNS_AT_FIRST
        self._num_losses = 0
        self._average_ns = 0

    def observe(self, duration_ns: int) -> None:
        """Take in the duration of one run, wherever it happened, without any hand-over."""
        if self.inline:
            self._average_ns += (duration_ns - self._average_ns) >> _AVERAGE_SHIFT
            if duration_ns > LIMIT_RUN_NS or self._average_ns > LIMIT_AVERAGE_NS:
                self._leave()
        elif duration_ns > GOOD_RUN_NS:
            self._num_good = 0
        else:
            self._num_good += 1
            if self._num_good >= self._num_needed:
                self.inline = True
                self._average_ns = duration_ns

    def _leave(self) -> None:
        self.inline = False
        self._num_good = 0
        self._num_needed = (
            min(2 * self._num_needed, MAX_GOOD_RUNS) if self._num_losses else NUM_GOOD_RUNS_AFTER_LOSS
        )
        self._num_losses += 1

    def __repr__(self) -> str:
        if self.inline:
            return (
                f"InlinePolicy(inline, average {self._average_ns // 1000} us, lost {self._num_losses} times)"
            )
        return f"InlinePolicy(not inline, {self._num_good} of {self._num_needed} good runs)"
