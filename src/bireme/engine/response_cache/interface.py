"""What a response cache is: `ResponseCache` for those who write one, and the values that pass through it.

A cache is a map from keys to responses, and no more. What makes a key, what may be kept, how it is counted: all of that
lies before it (`bireme.engine.response_cache.lookup`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Protocol, runtime_checkable

from bireme.telemetry.cache_metrics import CacheStatistics
from bireme.types import Parameter, Tensor

ENTRY_NBYTES = 1024
"""What an entry takes beside its tensors' data: the key, the response, its place in a table of Python's."""
TENSOR_NBYTES = 512
"""What one of its tensors takes beside its data: the names, the shape, the array."""


class CachedResponse(NamedTuple):
    """A response without what belongs to one request. Nobody writes to its tensors; their memory is the cache's own."""

    outputs: tuple[Tensor, ...]
    """BYTES in encoded form."""
    parameters: dict[str, Parameter] | None
    nbytes: int
    """All the memory that it takes."""


@runtime_checkable
class ResponseCache(Protocol):
    """A map from keys to responses. One that may block is called on several threads at once, others on the loop alone."""

    may_block: bool
    """Whether a `get` or a `put` may take longer than some microseconds."""
    is_shared: bool
    """Whether it outlives this server, or others see it."""

    @property
    def is_away(self) -> bool:
        """Whether it cannot answer now, so that there is no use in asking. Asked on the loop, for every request."""

    def get(self, key: bytes) -> CachedResponse | None:
        """Return what was put under ``key`` (32 bytes), or None. Never raises: what cannot be read is not there."""

    def put(self, key: bytes, response: CachedResponse) -> None:
        """Keep ``response``, if there is room. Never raises."""

    def statistics(self) -> CacheStatistics:
        """Return the counts, at once."""

    def close(self) -> None:
        """Give everything back. Nothing is called afterwards. May block."""


class CacheFactory(Protocol):
    """What an entry point of the group ``bireme.caches`` names: it opens a cache."""

    def __call__(self, settings: Mapping[str, str]) -> ResponseCache:
        """Open a cache with the settings of ``--cache-config``, without waiting for anything.

        Raises:
            InvalidArgument: a setting is missing, unknown or cannot be read.
        """
