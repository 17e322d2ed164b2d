"""Memory for bodies that are received straight into place."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from bireme.ipc import segment

if TYPE_CHECKING:
    from bireme.ipc.arena import Arena

_ALIGNMENT: Final = 64
"""A cache line, and the widest vector register: what frameworks would copy an input for."""
_SHARED_SIZE: Final = 64 << 10
"""Bytes of a body that is received into shared memory: tensors below are copied to a process for less than they lease."""


def allocate_body(size: int, tensors_at: int = 0, *, arena: Arena | None = None) -> memoryview:
    """Return ``size`` writable bytes whose byte ``tensors_at`` is aligned, so that the tensors from there on are.

    A large body lies in ``arena``, from where its tensors get to the processes of models without a copy; its memory is used
    again, so its pages are warm. The memory is not cleared (that would touch every page before the first byte arrives), so
    pages that the client never fills are never committed.
    """
    num_bytes = size + _ALIGNMENT
    if arena is not None and segment.IS_SUPPORTED and size >= _SHARED_SIZE:
        block = arena.allocate(num_bytes)
        # A block begins at a page.
        offset = -tensors_at % _ALIGNMENT
        return memoryview(block)[offset : offset + size]  # type: ignore[arg-type]
    memory = np.empty(num_bytes, dtype=np.uint8)
    offset = -(memory.ctypes.data + tensors_at) % _ALIGNMENT
    return memory[offset : offset + size].data
