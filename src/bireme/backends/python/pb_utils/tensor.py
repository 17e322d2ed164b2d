"""Tensor: a named array, as models make and read it."""

from __future__ import annotations

from typing import Any

import numpy as np

from bireme import types
from bireme.backends.python.pb_utils.datatypes import DATATYPE_NUMBERS, DATATYPES_BY_DTYPE, as_bytes_elements
from bireme.backends.python.pb_utils.dlpack import CPU, export_tensor, import_tensor
from bireme.backends.python.pb_utils.errors import TritonModelException
from bireme.backends.python.pb_utils.text import to_text
from bireme.types import Array

_make_tensor = types.Tensor


class Tensor:
    """A named tensor over a numpy array; shares its memory.

    An array that is not contiguous or not little-endian is copied. Object and ``S`` arrays become BYTES: elements that
    are not bytes are turned into UTF-8 text. Measured: 0.5 µs for one of a fixed-size type.

    Raises:
        TypeError: ``name`` is not a str or ``numpy_array`` no array.
        TritonModelException: the name is empty, or no data type holds such values.
    """

    __slots__ = ("_tensor",)

    _tensor: types.Tensor

    def __init__(self, name: str, numpy_array: Array) -> None:
        try:
            datatype = DATATYPES_BY_DTYPE[numpy_array.dtype]
        except (KeyError, AttributeError, TypeError):
            self._tensor = _adapt(name, numpy_array)
            return
        if type(name) is str and name and type(numpy_array) is np.ndarray and numpy_array.flags.c_contiguous:
            self._tensor = _make_tensor(name, datatype, numpy_array.shape, numpy_array)
        else:
            self._tensor = _adapt(name, numpy_array)

    @staticmethod
    def from_dlpack(name: str, tensor: Any) -> Tensor:
        """Return a tensor over the memory of a DLPack capsule, or of an object that exports one.

        Raises: as `Tensor`, and `import_tensor`.
        """
        return wrap_tensor(import_tensor(_check_name(name), tensor))

    def name(self) -> str:
        """Return the name."""
        return self._tensor.name

    def shape(self) -> list[int]:
        """Return the shape."""
        return list(self._tensor.shape)

    def triton_dtype(self) -> int:
        """Return the data type's number."""
        return DATATYPE_NUMBERS[self._tensor.datatype]

    def as_numpy(self) -> Array | None:
        """Return the array; BYTES as object array of bytes. None for BF16, which numpy lacks: use `to_dlpack`."""
        tensor = self._tensor
        if tensor.datatype == "BF16":
            return None
        return tensor.to_numpy()

    def is_cpu(self) -> bool:
        """Whether the data is in the memory of the CPU: always."""
        return True

    def to_dlpack(self) -> Any:
        """Return a DLPack capsule over the same memory. Raises `TritonModelException` for BYTES."""
        return export_tensor(self._tensor)

    def __dlpack__(
        self,
        stream: Any = None,
        *,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        """As `to_dlpack`. Raises `BufferError` for a device other than the CPU."""
        if dl_device is not None and tuple(dl_device) != CPU:
            raise BufferError(
                f"the tensor is in the CPU's memory, it cannot be exported to device {dl_device}"
            )
        tensor = self._tensor
        if copy and tensor.datatype != "BYTES":
            tensor = types.Tensor(tensor.name, tensor.datatype, tensor.shape, tensor.to_numpy().copy())
        return export_tensor(tensor)

    def __dlpack_device__(self) -> tuple[int, int]:
        """Return DLPack's name of the CPU."""
        return CPU

    def __repr__(self) -> str:
        return repr(self._tensor)


_new = Tensor.__new__


def wrap_tensor(tensor: types.Tensor) -> Tensor:
    """Return ``tensor`` as models see it."""
    made = _new(Tensor)
    made._tensor = tensor  # noqa: SLF001 (half of the constructor)
    return made


def _check_name(name: Any) -> str:
    text = to_text("Tensor: name", name)
    if not text:
        raise TritonModelException("Tensor name cannot be an empty string.")
    return text


def _adapt(name: Any, array: Any) -> types.Tensor:
    """Do what the constructor does, for everything but contiguous plain arrays of a fixed-size type."""
    name = _check_name(name)
    if not isinstance(array, np.ndarray):
        raise TypeError(f"Tensor '{name}': numpy_array must be a numpy.ndarray, found {type(array).__name__}")
    array = np.asarray(array)  # subclasses, such as matrices, become plain views
    dtype = array.dtype
    if dtype.kind in "OS":
        elements: Array = np.empty(array.size, dtype=np.object_)
        elements[:] = as_bytes_elements(array)
        return types.Tensor(name, "BYTES", array.shape, elements.reshape(array.shape))
    datatype = DATATYPES_BY_DTYPE.get(dtype.newbyteorder("="))
    if datatype is None:
        raise TritonModelException(_unsupported(name, dtype))
    return types.Tensor(
        name, datatype, array.shape, array.astype(dtype.newbyteorder("="), order="C", copy=False)
    )


def _unsupported(name: str, dtype: np.dtype[Any]) -> str:
    text = (
        f"NumPy dtype is not supported. Tensor '{name}' has dtype '{dtype}'; expected bool, int8 to int64, uint8 to "
        f"uint64, float16 to float64, or bytes ('S' or object)"
    )
    if dtype.kind == "U":
        return f"{text}. Text becomes bytes with array.astype(object)"
    if dtype.name == "bfloat16":
        return f"{text}. bfloat16 tensors are made with Tensor.from_dlpack"
    return text
