"""Shared memory regions as codecs see them: where inputs are read from and outputs are written to.

A decoder asks `Regions` for a view of each part that a request names. The views are what keeps the memory mapped until
the request is done with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np

from bireme.types import Buffer, Internal, InvalidArgument, NotFound, Tensor


class Regions(Protocol):
    """The registered shared memory regions, as decoders see them."""

    def __len__(self) -> int:
        """Return how many there are."""
        ...

    def slice(self, region: str, offset: int, byte_size: int) -> memoryview:
        """Return a writable view of ``byte_size`` bytes of ``region``. The view keeps the memory mapped.

        Its ``obj`` may have a property ``is_intact``: whether the memory is still all there. Ask before a later access.

        Raises:
            NotFound: no such region.
            InvalidArgument: the range is not inside it.
        """
        ...


class NoRegions:
    """For where nothing is registered."""

    def __len__(self) -> int:
        return 0

    def slice(self, region: str, offset: int, byte_size: int) -> memoryview:  # noqa: ARG002
        """Find nothing."""
        raise region_not_found(region)


NO_REGIONS = NoRegions()


def region_not_found(region: str) -> NotFound:
    """Return the error for the name of no region."""
    return NotFound(f"Unable to find shared memory region: '{region}'")


class OutputRegion(NamedTuple):
    """The part of a shared memory region that an output is to be written to."""

    name: str
    offset: int
    byte_size: int
    memory: memoryview
    """Writable; keeps the region mapped."""

    def write(self, tensor: Tensor) -> int:
        """Copy the wire form of ``tensor`` to the start of this part, once; return its size in bytes.

        Raises:
            Internal: it does not fit.
            InvalidArgument: the client has made its memory smaller meanwhile.
        """
        if tensor.datatype == "BYTES":
            return self.write_pieces(tensor.name, [tensor.to_buffer()])
        array = tensor.to_numpy()
        self._check(tensor.name, array.nbytes)
        if array.nbytes:
            np.copyto(np.ndarray(array.shape, array.dtype, self.memory), array)
        return array.nbytes

    def write_pieces(self, name: str, pieces: Sequence[Buffer]) -> int:
        """As `write`, for output ``name`` whose wire form is ``pieces``."""
        nbytes = sum(map(len, pieces))
        self._check(name, nbytes)
        position = 0
        for piece in pieces:
            end = position + len(piece)
            # numpy lets go of the GIL, a memoryview does not.
            np.frombuffer(self.memory[position:end], np.uint8)[:] = np.frombuffer(piece, np.uint8)
            position = end
        return nbytes

    def _check(self, output: str, nbytes: int) -> None:
        if nbytes > self.byte_size:
            raise Internal(
                f"shared memory size specified with the request for output '{output}' ({self.byte_size} bytes) "
                f"should be at least {nbytes} bytes to hold the results"
            )
        if not getattr(self.memory.obj, "is_intact", True):
            raise InvalidArgument(
                f"shared memory region '{self.name}' has become smaller since the request for output '{output}' came; "
                f"unregister the region and register it again"
            )
