"""LocalCache: responses in this process's own memory, the least recently used ones going first."""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from collections.abc import Mapping

from bireme.engine.response_cache.interface import CachedResponse
from bireme.telemetry.cache_metrics import CacheStatistics
from bireme.types import InvalidArgument

log = logging.getLogger("bireme.engine")

_now_ns = time.monotonic_ns


class LocalCache:
    """At most ``max_nbytes`` of responses, over all models. Every call takes constant time. Loop thread only.

    A hit is the entry itself: nothing is copied.
    """

    may_block = False
    is_shared = False
    is_away = False

    def __init__(self, max_nbytes: int) -> None:
        self._max_nbytes = max_nbytes
        self._entries: OrderedDict[bytes, CachedResponse] = (
            OrderedDict()
        )  # from the least recently used one on
        self._nbytes = 0
        self._num_hits = self._num_misses = 0
        self._num_insertions = self._num_evictions = self._num_rejected = 0
        self._lookup_ns = self._insertion_ns = 0

    @classmethod
    def open(cls, settings: Mapping[str, str]) -> LocalCache:
        """Return a cache of ``size`` bytes.

        Raises:
            InvalidArgument: ``size`` is missing or no positive number, or there are other settings.
        """
        unknown = [name for name in settings if name != "size"]
        if unknown:
            raise InvalidArgument(f"cache 'local': unknown setting '{unknown[0]}', expected only 'size'")
        text = settings.get("size")
        if text is None:
            raise InvalidArgument("cache 'local': 'size' is missing: its bytes, as in local,size=67108864")
        if not text.isascii() or not text.isdigit() or int(text) == 0:
            raise InvalidArgument(f"cache 'local': size is '{text}', expected a number of bytes from 1 on")
        return cls(int(text))

    def get(self, key: bytes) -> CachedResponse | None:
        """Return the entry of ``key``, which is the most recently used one now."""
        start_ns = _now_ns()
        found = self._entries.get(key)
        if found is None:
            self._num_misses += 1
        else:
            self._entries.move_to_end(key)
            self._num_hits += 1
        self._lookup_ns += _now_ns() - start_ns
        return found

    def put(self, key: bytes, response: CachedResponse) -> None:
        """Keep ``response``; what was used longest ago makes room for it. One that is there already stays."""
        start_ns = _now_ns()
        if response.nbytes > self._max_nbytes:
            if self._num_rejected == 0:
                log.warning(
                    "response cache: a response of %d bytes is larger than the whole cache (%d bytes), and not kept; "
                    "said once",
                    response.nbytes,
                    self._max_nbytes,
                )
            self._num_rejected += 1
        elif key not in self._entries:
            self._make_room(response.nbytes)
            self._entries[key] = response
            self._nbytes += response.nbytes
            self._num_insertions += 1
        self._insertion_ns += _now_ns() - start_ns

    def _make_room(self, nbytes: int) -> None:
        while self._nbytes + nbytes > self._max_nbytes:
            _, evicted = self._entries.popitem(last=False)
            self._nbytes -= evicted.nbytes
            self._num_evictions += 1

    def statistics(self) -> CacheStatistics:
        """Return the counts."""
        return CacheStatistics(
            num_hits=self._num_hits,
            num_misses=self._num_misses,
            num_insertions=self._num_insertions,
            num_evictions=self._num_evictions,
            num_rejected=self._num_rejected,
            lookup_ns=self._lookup_ns,
            insertion_ns=self._insertion_ns,
            num_entries=len(self._entries),
            nbytes=self._nbytes,
            max_nbytes=self._max_nbytes,
        )

    def close(self) -> None:
        """Let go of everything."""
        self._entries.clear()
        self._nbytes = 0

    def __repr__(self) -> str:
        return f"LocalCache({len(self._entries)} entries, {self._nbytes} of {self._max_nbytes} bytes)"
