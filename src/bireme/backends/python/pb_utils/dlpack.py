"""DLPack in both directions, without a framework: capsules are read and made through their C structures.

numpy alone would not do: it knows no bfloat16, takes no bare capsules and does not export read-only arrays in the form
that every framework takes.

Source: DLPack's ``dlpack.h`` (``DLManagedTensor``, ``DLManagedTensorVersioned``) and its Python specification.
"""

from __future__ import annotations

import ctypes
import struct
from functools import cache
from math import prod
from typing import Any, Final

import numpy as np

from bireme.backends.python.pb_utils.errors import TritonModelException
from bireme.types import Array, Tensor, datatypes

CPU: Final = (1, 0)
"""The DLPack device of every tensor here."""

_HOST_DEVICES: Final = {1, 3}  # kDLCPU, kDLCUDAHost
_CUDA_DEVICES: Final = {2, 13}  # kDLCUDA, kDLCUDAManaged
_BFLOAT: Final = 4
_DATATYPES: Final = {
    **{(0, bits): f"INT{bits}" for bits in (8, 16, 32, 64)},
    **{(1, bits): f"UINT{bits}" for bits in (8, 16, 32, 64)},
    **{(2, bits): f"FP{bits}" for bits in (16, 32, 64)},
    (_BFLOAT, 16): "BF16",
    (6, 8): "BOOL",
}
"""Protocol name by DLPack's type code and bits."""

_CODE_OFFSET: Final = 20
"""Where the type code is in a ``DLTensor``."""
_MANAGED: Final = struct.Struct("=QiiiBBHQQQQQ")
"""``DLManagedTensor``: data, device type, device id, ndim, type code, bits, lanes, shape, strides, byte offset, context,
deleter.
"""
_VERSIONED: Final = struct.Struct("=QQQQQiiiBBHQQQ")
"""``DLManagedTensorVersioned``: version, context, deleter and flags, then as above up to the byte offset."""
_IS_READ_ONLY: Final = 1

# Prototypes of our own: those of ctypes.pythonapi are shared with everybody in the process.
_get_name = ctypes.PYFUNCTYPE(ctypes.c_char_p, ctypes.py_object)(("PyCapsule_GetName", ctypes.pythonapi))
_get_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)
_set_name = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_void_p)(
    ("PyCapsule_SetName", ctypes.pythonapi)
)
_keep_forever = ctypes.PYFUNCTYPE(None, ctypes.py_object)(("Py_IncRef", ctypes.pythonapi))
_Deleter = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)

_Capsule: Final = type(np.empty(1).__dlpack__())
_USED_NAMES: Final = {
    name: ctypes.create_string_buffer(b"used_" + name) for name in (b"dltensor", b"dltensor_versioned")
}
for _name in _USED_NAMES.values():
    _keep_forever(_name)  # a capsule may outlive this module when the interpreter ends


@cache
def _find_deleter(address: int) -> Any:
    return _Deleter(address)  # few: each framework has its own one or two


class _Memory:
    """Memory that an array may be laid over; keeps ``owner`` alive."""

    __slots__ = ("__array_interface__", "owner")

    def __init__(self, interface: dict[str, Any], owner: Any) -> None:
        self.__array_interface__ = interface
        self.owner = owner


class _Lease:
    """A tensor that an exporter has handed over: given back when this is dropped."""

    __slots__ = ("_deleter", "_pointer")

    def __init__(self, deleter: int, pointer: int) -> None:
        self._deleter = deleter
        self._pointer = pointer

    def __del__(self, _find: Any = _find_deleter) -> None:
        if self._deleter:
            _find(self._deleter)(self._pointer)


def export_tensor(tensor: Tensor) -> Any:
    """Return a capsule over the memory of ``tensor``; no copy.

    DLPack cannot say in this form that memory is read-only, so that of inputs that others read too is exported all the
    same: the taker must not write to it.

    Raises:
        TritonModelException: the tensor is BYTES.
    """
    if tensor.datatype == "BYTES":
        raise TritonModelException("DLPack does not have support for string tensors.")
    array = tensor.to_numpy()
    if not array.flags.writeable:
        interface = dict(array.__array_interface__)
        interface["data"] = (interface["data"][0], False)
        array = np.asarray(_Memory(interface, array))
    capsule = array.__dlpack__()
    if tensor.datatype == "BF16":
        code_at = _get_pointer(capsule, b"dltensor") + _CODE_OFFSET
        ctypes.c_uint8.from_address(code_at).value = _BFLOAT
    return capsule


def import_tensor(name: str, source: Any) -> Tensor:
    """Return a tensor over the memory of a capsule or of any object that exports one; no copy from the CPU's memory.

    A capsule is used up. Tensors of a GPU are copied to the CPU if the object itself can do that. Measured: 7 µs.

    Raises:
        TritonModelException: the object exports nothing, or what it exports is not C-contiguous, of an unknown type, of
            several lanes, or on another device.
    """
    capsule = source if type(source) is _Capsule else _ask_for_capsule(source)
    label = _get_name(capsule)
    flags = 0
    if label == b"dltensor":
        pointer = _get_pointer(capsule, label)
        *fields, _, deleter = _MANAGED.unpack(ctypes.string_at(pointer, _MANAGED.size))
    elif label == b"dltensor_versioned":
        pointer = _get_pointer(capsule, label)
        _, _, deleter, flags, *fields = _VERSIONED.unpack(ctypes.string_at(pointer, _VERSIONED.size))
    else:
        raise TritonModelException(
            f"Provided capsule holds no DLPack tensor, or one that was taken already: its name is {label!r}, "
            f"expected 'dltensor' or 'dltensor_versioned'."
        )
    data, device, _, ndim, code, bits, lanes, shape_at, strides_at, offset = fields
    datatype = _check_type(code, bits, lanes)
    _check_device(device)
    shape = _read_int64s(shape_at, ndim)
    if not prod(shape):
        return Tensor(name, datatype, shape, np.empty(shape, datatypes.NUMPY_DTYPES[datatype]))
    if strides_at:
        _check_contiguous(shape, _read_int64s(strides_at, ndim))
    lease = _Lease(deleter, pointer)
    _set_name(capsule, ctypes.addressof(_USED_NAMES[label]))
    interface = {
        "version": 3,
        "shape": shape,
        "typestr": datatypes.NUMPY_DTYPES[datatype].str,
        "data": (data + offset, bool(flags & _IS_READ_ONLY)),
    }
    array: Array = np.asarray(_Memory(interface, lease))
    return Tensor(name, datatype, shape, array)


def _ask_for_capsule(source: Any) -> Any:
    if not hasattr(source, "__dlpack__") or not hasattr(source, "__dlpack_device__"):
        raise TritonModelException(
            f"Provided tensor is not supported. Tensor must be a DLPack capsule or have `__dlpack__` and "
            f"`__dlpack_device__` attributes, found {type(source)}"
        )
    device, _ = source.__dlpack_device__()
    if device in _CUDA_DEVICES:
        return _copy_to_host(source)
    _check_device(device)
    try:
        return source.__dlpack__(stream=None)
    except BufferError:  # read-only memory, which only the newer form can express
        return source.__dlpack__(stream=None, max_version=(1, 0))


def _copy_to_host(source: Any) -> Any:
    """Return a capsule over a copy on the CPU: all tensors travel in its memory."""
    if callable(getattr(source, "cpu", None)):  # torch
        return source.cpu().__dlpack__(stream=None)
    try:
        return source.__dlpack__(stream=None, max_version=(1, 0), dl_device=CPU)
    except (BufferError, TypeError, NotImplementedError) as error:
        raise TritonModelException(
            f"Provided tensor is on a GPU and {type(source)} cannot copy it to the CPU: {error}. Copy it there first."
        ) from error


def _check_type(code: int, bits: int, lanes: int) -> str:
    if code == _BFLOAT and bits != 16:
        raise TritonModelException(f"Expected BF16 tensor to have 16 bits, but had: {bits}")
    datatype = _DATATYPES.get((code, bits))
    if datatype is None or lanes != 1:
        raise TritonModelException(
            f"DLPack tensor has a type that no data type holds: code {code}, {bits} bits, {lanes} lanes."
        )
    return datatype


def _check_device(device: int) -> None:
    if device in _CUDA_DEVICES:
        raise TritonModelException(
            "DLPack capsule holds a tensor on a GPU; tensors travel in the memory of the CPU, so copy it there first."
        )
    if device not in _HOST_DEVICES:
        raise TritonModelException(f"DLDevice type {device} is not support by Python backend.")


def _check_contiguous(shape: tuple[int, ...], strides: tuple[int, ...]) -> None:
    expected = 1
    for size, stride in zip(reversed(shape), reversed(strides), strict=True):
        if size != 1 and stride != expected:
            raise TritonModelException(
                "DLPack tensor is not contiguous. Only contiguous DLPack tensors that are stored in C-Order are "
                "supported."
            )
        expected *= size


def _read_int64s(address: int, count: int) -> tuple[int, ...]:
    return struct.unpack(f"={count}q", ctypes.string_at(address, 8 * count))
