"""Data types of the KServe v2 protocol: names, numpy dtypes and sizes.

The protocol name (``"FP32"``) is the one representation used inside Bireme; the config file's name
(``"TYPE_FP32"``) is converted once, at load. BF16 has no numpy dtype: its arrays hold the raw 16 bits as
``uint16``. BYTES arrays are ``object`` arrays of ``bytes``.

Source: KServe v2 "Tensor Data Types"; Triton ``model_config.proto`` (``DataType``).
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Any, Final

import numpy as np
import numpy.typing as npt

NUMPY_DTYPES: Final = MappingProxyType(
    {
        "BOOL": np.dtype(np.bool_),
        "UINT8": np.dtype(np.uint8),
        "UINT16": np.dtype("<u2"),
        "UINT32": np.dtype("<u4"),
        "UINT64": np.dtype("<u8"),
        "INT8": np.dtype(np.int8),
        "INT16": np.dtype("<i2"),
        "INT32": np.dtype("<i4"),
        "INT64": np.dtype("<i8"),
        "FP16": np.dtype("<f2"),
        "FP32": np.dtype("<f4"),
        "FP64": np.dtype("<f8"),
        "BF16": np.dtype("<u2"),
        "BYTES": np.dtype(np.object_),
    }
)
"""numpy dtype of every data type, by protocol name (little-endian, as on the wire)."""

ITEM_SIZES: Final = MappingProxyType(
    {name: dtype.itemsize for name, dtype in NUMPY_DTYPES.items() if name != "BYTES"}
)
"""Bytes per element of every fixed-size data type, by protocol name; BYTES is absent."""

_BY_NUMPY: Final = {dtype: name for name, dtype in NUMPY_DTYPES.items() if name not in ("BF16", "BYTES")}


def from_config_name(config_name: str) -> str:
    """Return the protocol name of a config name: ``TYPE_FP32`` → ``FP32``, ``TYPE_STRING`` → ``BYTES``.

    Raises:
        KeyError: the name is not a known, valid data type.
    """
    name = "BYTES" if config_name == "TYPE_STRING" else config_name.removeprefix("TYPE_")
    if name not in NUMPY_DTYPES:
        raise KeyError(config_name)
    return name


def to_config_name(name: str) -> str:
    """Return the config name of a protocol name: ``FP32`` → ``TYPE_FP32``, ``BYTES`` → ``TYPE_STRING``."""
    return "TYPE_STRING" if name == "BYTES" else f"TYPE_{name}"


def from_numpy(dtype: npt.DTypeLike) -> str:
    """Return the protocol name that holds values of ``dtype``; text and object dtypes are BYTES.

    Raises:
        KeyError: no data type holds such values (complex numbers, dates, …).
    """
    found: np.dtype[Any] = np.dtype(dtype)
    if found.kind in "OSU":
        return "BYTES"
    if found.name == "bfloat16":  # ml_dtypes
        return "BF16"
    return _BY_NUMPY[found.newbyteorder("<")]
