"""Backlog: how much of the stream of a decoupled callee waits for the code that reads it."""

from __future__ import annotations

from collections import deque
from typing import Final

MOST: Final = 64
"""Responses that may wait before the callee is held."""
MOST_BYTES: Final = 16 << 20
"""As `MOST`, in bytes. Below half of both the callee goes on."""


class Backlog:
    """Counts what comes and what is taken; whoever has one acts on what it says. Not for two threads at a time."""

    __slots__ = ("_nbytes", "_sizes", "is_full")

    def __init__(self) -> None:
        self._sizes: deque[int] = deque()
        self._nbytes = 0
        self.is_full = False
        """From the time that there is too much until there is little enough."""

    def add(self, nbytes: int) -> bool:
        """A response of ``nbytes`` has come. Return whether the callee is to be held, again if it was already."""
        self._sizes.append(nbytes)
        self._nbytes += nbytes
        if len(self._sizes) < MOST and self._nbytes < MOST_BYTES:
            return False
        self.is_full = True
        return True

    def take(self, num: int = 1) -> bool:
        """The oldest ``num`` responses were taken. Return whether it is full no more by that."""
        sizes = self._sizes
        for _ in range(min(num, len(sizes))):
            self._nbytes -= sizes.popleft()
        if not self.is_full or len(sizes) > MOST // 2 or self._nbytes > MOST_BYTES // 2:
            return False
        self.is_full = False
        return True
