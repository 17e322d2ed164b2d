"""Data files of a model's directory: values of warm-up inputs and of initial states. Blocking.

A data file is, by its name:

- ``*.npy``: a numpy array;
- ``*.json``: a JSON list, flat or nested, of numbers, booleans or (for TYPE_STRING) texts;
- ``*.txt`` for TYPE_STRING: UTF-8 text, one element per line (unless it is in the raw form);
- anything else: the raw elements, little-endian, row-major and tightly packed. A TYPE_STRING element is its length
  in **bytes** as a 4-byte little-endian integer and then the bytes ("é" has length 2). TYPE_BF16 is the upper half of an
  FP32.

The file may hold more elements than are needed, not fewer.

Source: Triton ``TritonModelInstance::GenerateWarmupData`` and ``SequenceBatchScheduler::GenerateInitialStateData`` for the
raw form; the others are an extension.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from bireme.types import Array, InvalidArgument, Tensor, datatypes
from bireme.wire import bfloat16


def zeros(datatype: str, num_elements: int) -> Array:
    """Return zeros, flat; for BYTES, empty strings."""
    if datatype == "BYTES":
        return np.full(num_elements, b"", dtype=np.object_)
    return np.zeros(num_elements, dtype=datatypes.NUMPY_DTYPES[datatype])


def read_elements(
    what: str, setting: str, datatype: str, num_elements: int, folder: Path, filename: str
) -> Array:
    """Return the first ``num_elements`` of a file as a flat array; ``folder`` is one of the model's directory.

    ``what`` names the tensor in errors, ``setting`` the part of the config that asks for the file.

    Raises:
        InvalidArgument: the file is missing, elsewhere, too short or of another kind; tells what it is and what is expected.
    """
    path = folder / filename
    if not path.resolve().is_relative_to(folder.parent.resolve()):
        raise InvalidArgument(f"{what}: data file '{filename}' is outside the model's directory")
    label = f"{what}: data file '{path}'"
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InvalidArgument(
            f"{label} cannot be read: {error.strerror}; the folder holds {_listing(folder)}"
        ) from None
    found = _decode(label, datatype, num_elements, path.suffix.lower(), content)
    if len(found) < num_elements:
        raise InvalidArgument(
            f"{label}: {setting} setting expects {num_elements} {datatype} elements, but the file only has {len(found)}"
        )
    return found[:num_elements]


def _decode(label: str, datatype: str, num_elements: int, suffix: str, content: bytes) -> Array:
    """Return the file's elements, at most ``num_elements`` where that saves work, as a flat array."""
    match suffix:
        case ".npy":
            return _decode_npy(label, datatype, content)
        case ".json":
            return _decode_json(label, datatype, content)
        case ".txt" if datatype == "BYTES" and not _is_framed(content):
            return _objects(content.splitlines())
    if datatype == "BYTES":
        return _decode_raw_bytes(label, num_elements, content)
    dtype = datatypes.NUMPY_DTYPES[datatype]
    return np.frombuffer(content, dtype, count=len(content) // dtype.itemsize)


def _decode_npy(label: str, datatype: str, content: bytes) -> Array:
    from io import BytesIO

    try:
        array: Array = np.load(BytesIO(content), allow_pickle=False)
    except ValueError as error:
        raise InvalidArgument(f"{label} is not a numpy array: {error}") from None
    return _converted(label, datatype, array.reshape(-1))


def _decode_json(label: str, datatype: str, content: bytes) -> Array:
    try:
        value: Any = json.loads(content)
    except ValueError as error:
        raise InvalidArgument(f"{label} is not JSON: {error}") from None
    elements = list(_flattened(value))
    expected = str if datatype == "BYTES" else int | float
    for element in elements:
        if not isinstance(element, expected):
            raise InvalidArgument(
                f"{label}: expected {'texts' if datatype == 'BYTES' else 'numbers'}, found {element!r}"
            )
    if datatype == "BYTES":
        return _objects([element.encode() for element in elements])
    return _converted(label, datatype, np.array(elements))


def _converted(label: str, datatype: str, array: Array) -> Array:
    """Return ``array`` as ``datatype``, if every value keeps its meaning."""
    if datatype == "BYTES":
        if array.dtype.kind not in "SU":
            raise InvalidArgument(f"{label}: expected texts, found {array.dtype}")
        return Tensor.from_numpy("", array).to_numpy()
    if datatype == "BF16" and array.dtype.kind == "f":
        return bfloat16.from_float64(array.astype(np.float64))
    dtype = datatypes.NUMPY_DTYPES[datatype]
    if array.dtype.kind not in "biuf":
        raise InvalidArgument(f"{label}: expected {datatype} values, found {array.dtype}")
    with np.errstate(invalid="ignore", over="ignore"):
        converted = array.astype(dtype)
    if dtype.kind != "f" and not np.array_equal(converted, array):
        wrong = array[converted != array][0]
        raise InvalidArgument(f"{label}: value {wrong} is not a {datatype}")
    return converted


def _is_framed(content: bytes) -> bool:
    """Whether this begins with a length that fits. Four characters of text make a length above half a gigabyte."""
    return int.from_bytes(content[:4], "little") <= len(content) - 4


def _decode_raw_bytes(label: str, num_elements: int, content: bytes) -> Array:
    elements: list[bytes] = []
    offset = 0
    while len(elements) < num_elements and offset < len(content):
        start = offset + 4
        end = start + int.from_bytes(content[offset:start], "little")
        if end > len(content):
            raise InvalidArgument(
                f"{label}: element {len(elements)} at byte {offset} announces {end - start} bytes, but only "
                f"{max(len(content) - start, 0)} follow; each element is its length in bytes as a 4-byte little-endian "
                f"integer and then the bytes (plain text goes in a .txt file, one element per line, or in a .json file)"
            )
        elements.append(content[start:end])
        offset = end
    return _objects(elements)


def _objects(elements: list[bytes]) -> Array:
    array = np.empty(len(elements), dtype=np.object_)
    array[:] = elements
    return array


def _flattened(value: Any) -> list[Any]:
    if not isinstance(value, list):
        return [value]
    return [element for part in value for element in _flattened(part)]


def _listing(folder: Path) -> str:
    names = sorted(entry.name for entry in folder.iterdir()) if folder.is_dir() else []
    return ", ".join(f"'{name}'" for name in names) or f"nothing ('{folder}')"
