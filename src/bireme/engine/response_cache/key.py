"""The key of a request: equal for two requests only if their answers are.

It is a hash of 256 bits over everything that a model may answer by: the model and the load of its version, the requested outputs,
the parameters, and each input's name, data type, shape and bytes. The parts are packed with their lengths before they are
hashed, so that no two requests have the same text.

Small questions are hashed by SHA-256, which processors compute themselves; large ones by BLAKE3, where its package is
installed: 0.12 ms for 600 KB, where SHA-256 takes 0.35 ms and BLAKE2b 0.67 ms. For both, nobody knows how to find two texts
with one hash.

What no answer depends on is left out: the request's id, its priority and queue timeout, who asked, and the parameters in
`_IGNORED` and of Bireme's own (``bireme_...``).

Source: DESIGN; Triton hashes names and bytes of the inputs alone, so that equal bytes in other shapes collide there, and
so do requests for other outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from hashlib import sha256
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np

from bireme.types import Array, Buffer, InferenceRequest, Parameter, Tensor


def _find_blake3() -> Callable[[bytes], Any] | None:
    try:
        from blake3 import blake3
    except ImportError:
        return None
    return blake3


_blake3 = _find_blake3()
MAX_LOOP_NBYTES: Final = (640 if _blake3 else 192) << 10
"""Bytes of input up to which a key is made on the loop, in 0.13 ms. To have a thread do it costs a request 0.1 ms, too."""

_LARGE: Final = 16 << 10
"""Bytes of input from which BLAKE3 is the faster one."""
_FORMAT: Final = 1
"""Counts up when keys or entries mean something else, as shared caches hold those of other releases."""
_OWN_PREFIX: Final = "bireme_"
_IGNORED: Final = frozenset({"triton_enable_empty_final_response"})
"""Parameters that say how an answer travels."""

_encode = msgspec.msgpack.Encoder().encode


class Question(NamedTuple):
    """What a key is made of."""

    head: bytes
    buffers: list[Buffer | Array]
    """Of the inputs, in the order of their names."""
    nbytes: int
    """Of all buffers."""


def read_question(request: InferenceRequest, token: bytes, all_outputs: Sequence[str]) -> Question | None:
    """Return what a valid ``request`` asks of the load that ``token`` stands for.

    ``all_outputs``: the names of the model's outputs, sorted; who asks for none by name gets all of them.

    None: there can be no key, as it has a parameter without bytes (a number above 64 bits, half a surrogate pair).
    """
    inputs = request.inputs
    parts: list[tuple[str, str, tuple[int, ...], int]] = []
    buffers: list[Buffer | Array] = []
    total = 0
    for name in sorted(inputs) if len(inputs) > 1 else inputs:
        tensor = inputs[name]
        buffer, nbytes = _buffer_of(tensor)
        buffers.append(buffer)
        parts.append((name, tensor.datatype, tensor.shape, nbytes))
        total += nbytes
    outputs = request.outputs
    sequence = request.sequence_id
    try:
        head = _encode(
            (
                _FORMAT,
                token,
                all_outputs if outputs is None else sorted(outputs),
                _relevant(request.parameters) if request.parameters else None,
                sequence and (sequence, request.sequence_start, request.sequence_end),
                parts,
            )
        )
    except (OverflowError, TypeError, ValueError):
        return None
    return Question(head, buffers, total)


def _buffer_of(tensor: Tensor) -> tuple[Buffer | Array, int]:
    """Return the wire form of ``tensor``, and its size. A small array stands for its own memory: that saves 0.8 µs."""
    if tensor.datatype != "BYTES":
        array = tensor.to_numpy()
        if array.nbytes < _LARGE and array.flags.c_contiguous:
            return array, array.nbytes
    buffer = tensor.to_buffer()
    return buffer, len(buffer)


def make_key(question: Question) -> bytes:
    """Return 32 bytes that stand for ``question``. Any thread; large ones without the GIL."""
    if _blake3 is not None and question.nbytes >= _LARGE:
        fast = _blake3(question.head)
        for buffer in question.buffers:
            fast.update(buffer.tobytes() if isinstance(buffer, np.ndarray) else buffer)
        key: bytes = fast.digest()
        return key
    digest = sha256(question.head)
    for buffer in question.buffers:
        digest.update(buffer)  # type: ignore[arg-type]  # an array is a buffer, which type checkers learn with 3.12
    return digest.digest()


def _relevant(parameters: dict[str, Parameter]) -> list[tuple[str, Parameter]] | None:
    """Return the parameters that a model may answer by, in an order of their own."""
    relevant = [
        (name, value)
        for name, value in parameters.items()
        if name not in _IGNORED and not name.startswith(_OWN_PREFIX)
    ]
    return sorted(relevant) or None
