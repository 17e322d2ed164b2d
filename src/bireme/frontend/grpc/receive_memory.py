"""ReceiveMemory: how much the received messages of all connections hold together."""

from __future__ import annotations

import os
from threading import Lock
from typing import Final

from bireme.wire.grpc.status import Refusal, Status

_SHARE: Final = 2
"""One half of the machine's memory may be messages, unless told otherwise."""
_FALLBACK_BYTES: Final = 2 << 30


class ReceiveMemory:
    """Counts bytes as they arrive, not as they are announced: an announcement costs a client nothing. Of any thread.

    A message counts until its request is answered, given up or cancelled. What a model still computes for one that was
    cancelled is bounded by the model's instances.
    """

    __slots__ = ("_lock", "limit", "num_held")

    def __init__(self, limit: int = 0) -> None:
        """``limit`` in bytes; 0: half of the machine's memory."""
        self.limit = limit or _memory_size() // _SHARE
        self.num_held = 0
        self._lock = Lock()

    def take(self, num_bytes: int) -> None:
        """Count bytes of a message that have arrived.

        Raises:
            Refusal: RESOURCE_EXHAUSTED, there would be too many; they are not counted then.
        """
        with self._lock:
            if self.num_held + num_bytes > self.limit:
                raise Refusal(
                    Status.RESOURCE_EXHAUSTED,
                    f"the server's memory for received messages is used up: {self.num_held} of {self.limit} bytes are in "
                    f"use",
                )
            self.num_held += num_bytes

    def give_back(self, num_bytes: int) -> None:
        """Count bytes that are not needed any more."""
        with self._lock:
            self.num_held -= num_bytes

    def __repr__(self) -> str:
        return f"ReceiveMemory({self.num_held} of {self.limit} bytes)"


def _memory_size() -> int:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # Windows
        return _FALLBACK_BYTES
