"""Memory for bodies that are received straight into place."""

from __future__ import annotations

import numpy as np

_ALIGNMENT = 64
"""A cache line, and the widest vector register: what frameworks would copy an input for."""


def allocate_body(size: int, tensors_at: int = 0) -> memoryview:
    """Return ``size`` writable bytes whose byte ``tensors_at`` is aligned, so that the tensors from there on are.

    The memory is not cleared (that would touch every page before the first byte arrives), so pages that the client
    never fills are never committed.
    """
    memory = np.empty(size + _ALIGNMENT, dtype=np.uint8)
    offset = -(memory.ctypes.data + tensors_at) % _ALIGNMENT
    return memory[offset : offset + size].data
