"""Buffer: memory of the device or of the host that one instance uses again and again, and that grows when it must."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any, Final

import numpy as np

from bireme.backends.tensorrt import cuda
from bireme.types import Array

_SMALL: Final = 1 << 20
"""Sizes below it are rounded up to a power of two, those above to its multiples: shapes that grow bit by bit rarely reallocate."""
_LEAST: Final = 256


class Buffer:
    """One allocation. Its thread's device must be the one that it was made on."""

    __slots__ = ("_allocate", "_free", "address", "capacity")

    def __init__(self, allocate: Callable[[int], int], free: Callable[[int], None]) -> None:
        self._allocate = allocate
        self._free = free
        self.address = 0
        """0: nothing is allocated."""
        self.capacity = 0

    def reserve(self, nbytes: int) -> int:
        """Make room for ``nbytes`` and return the address, never 0. What was in it is lost when it has to grow.

        Raises:
            BackendFailed: there is no such memory left; the buffer is empty then.
        """
        if nbytes > self.capacity or not self.address:
            self.close()
            capacity = _round_up(nbytes)
            self.address = self._allocate(capacity)
            self.capacity = capacity
        return self.address

    def close(self) -> None:
        """Give the memory back."""
        address, self.address, self.capacity = self.address, 0, 0
        if address:
            self._free(address)


class HostBuffer(Buffer):
    """Page-locked memory of the host."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__(cuda.allocate_host, cuda.free_host)

    def array(self, shape: tuple[int, ...], dtype: np.dtype[Any], nbytes: int) -> Array:
        """Return the start of the buffer as an array, after making room; it is valid until the buffer has to grow."""
        memory = (ctypes.c_char * nbytes).from_address(self.reserve(nbytes))
        return np.ndarray(shape, dtype, memoryview(memory))


class DeviceBuffer(Buffer):
    """Memory of the device."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__(cuda.allocate, cuda.free)


def _round_up(nbytes: int) -> int:
    if nbytes >= _SMALL:
        return -(-nbytes // _SMALL) * _SMALL
    return max(_LEAST, 1 << max(nbytes - 1, 1).bit_length())
