"""What a response cache is: `ResponseCache` for those who write one, and the values that pass through it.

A cache is a map from keys to responses, and no more. What makes a key, what may be kept, how it is counted: all of that
lies before it (`bireme.engine.response_cache.lookup`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, cast, runtime_checkable

import msgspec

from bireme.telemetry.cache_metrics import CacheStatistics
from bireme.types import Array, Buffer, Parameter, Tensor

ENTRY_NBYTES = 320
"""What an entry takes beside its tensors' data: the key, the response, its place in a table of Python's."""
TENSOR_NBYTES = 256
"""What one of its tensors takes beside its data: the names, the shape, the array."""


# Neither is looked at by the garbage collector: a million of them would cost each full collection a tenth of a second.


class CachedTensor(msgspec.Struct, frozen=True, gc=False):
    """An output. Nobody writes to its memory, which is the cache's own."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    data: Array | Buffer
    """An array of ``shape``; of BYTES the encoded form."""

    def to_tensor(self) -> Tensor:
        """Return it for one request, which may decode BYTES and keep that without the cache growing by it."""
        if self.datatype == "BYTES":
            return Tensor(self.name, "BYTES", self.shape, None, cast("Buffer", self.data))
        return Tensor(self.name, self.datatype, self.shape, cast("Array", self.data))


class CachedResponse(msgspec.Struct, frozen=True, gc=False):
    """A response without what belongs to one request."""

    outputs: tuple[CachedTensor, ...]
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
