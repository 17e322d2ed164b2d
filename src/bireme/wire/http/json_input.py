"""A tensor's JSON ``data`` → array: what JSON values a data type takes, and how they are stored.

``data`` may be flat or nested in any way, ragged too; only the number of elements counts. Integers are truncated to the
type's width without complaint, numbers go to the nearest float. Unlike Triton, we take FP16 and BF16 as numbers too;
what is too large becomes infinity (1e9 does in FP16, not in BF16).

Source: Triton ``http_server.cc`` (``ReadDataFromJson``), ``triton_json.h`` (the strict getters).
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from math import prod
from typing import Any, NamedTuple

import numpy as np

from bireme.types import Array, InvalidArgument, Tensor, datatypes
from bireme.wire import bfloat16
from bireme.wire.http.json_text import describe
from bireme.wire.http.limits import Limits
from bireme.wire.shapes import INT64_MAX, format_shape


class _Rule(NamedTuple):
    accepted: frozenset[type]
    expected: str


_INTEGER = _Rule(frozenset({int}), "an integer")
_NUMBER = _Rule(frozenset({int, float}), "a number")
_RULES = dict.fromkeys(datatypes.NUMPY_DTYPES, _INTEGER) | {
    "BOOL": _Rule(frozenset({bool}), "true or false"),
    "FP16": _NUMBER,
    "BF16": _NUMBER,
    "FP32": _NUMBER,
    "FP64": _NUMBER,
    "BYTES": _Rule(frozenset({str}), "a string"),
}
"""What each element must be, by data type."""


def decode_json_data(name: str, datatype: str, shape: tuple[int, ...], data: Any, limits: Limits) -> Tensor:
    """Return the tensor that ``data`` describes; it owns its memory. ``shape`` was checked by `check_shape`.

    Raises:
        InvalidArgument: wrong element type or count, nested too deeply, or too large; names the tensor and the element.
    """
    num_elements = prod(shape)
    if num_elements == 0:  # nothing is expected, so whatever is there is ignored
        return Tensor(name, datatype, shape, np.empty(shape, datatypes.NUMPY_DTYPES[datatype]))
    if type(data) is not list:
        raise InvalidArgument(
            f"Unable to parse 'data': input '{name}' expects an array, found {describe(data)}"
        )
    # BYTES take their length words at least.
    _check_size(name, num_elements * datatypes.ITEM_SIZES.get(datatype, 4), limits)
    elements, types = _flatten(name, data, limits.max_json_depth)
    if len(elements) != num_elements:
        raise InvalidArgument(
            f"Unable to parse 'data': shape does not match true shape of 'data' field of input '{name}': shape "
            f"{format_shape(shape)} has {num_elements} elements, 'data' has {len(elements)}"
        )
    if not types <= _RULES[datatype].accepted:
        raise _wrong_element(name, datatype, elements)
    if datatype == "BYTES":
        array = _to_bytes(name, elements, limits)
    else:
        array = _to_numbers(name, datatype, elements)
    return Tensor(name, datatype, shape, array.reshape(shape))


def _check_size(name: str, nbytes: int, limits: Limits) -> None:
    if nbytes > limits.max_input_size:
        raise InvalidArgument(
            f"JSON input '{name}' has a byte_size ({nbytes} bytes) that exceeds the maximum allowed value of "
            f"{limits.max_input_size} bytes. Use --http-max-input-size to increase the limit."
        )


def _flatten(name: str, data: list[Any], max_depth: int) -> tuple[list[Any], set[type]]:
    """Return the elements of nested lists in order, and the set of their types."""
    types = set(map(type, data))  # 25 ns per element, and all that the type check costs
    depth = 1
    while types == {list}:
        depth += 1
        if depth > max_depth:
            raise _too_deep(name, max_depth)
        data = list(chain.from_iterable(data))
        types = set(map(type, data))
    if list in types:
        data = list(_walk(name, data, depth, max_depth))
        types = set(map(type, data))
    return data, types


def _walk(name: str, data: list[Any], depth: int, max_depth: int) -> Iterator[Any]:
    """Yield the elements of a ragged list at ``depth``, in time linear in its size however deep it goes."""
    stack = [iter(data)]
    while stack:
        for element in stack[-1]:
            if type(element) is list:
                if depth + len(stack) > max_depth:
                    raise _too_deep(name, max_depth)
                stack.append(iter(element))
                break
            yield element
        else:
            stack.pop()


def _too_deep(name: str, max_depth: int) -> InvalidArgument:
    return InvalidArgument(
        f"Unable to parse 'data': input '{name}': JSON nesting depth exceeds maximum allowed limit ({max_depth})"
    )


def _wrong_element(name: str, datatype: str, elements: list[Any]) -> InvalidArgument:
    rule = _RULES[datatype]
    index, element = next((i, e) for i, e in enumerate(elements) if type(e) not in rule.accepted)
    return InvalidArgument(
        f"Unable to parse 'data': input '{name}' of type {datatype} expects {rule.expected}, found {describe(element)} "
        f"at element {index}"
    )


def _to_bytes(name: str, elements: list[str], limits: Limits) -> Array:
    """Return UTF-8 bytes objects."""
    encoded = [element.encode() for element in elements]
    _check_size(name, sum(map(len, encoded)) + 4 * len(encoded), limits)
    array = np.empty(len(encoded), np.object_)
    array[:] = encoded
    return array


def _to_numbers(name: str, datatype: str, elements: list[Any]) -> Array:
    dtype = datatypes.NUMPY_DTYPES[datatype]
    if datatype == "BF16":
        return bfloat16.from_float64(np.array(elements, np.float64))
    if dtype.kind == "f":
        with np.errstate(all="ignore"):  # too large is infinity, not a warning
            return np.array(elements, dtype)
    if dtype.kind == "b":
        return np.array(elements, dtype)
    return _to_integers(name, datatype, elements).astype(dtype, copy=False)  # wraps


def _to_integers(name: str, datatype: str, elements: list[int]) -> Array:
    """Return int64 or uint64 values: signed types refuse what int64 cannot hold, unsigned ones what is negative."""
    is_unsigned = datatype.startswith("U")
    try:
        values = np.array(elements, np.int64)
    except OverflowError:  # above int64; nothing that the parser calls an integer is above uint64
        if is_unsigned and min(elements) >= 0:
            return np.array(elements, np.uint64)
    else:
        if not is_unsigned or values.min() >= 0:
            return values
    index, element = next((i, e) for i, e in enumerate(elements) if (e < 0 if is_unsigned else e > INT64_MAX))
    raise InvalidArgument(
        f"Unable to parse 'data': input '{name}' of type {datatype} expects {'an unsigned' if is_unsigned else 'a signed'}"
        f" integer, found {describe(element)} at element {index}"
    )
