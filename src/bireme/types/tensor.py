"""Tensor: a named, typed, shaped piece of data that is handed on without copying.

A tensor borrows its buffer: it is valid for as long as it references it, and nobody writes to it after it has
been given away.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from bireme.types import datatypes
from bireme.types.errors import InvalidArgument

Array = npt.NDArray[Any]
Buffer = bytes | bytearray | memoryview

_LENGTH = struct.Struct("<I")


class Tensor:
    """A named tensor on the CPU.

    Fixed-size types hold an array of exactly ``shape`` and the data type's numpy dtype. BYTES holds either the
    encoded form (repeated little-endian ``uint32`` length, then the bytes) or an ``object`` array of ``bytes``;
    each is made from the other when someone asks for it, and then kept.
    """

    __slots__ = ("_array", "_encoded", "datatype", "name", "shape")

    def __init__(
        self,
        name: str,
        datatype: str,
        shape: tuple[int, ...],
        array: Array | None = None,
        encoded: Buffer | None = None,
    ) -> None:
        """Wrap ``array``, or for BYTES the ``encoded`` form. Nothing is checked and nothing is copied."""
        self.name = name
        self.datatype = datatype
        self.shape = shape
        self._array = array
        self._encoded = encoded

    @classmethod
    def from_numpy(cls, name: str, array: npt.ArrayLike, datatype: str | None = None) -> Tensor:
        """Wrap ``array``; copies only when its dtype or byte order is not the data type's own.

        ``datatype`` is needed only for BF16, which takes raw ``uint16`` bits or an ``ml_dtypes.bfloat16`` array.
        str elements become UTF-8 bytes.

        Raises:
            InvalidArgument: no data type holds such values.
        """
        values = np.asarray(array)
        try:
            datatype = datatype or datatypes.from_numpy(values.dtype)
        except KeyError:
            raise InvalidArgument(
                f"tensor '{name}': no data type holds values of numpy dtype '{values.dtype}'"
            ) from None
        if datatype == "BYTES":
            values = _as_bytes_objects(values)
        elif datatype == "BF16" and values.dtype.itemsize == 2:
            values = values.view(np.uint16)
        else:
            values = values.astype(datatypes.NUMPY_DTYPES[datatype], copy=False)
        return cls(name, datatype, values.shape, values)

    @property
    def is_encoded(self) -> bool:
        """Whether this BYTES tensor has been seen only in encoded form so far."""
        return self._array is None

    @property
    def memory(self) -> Array | Buffer | None:
        """What holds the data: the array, or for BYTES the encoded form, if there is one. Nothing is made for it."""
        return self._array if self._encoded is None else self._encoded

    @property
    def num_elements(self) -> int:
        """Number of elements that the shape announces."""
        return prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Size on the wire, in bytes. For BYTES this encodes the elements if that has not been done yet."""
        if self.datatype == "BYTES":
            return memoryview(self.to_buffer()).nbytes
        return self.to_numpy().nbytes

    def to_numpy(self) -> Array:
        """Return the data as an array of ``shape``: a view; the first call on encoded BYTES decodes (a copy).

        Raises:
            InvalidArgument: the encoded BYTES do not hold exactly the announced elements.
        """
        if self._array is None:
            self._array = decode_bytes(self.name, self.shape, self._encoded or b"")
        return self._array

    def to_buffer(self) -> Buffer:
        """Return the wire form, contiguous: a view, except that a strided array is copied and BYTES are encoded."""
        if self.datatype == "BYTES":
            if self._encoded is None:
                self._encoded = encode_bytes(self.to_numpy().ravel())
            return self._encoded
        array = self.to_numpy()
        if not array.flags.c_contiguous:
            array = np.ascontiguousarray(array)  # copy: the wire is row-major and tightly packed
        # A zero-sized array has no bytes to cast; a 0-d one casts only once it has an axis.
        return array.reshape(-1).data.cast("B") if array.size else b""

    def to_dlpack(self) -> Any:
        """Return a DLPack capsule over the same memory (not for BYTES)."""
        return self.to_numpy().__dlpack__()

    def reshaped(self, shape: tuple[int, ...]) -> Tensor:
        """Return the same data under another shape of as many elements; no copy."""
        array = None if self._array is None else self._array.reshape(shape)
        return Tensor(self.name, self.datatype, shape, array, self._encoded)

    def renamed(self, name: str) -> Tensor:
        """Return the same data under another name; no copy."""
        return Tensor(name, self.datatype, self.shape, self._array, self._encoded)

    def __repr__(self) -> str:
        return f"Tensor({self.name!r}, {self.datatype}{list(self.shape)})"


def encode_bytes(elements: Iterable[bytes]) -> bytes:
    """Return the wire form of BYTES elements: each a little-endian uint32 length and its bytes."""
    pack = _LENGTH.pack
    pieces: list[bytes] = []
    for element in elements:
        pieces.append(pack(len(element)))
        pieces.append(element)
    return b"".join(pieces)


def decode_bytes(name: str, shape: tuple[int, ...], encoded: Buffer) -> Array:
    """Return the elements of encoded BYTES as an object array of ``shape`` (copies each element).

    Raises:
        InvalidArgument: framing is broken, or the element count differs from the shape's; names the tensor, the
            element and the offset.
    """
    data = bytes(encoded)  # one copy; slices of bytes cost a third of those of a memoryview
    size = len(data)
    num_elements = prod(shape)
    elements: list[bytes] = []
    offset = 0
    unpack_from = _LENGTH.unpack_from
    while offset < size and len(elements) < num_elements:
        start = offset + 4
        if start > size:
            raise InvalidArgument(
                f"unexpected end of data for BYTES input '{name}': element {len(elements)} at offset {offset} has "
                f"{size - offset} bytes of its 4-byte length"
            )
        (length,) = unpack_from(data, offset)
        offset = start + length
        if offset > size:
            raise InvalidArgument(
                f"incomplete BYTES data for input '{name}': element {len(elements)} at offset {start - 4} announces "
                f"{length} bytes, but only {size - start} follow; each element is a 4-byte little-endian length and "
                f"then its bytes"
            )
        elements.append(data[start:offset])
    if offset != size or len(elements) != num_elements:
        found = f"{len(elements)}" if offset == size else f"more than {num_elements}"
        raise InvalidArgument(
            f"unexpected number of string elements {found} for BYTES input '{name}', expecting {num_elements}"
        )
    array = np.empty(num_elements, dtype=np.object_)
    array[:] = elements
    return array.reshape(shape)


def _as_bytes_objects(values: Array) -> Array:
    """Return an object array whose elements are all ``bytes`` (text becomes UTF-8)."""
    result = np.empty(values.shape, dtype=np.object_)
    flat = result.reshape(-1)
    for index, element in enumerate(values.reshape(-1).tolist()):
        flat[index] = element if isinstance(element, bytes) else str(element).encode()
    return result
