"""Between arrays of the server and tensors of torch: the same memory wherever that is possible.

===========================  =====================================================================================
in                           a tensor on the array's own memory, read-only or strided as it may be (0.6 µs); only
                             negative strides, which torch has not, cost a copy
out                          an array on the tensor's memory (1 µs), if nobody else has a hold on that: an input that
                             is returned as it came, a parameter or a state are copied
BF16                         uint16 bits, by ``view``
strings                      lists of ``str``
===========================  =====================================================================================
"""

from __future__ import annotations

from collections.abc import Callable
from types import MappingProxyType
from typing import Any, Final

import numpy as np

from bireme.backends.pytorch.interface import SCALARS, TEXTS
from bireme.backends.pytorch.runtime import torch
from bireme.types import Array, BackendFailed, InvalidArgument

DTYPES: Final = MappingProxyType(
    {
        "BOOL": torch.bool,
        "UINT8": torch.uint8,
        "UINT16": torch.uint16,
        "UINT32": torch.uint32,
        "UINT64": torch.uint64,
        "INT8": torch.int8,
        "INT16": torch.int16,
        "INT32": torch.int32,
        "INT64": torch.int64,
        "FP16": torch.float16,
        "FP32": torch.float32,
        "FP64": torch.float64,
        "BF16": torch.bfloat16,
    }
)
"""torch's name of every data type of the protocol but BYTES."""
DATATYPES: Final = MappingProxyType({dtype: name for name, dtype in DTYPES.items()})

_from_numpy: Final = torch.from_numpy
_num_storage_holders: Final = torch._C._storage_Use_Count  # noqa: SLF001 - nothing public tells it
_ALONE: Final = 2
"""Holders of a storage that only one tensor has: that one, and the object that asks."""

ToArgument = Callable[[Array], Any]


def to_tensor(array: Array) -> Any:
    """Return a tensor on the memory of ``array``, which must outlive it."""
    try:
        return _from_numpy(array)
    except ValueError:  # negative strides
        return _from_numpy(np.ascontiguousarray(array).reshape(array.shape))


def to_bf16_tensor(array: Array) -> Any:
    """Return a bfloat16 tensor on the memory of ``array``, whose uint16 elements are the bits."""
    return to_tensor(array).view(torch.bfloat16)


def make_reader(name: str, datatype: str, argument_type: str) -> ToArgument:
    """Return the function that makes an argument of type ``argument_type`` of an array of ``datatype``."""
    if datatype == "BYTES":
        return _text_reader(name, is_list=argument_type != "str")
    if argument_type in SCALARS:
        return _scalar_reader(name, argument_type)
    return to_bf16_tensor if datatype == "BF16" else to_tensor


def _text_reader(name: str, *, is_list: bool) -> ToArgument:
    def read(array: Array) -> Any:
        elements = array.reshape(-1).tolist()
        try:
            texts = [element.decode() if isinstance(element, bytes) else element for element in elements]
        except UnicodeDecodeError as error:
            raise InvalidArgument(
                f"input '{name}': an element is not UTF-8 text ({error.reason}: {error.object!r:.80}); PyTorch takes "
                f"strings as text only"
            ) from error
        return texts if is_list else _only(name, texts)

    return read


def _scalar_reader(name: str, argument_type: str) -> ToArgument:
    convert: Callable[[Any], Any] = {"int": int, "float": float, "bool": bool}.get(
        argument_type, lambda value: value
    )

    def read(array: Array) -> Any:
        return convert(_only(name, array.reshape(-1).tolist()))

    return read


def _only(name: str, values: list[Any]) -> Any:
    """Return the one value of an argument that takes one; those of a batch have to be the same."""
    if not values or any(value != values[0] for value in values):
        raise InvalidArgument(
            f"input '{name}': forward() takes one value there, found {len(values)} that are not the same: {values[:8]}"
        )
    return values[0]


def take(value: Any) -> Any:
    """Return another tensor on the same memory as one of the results; anything else as it is.

    When the results are gone, the memory is held by this tensor alone, if the model does not keep it for itself.
    """
    return value.detach() if isinstance(value, torch.Tensor) else value


class OutputReader:
    """Makes an array of one of the results, as the config describes that."""

    __slots__ = ("_dtype", "_name", "_num_dims")

    def __init__(self, name: str, datatype: str, num_dims: int) -> None:
        """``num_dims``: what a scalar has in the config, where it has no batch dimension."""
        self._name = name
        self._dtype = DTYPES.get(datatype)
        self._num_dims = num_dims

    def __call__(self, value: Any, target: memoryview | None = None) -> Array:
        """Return an array that the caller owns: the tensor's memory, or a copy if that has other holders.

        ``value`` is what `take` made of a result; the results themselves are let go of before. With a ``target`` that is large enough the array is a view of that.

        Raises:
            BackendFailed: it is something else than the config says.
        """
        if not isinstance(value, torch.Tensor):
            return self._from_object(value)
        if value.dtype is not self._dtype:
            raise self._fault(f"a tensor of {value.dtype}")
        if target is not None and 0 < value.nbytes <= len(target):
            return self._to_target(value, target)
        if not value.is_cpu:
            value = value.cpu()
        if not value.is_contiguous():
            value = value.contiguous()
        if _num_storage_holders(value.untyped_storage()._cdata) > _ALONE:  # noqa: SLF001
            value = value.clone()
        return self._shaped(_to_array(value))

    def _to_target(self, value: Any, target: memoryview) -> Array:
        """Copy to the caller's memory, from any device and any strides at once."""
        flat = torch.frombuffer(target, dtype=torch.uint8, count=value.nbytes)
        place = flat.view(value.dtype).view(value.shape)
        place.copy_(value)
        return self._shaped(_to_array(place))

    def _shaped(self, array: Array) -> Array:
        return array if array.ndim else array.reshape((1,) * self._num_dims)

    def _from_object(self, value: Any) -> Array:
        if self._dtype is None and isinstance(value, (list, tuple, str)):
            elements = [value] if isinstance(value, str) else value
            if all(isinstance(element, (str, bytes)) for element in elements):
                texts: Array = np.empty(len(elements), np.object_)
                texts[:] = elements
                return texts
        if self._dtype is not None and isinstance(value, (bool, int, float)):
            return self._shaped(_to_array(torch.tensor(value, dtype=self._dtype)))
        raise self._fault(
            f"a {type(value).__name__}" + (f" of length {len(value)}" if hasattr(value, "__len__") else "")
        )

    def _fault(self, found: str) -> BackendFailed:
        expected = TEXTS if self._dtype is None else f"a tensor of {self._dtype}"
        return BackendFailed(
            f"output '{self._name}': the config wants {expected}, but forward() returned {found}"
        )


def _to_array(tensor: Any) -> Array:
    if tensor.dtype is torch.bfloat16:
        tensor = tensor.view(torch.uint16)
    array: Array = tensor.numpy()
    return array
