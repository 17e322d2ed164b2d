"""Gives memory back to the operating system after a model has gone."""

from __future__ import annotations

import ctypes
import gc
import sys
from collections.abc import Callable


def _find_malloc_trim() -> Callable[[int], int] | None:
    if not sys.platform.startswith("linux"):
        return None
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError):  # a C library other than glibc
        return None
    trim.argtypes = [ctypes.c_size_t]
    trim.restype = ctypes.c_int
    return trim


_malloc_trim = _find_malloc_trim()


def release_memory() -> None:
    """Collect reference cycles and return free heap pages to the system. Blocking: for a loading thread.

    Without the trim glibc keeps what a model's weights took, and load/unload rounds look like a leak. The collection
    holds the interpreter for its duration (about 10 ms with onnxruntime and numpy loaded), the trim does not.
    """
    gc.collect()
    if _malloc_trim is not None:
        _malloc_trim(0)
