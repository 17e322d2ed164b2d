"""Data types by their Triton numbers and config names, constants of the server's API, and the wire form of BYTES."""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import Any, Final

import numpy as np

from bireme.types import Array, datatypes, encode_bytes

TRITONSERVER_REQUEST_FLAG_SEQUENCE_START: Final = 1
TRITONSERVER_REQUEST_FLAG_SEQUENCE_END: Final = 2
TRITONSERVER_RESPONSE_COMPLETE_FINAL: Final = 1
TRITONSERVER_REQUEST_RELEASE_ALL: Final = 1
TRITONSERVER_REQUEST_RELEASE_RESCHEDULE: Final = 2

TRITON_STRING_TO_NUMPY: Final[dict[str, Any]] = {
    "TYPE_BOOL": bool,
    "TYPE_UINT8": np.uint8,
    "TYPE_UINT16": np.uint16,
    "TYPE_UINT32": np.uint32,
    "TYPE_UINT64": np.uint64,
    "TYPE_INT8": np.int8,
    "TYPE_INT16": np.int16,
    "TYPE_INT32": np.int32,
    "TYPE_INT64": np.int64,
    "TYPE_FP16": np.float16,
    "TYPE_FP32": np.float32,
    "TYPE_FP64": np.float64,
    "TYPE_STRING": np.object_,
}
"""numpy's type of every data type, by its name in config files. BF16 has none."""

DATATYPE_NUMBERS: Final = {
    name: number
    for number, name in enumerate(
        [
            "BOOL",
            "UINT8",
            "UINT16",
            "UINT32",
            "UINT64",
            "INT8",
            "INT16",
            "INT32",
            "INT64",
            "FP16",
            "FP32",
            "FP64",
            "BYTES",
            "BF16",
        ],
        start=1,
    )
}
"""Triton's number of every data type, by protocol name."""

DATATYPES_BY_DTYPE: Final = {
    dtype: name for name, dtype in datatypes.NUMPY_DTYPES.items() if name not in {"BF16", "BYTES"}
}
"""Protocol name of every numpy dtype that models may use as it is."""

_NUMPY_BY_NUMBER: Final[dict[int, Any]] = {
    number: np.bool_ if name == "BOOL" else TRITON_STRING_TO_NUMPY[datatypes.to_config_name(name)]
    for name, number in DATATYPE_NUMBERS.items()
    if name != "BF16"
}
_LENGTH: Final = struct.Struct("<I")


class MemoryType(IntEnum):
    """Where a model would like a tensor to be."""

    TRITONSERVER_MEMORY_GPU = 0
    TRITONSERVER_MEMORY_CPU = 1


TRITONSERVER_MEMORY_GPU: Final = MemoryType.TRITONSERVER_MEMORY_GPU
TRITONSERVER_MEMORY_CPU: Final = MemoryType.TRITONSERVER_MEMORY_CPU


def triton_to_numpy_type(data_type: int) -> Any:
    """Return numpy's type of the data type of that number; None when it has none."""
    return _NUMPY_BY_NUMBER.get(data_type)


def numpy_to_triton_type(data_type: Any) -> int | None:
    """Return the number of the data type that holds values of a numpy type or dtype; None when there is none."""
    try:
        dtype = np.dtype(data_type)
    except TypeError:
        return None
    if dtype.kind in "OS":
        return DATATYPE_NUMBERS["BYTES"]
    name = DATATYPES_BY_DTYPE.get(dtype)
    return None if name is None else DATATYPE_NUMBERS[name]


def triton_string_to_numpy(triton_type_string: str) -> Any:
    """Return numpy's type of a config file's data type.

    Raises:
        KeyError: numpy has none (``TYPE_BF16``), or there is no such data type.
    """
    return TRITON_STRING_TO_NUMPY[triton_type_string]


def as_bytes_elements(array: Array) -> list[bytes]:
    """Return the elements of an object or ``S`` array in row-major order; what is not bytes becomes UTF-8 text."""
    return [
        element if isinstance(element, bytes) else str(element).encode()
        for element in array.reshape(-1).tolist()
    ]


def serialize_byte_tensor(input_tensor: Array) -> bytes | tuple[()] | None:
    """Return the elements of an object or ``S`` array, each as a little-endian uint32 length and its bytes.

    An empty array gives ``()``, one of another dtype None.
    """
    if not input_tensor.size:
        return ()
    if input_tensor.dtype.kind not in "OS":
        return None
    return encode_bytes(as_bytes_elements(input_tensor))


def deserialize_bytes_tensor(encoded_tensor: bytes) -> Array:
    """Return the elements of what `serialize_byte_tensor` made, as object array ``[n]`` of bytes.

    Raises:
        struct.error: a length or an element is cut off.
    """
    elements: list[bytes] = []
    offset, size = 0, len(encoded_tensor)
    while offset < size:
        (length,) = _LENGTH.unpack_from(encoded_tensor, offset)
        start, offset = offset + 4, offset + 4 + length
        if offset > size:
            raise struct.error(
                f"element {len(elements)} at offset {start - 4} announces {length} bytes, "
                f"but only {size - start} follow"
            )
        elements.append(bytes(encoded_tensor[start:offset]))
    array = np.empty(len(elements), dtype=np.object_)
    array[:] = elements
    return array
