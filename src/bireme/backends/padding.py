"""Rows that fill a batch up, for models that take batches of some sizes alone. Pure."""

from __future__ import annotations

import numpy as np

from bireme.types import Array


def pad_rows(array: Array, num_rows: int) -> Array:
    """Return a copy of ``array``, ``[n, …]``, that has ``num_rows`` rows, n or more: those that are new hold zeros, or no text."""
    padded = np.zeros((num_rows, *array.shape[1:]), array.dtype)
    padded[: len(array)] = array
    if array.dtype.hasobject:
        padded[len(array) :] = b""
    return padded
