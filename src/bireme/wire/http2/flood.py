"""Allowance: how many events without use a peer is granted, kept without a clock."""

from __future__ import annotations

from bireme.wire.http2.errors import ErrorCode, ProtocolViolation


class Allowance:
    """A number that events lower, and that time and useful work raise again."""

    __slots__ = ("_full", "_name", "_refill", "_seen", "left")

    def __init__(self, name: str, full: int, refill: int) -> None:
        self._name = name
        self._full = full
        self._refill = refill
        self._seen = 0
        self.left = full

    def charge(self, cost: int, earned: int) -> None:
        """Take ``cost`` off. ``earned`` is what useful work has been worth so far, over the connection's life.

        Raises:
            ProtocolViolation: the allowance is used up (ENHANCE_YOUR_CALM).
        """
        self.left -= cost
        if self.left < 0:
            self._earn(earned)
            if self.left < 0:
                raise ProtocolViolation(ErrorCode.ENHANCE_YOUR_CALM, f"too many {self._name}")

    def tick(self, earned: int) -> None:
        """Refill; called about once a second. What was earned beyond a full allowance is forfeit."""
        self._earn(earned)
        self.left = min(self._full, self.left + self._refill)

    def _earn(self, earned: int) -> None:
        self.left += earned - self._seen
        self._seen = earned
