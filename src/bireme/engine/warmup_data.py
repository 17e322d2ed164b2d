"""The tensors of a warm-up sample: zeros, random values, or a file in the model's ``warmup`` folder.

A data file is, by its name:

- ``*.npy``: a numpy array;
- ``*.json``: a JSON list, flat or nested, of numbers, booleans or (for TYPE_STRING) texts;
- ``*.txt`` for TYPE_STRING: UTF-8 text, one element per line (unless it is in the raw form);
- anything else: the raw elements, little-endian, row-major and tightly packed. A TYPE_STRING element is its length
  in **bytes** as a 4-byte little-endian integer and then the bytes ("é" has length 2). TYPE_BF16 is the upper half of an
  FP32.

The file holds the elements of one batch item; it may hold more than the sample needs, not fewer.

Source: Triton ``TritonModelInstance::GenerateWarmupData`` for the raw form; the others are an extension.
"""

from __future__ import annotations

import json
from math import prod
from pathlib import Path
from typing import Any, Final

import numpy as np

from bireme.config.model_config import WarmupInput
from bireme.types import Array, InvalidArgument, Tensor, datatypes
from bireme.wire import bfloat16

WARMUP_FOLDER: Final = "warmup"
"""Name of the folder, beside config.pbtxt, that holds the data files."""

# Every load warms up with the same values, so that a failure can be repeated.
_SEED: Final = 0


def make_warmup_tensor(
    name: str, spec: WarmupInput, model_dir: Path, leading: tuple[int, ...], *, item: int = 0
) -> Tensor:
    """Return the tensor of input ``name``, of shape ``[*leading, *dims]``; random values differ between ``item``s.

    Raises:
        InvalidArgument: the sample's input or its data file is wrong; names it, what was expected and found.
    """
    datatype, dims = _checked(name, spec)
    num_elements = prod(dims)
    if spec.input_data_file is not None:
        array = _read(name, datatype, num_elements, model_dir / WARMUP_FOLDER, spec.input_data_file)
    elif spec.random_data:
        array = _random(datatype, num_elements, item)
    else:
        array = _zeros(datatype, num_elements)
    shape = leading + dims
    return Tensor(name, datatype, shape, array.reshape(shape))


def _checked(name: str, spec: WarmupInput) -> tuple[str, tuple[int, ...]]:
    """Return the protocol data type and dims of ``spec``, or say what is wrong with it."""
    try:
        datatype = datatypes.from_config_name(spec.data_type)
    except KeyError:
        raise InvalidArgument(f"input '{name}': data_type {spec.data_type} is not a data type") from None
    if any(dim < 0 for dim in spec.dims):
        raise InvalidArgument(
            f"warmup setting expects all variable-size dimensions are specified for input '{name}', found dims "
            f"{list(spec.dims)}"
        )
    if not (spec.zero_data or spec.random_data or spec.input_data_file is not None):
        raise InvalidArgument(
            f"warmup setting expects input '{name}' to have input_data_type set: one of zero_data, random_data and "
            f"input_data_file"
        )
    return datatype, tuple(spec.dims)


def _zeros(datatype: str, num_elements: int) -> Array:
    """Return zeros; for BYTES, empty strings."""
    if datatype == "BYTES":
        return np.full(num_elements, b"", dtype=np.object_)
    return np.zeros(num_elements, dtype=datatypes.NUMPY_DTYPES[datatype])


def _random(datatype: str, num_elements: int, item: int) -> Array:
    """Return values that any model takes: floats in [0, 1), integers and booleans 0 or 1, BYTES empty as in Triton.

    Triton fills in random bytes; those are NaN for floats, and an index out of range for an embedding.
    """
    if datatype == "BYTES":
        return _zeros(datatype, num_elements)
    generator = np.random.default_rng((_SEED, item))
    dtype = datatypes.NUMPY_DTYPES[datatype]
    if datatype == "BF16":
        return bfloat16.from_float64(generator.random(num_elements))
    if dtype.kind == "f":
        return generator.random(num_elements).astype(dtype)
    return generator.integers(0, 2, num_elements).astype(dtype)


def _read(name: str, datatype: str, num_elements: int, folder: Path, filename: str) -> Array:
    path = folder / filename
    if not path.resolve().is_relative_to(folder.parent.resolve()):
        raise InvalidArgument(f"input '{name}': data file '{filename}' is outside the model's directory")
    label = f"input '{name}': data file '{path}'"
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InvalidArgument(
            f"{label} cannot be read: {error.strerror}; the folder holds {_listing(folder)}"
        ) from None
    found = _decode(label, datatype, num_elements, path.suffix.lower(), content)
    if len(found) < num_elements:
        raise InvalidArgument(
            f"{label}: warmup setting expects {num_elements} {datatype} elements, but the file only has {len(found)}"
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
