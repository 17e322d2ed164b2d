"""Tensors in and out: arrays become OpenVINO's tensors without a copy, and its tensors become arrays that callers own."""

from __future__ import annotations

import ctypes
from typing import Any, Final

import numpy as np

from bireme.backends.openvino.runtime import ov
from bireme.types import Array

_BF16: Final = ov.Type.bf16
_STRING: Final = ov.Type.string


def borrow(array: Array) -> Any:
    """Return a tensor over the memory of ``array``, which must outlive the run: the tensor does not hold it.

    A request keeps its tensors until it gets others; those that held their arrays would keep the memory of the last batch
    from whoever lent it. Nor does OpenVINO take read-only arrays. Strided arrays are the caller's to copy.
    """
    return ov.Tensor(_alias(array), shared_memory=True)


def borrow_bf16(array: Array) -> Any:
    """As `borrow`, for an array of uint16 bits."""
    return ov.Tensor(_alias(array), list(array.shape), _BF16)


def over(array: Array, datatype: str) -> Any:
    """Return a tensor over the memory of ``array``, to be written to; holds it."""
    if datatype == "BF16":
        return ov.Tensor(array, list(array.shape), _BF16)
    return ov.Tensor(array, shared_memory=True)


def _alias(array: Array) -> Array:
    memory: Any = (ctypes.c_char * array.nbytes).from_address(array.ctypes.data)
    return np.ndarray(array.shape, array.dtype, memory)


def from_bytes(array: Array) -> Any:
    """Return a tensor of strings with a copy of the elements of an object array of bytes."""
    elements = array.reshape(-1).tolist()
    if not elements:
        return ov.Tensor(_STRING, list(array.shape))
    tensor = ov.Tensor(elements)
    tensor.shape = list(array.shape)
    return tensor


def to_bytes(tensor: Any) -> Array:
    """Return an object array of bytes with a copy of a tensor of strings.

    OpenVINO hands strings out as fixed-width items, filled up with NULs: those at the end of a string are lost.
    """
    if not tensor.size:
        return np.empty(tuple(tensor.shape), np.object_)
    elements: Array = tensor.bytes_data
    return elements.astype(np.object_)


def contiguous(array: Array) -> Array:
    """Return the array itself, or a copy if it is strided."""
    return array if array.flags.c_contiguous else np.ascontiguousarray(array)
