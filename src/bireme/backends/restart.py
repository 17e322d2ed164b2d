"""RestartPolicy: when a worker process that died is started again. Pure: the clock is an argument."""

from __future__ import annotations

from typing import Final

_STABLE_NS: Final = 10_000_000_000
_MAX_DELAY_S: Final = 30.0


class RestartPolicy:
    """Decides on the delays of one instance's restarts.

    The first restart is at once: a crash is rare, and its callers may try again. A process that dies within 10 s of its
    start, or does not even start, waits 1, 2, 4, … 30 s: it would take the machine's time from those that work.
    """

    def __init__(self) -> None:
        self._num_failures = 0
        self._started_ns: int | None = None

    def note_start(self, now_ns: int) -> None:
        """The process is initialised, the model runs."""
        self._started_ns = now_ns

    def note_death(self, now_ns: int) -> float:
        """The process died, or failed to start: return the seconds to wait before it is started again."""
        if self._started_ns is not None and now_ns - self._started_ns >= _STABLE_NS:
            self._num_failures = 0
        self._started_ns = None
        self._num_failures += 1
        if self._num_failures == 1:
            return 0.0
        return min(2.0 ** min(self._num_failures - 2, 10), _MAX_DELAY_S)
