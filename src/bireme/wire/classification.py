"""Classification extension: an output's highest values as ``value:index[:label]`` strings instead of the tensor.

Source: Triton ``classification.cc`` and ``http_server.cc`` (``FinalizeResponse``); values look like C++
``std::to_string``. Two differences: equal values come in index order (Triton's sort is not stable), and NaN counts as
the lowest value (there it's undefined).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from math import prod

import numpy as np

from bireme.types import Array, InvalidArgument, Tensor, datatypes

MAX_ELEMENTS = 1_000_000
"""The most elements per batch item that can be sorted for one request."""
_MAX_STEP_ELEMENTS = 1 << 16
_ROW_COST = 1 << 10
"""What a row costs by itself, 20 µs, as a number of elements."""

_TYPES = frozenset(
    name for name, dtype in datatypes.NUMPY_DTYPES.items() if dtype.kind in "iu" and name != "BF16"
) | {"FP32", "FP64"}


def classify(
    tensor: Tensor, num_classes: int, labels: Sequence[str] = (), *, has_batch_dim: bool = False
) -> Iterator[Tensor | None]:
    """Yield None after each bounded piece of work, and at the end the BYTES tensor that replaces ``tensor``.

    Its shape is ``[batch, min(num_classes, elements)]``, or without the batch when ``has_batch_dim`` is False. A label
    that is missing or empty is left out.

    Raises:
        InvalidArgument: the data type has no order to go by, or the tensor is too large.
    """
    values = tensor.to_numpy()
    batch_shape = values.shape[:1] if has_batch_dim else ()
    num_elements = prod(values.shape[len(batch_shape) :])
    _check(tensor, num_elements)
    count = min(num_classes, num_elements)
    rows: list[list[bytes]] = []
    since_yield = 0
    for row in values.reshape(prod(batch_shape), num_elements):
        strings: list[bytes] = []
        indices = _top_indices(row, count)
        for start in range(0, count, _MAX_STEP_ELEMENTS):
            strings += _format(row, indices[start : start + _MAX_STEP_ELEMENTS], labels)
            since_yield += num_elements + _ROW_COST
            if since_yield >= _MAX_STEP_ELEMENTS:
                since_yield = 0
                yield None
        rows.append(strings)
    elements = np.empty(prod(batch_shape) * count, np.object_)
    elements[:] = list(chain.from_iterable(rows))
    shape = (*batch_shape, count)
    yield Tensor(tensor.name, "BYTES", shape, elements.reshape(shape))


def _check(tensor: Tensor, num_elements: int) -> None:
    if tensor.datatype not in _TYPES:
        raise InvalidArgument(
            f"class result not available for output due to unsupported type '{tensor.datatype}': output "
            f"'{tensor.name}' must be of an integer type, FP32 or FP64 to be classified"
        )
    if num_elements > MAX_ELEMENTS:
        raise InvalidArgument(
            f"classification output tensor too large: output '{tensor.name}' has {num_elements} elements, at most "
            f"{MAX_ELEMENTS} can be classified"
        )


def _top_indices(row: Array, count: int) -> Array:
    """Return the indices of the ``count`` highest values, highest first, equal values in index order."""
    if row.dtype.kind == "f":
        row = np.where(np.isnan(row), -np.inf, row)
    candidates = np.arange(len(row))
    if 0 < count < len(row):
        # Sort only what can be among the highest: linear instead of n log n for the usual top 5 of 1000.
        threshold = np.partition(row, len(row) - count)[len(row) - count]
        candidates = np.flatnonzero(row >= threshold)
    # Descending and stable: an ascending stable sort of the reversed order, reversed.
    order = np.argsort(row[candidates][::-1], kind="stable")[::-1]
    return candidates[::-1][order][:count]


def _format(row: Array, indices: Array, labels: Sequence[str]) -> list[bytes]:
    form = "%f:%d" if row.dtype.kind == "f" else "%d:%d"
    strings = []
    for value, index in zip(row[indices].tolist(), indices.tolist(), strict=True):
        string = form % (value, index)
        if index < len(labels) and labels[index]:
            string = f"{string}:{labels[index]}"
        strings.append(string.encode())
    return strings
