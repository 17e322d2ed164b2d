"""Shared memory regions as codecs see them: where inputs are read from and outputs are written to.

A decoder asks `Regions` for a view of each part that a request names. The views are what keeps the memory mapped until
the request is done with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

import numpy as np

from bireme.types import Buffer, Internal, InvalidArgument, NotFound, Tensor

MIN_TARGET_BYTES: Final = 1 << 20
"""Size from which on it pays to have a backend write an output where it is wanted, instead of copying it there."""

_SMALL_BYTES = 4096


class Place(NamedTuple):
    """A part of a shared memory region."""

    region: str
    offset: int
    byte_size: int


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

    def overlap(self, first: Place, second: Place) -> bool:
        """Whether two places, of which slices were given, share memory: also by two names of the same memory."""
        ...


class NoRegions:
    """For where nothing is registered."""

    def __len__(self) -> int:
        return 0

    def slice(self, region: str, offset: int, byte_size: int) -> memoryview:  # noqa: ARG002
        """Find nothing."""
        raise region_not_found(region)

    def overlap(self, first: Place, second: Place) -> bool:  # noqa: ARG002
        """Return False: nothing shares memory."""
        return False


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

    @property
    def place(self) -> Place:
        """Which part that is."""
        return Place(self.name, self.offset, self.byte_size)

    def has(self, tensor: Tensor) -> bool:
        """Whether ``tensor`` is here already: the backend wrote it where it's wanted."""
        if self.byte_size < MIN_TARGET_BYTES or tensor.datatype == "BYTES":
            return False
        array = tensor.to_numpy()
        start: int = np.frombuffer(self.memory, np.uint8).ctypes.data
        return array.ctypes.data == start and array.nbytes <= self.byte_size and array.flags.c_contiguous

    def write(self, tensor: Tensor) -> int:
        """Copy the wire form of ``tensor`` to the start of this part, once; return its size in bytes.

        Raises:
            Internal: it does not fit.
            InvalidArgument: the client has made its memory smaller meanwhile.
        """
        if tensor.datatype == "BYTES":
            return self.write_pieces(tensor.name, [tensor.to_buffer()])
        array = tensor.to_numpy()
        nbytes = array.nbytes
        self._check(tensor.name, nbytes)
        if nbytes <= _SMALL_BYTES:
            self.memory[:nbytes] = array.tobytes()  # 0.3 µs, where an array to copy to takes 0.9
        elif not self.has(tensor):
            np.copyto(np.ndarray(array.shape, array.dtype, self.memory), array)
        return nbytes

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
