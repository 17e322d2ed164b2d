"""Array → a tensor's JSON ``data``.

``data`` is one flat, row-major list. BYTES become strings; bytes that are not UTF-8 are replaced by U+FFFD, since a
client's parser would refuse the whole response otherwise (binary data carries them exactly). FP16 and BF16 are numbers
like the rest. NaN and infinities are bare tokens.

Source: Triton ``http_server.cc`` (``WriteDataToJson``).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from itertools import accumulate

import numpy as np
import orjson

from bireme.types import Array, Tensor
from bireme.wire import bfloat16
from bireme.wire.encoded import MAX_SLICE_ELEMENTS

MAX_SLICE_BYTES = 1 << 18
"""A slice holds at most so many bytes of strings, unless one alone is longer."""


def encode_json_slices(tensor: Tensor) -> Iterator[bytes]:
    """Yield the JSON array of the elements of ``tensor`` in pieces, each of bounded cost."""
    flat = tensor.to_numpy().reshape(-1)
    slices = _slice_strings(flat) if tensor.datatype == "BYTES" else _slice_numbers(tensor.datatype, flat)
    opening = b"["
    for piece in slices:
        yield opening + piece[1:-1]
        opening = b","
    yield b"]" if opening == b"," else b"[]"


def encode_json_array(datatype: str, flat: Array) -> bytes:
    """Return the one-dimensional ``flat`` as a JSON array, at once."""
    if datatype == "BYTES":
        return orjson.dumps([element.decode(errors="replace") for element in flat.tolist()])
    if datatype == "BF16":
        flat = bfloat16.to_float32(flat)
    elif not (flat.flags.c_contiguous and flat.flags.aligned):
        flat = np.array(flat)  # copy: orjson reads contiguous, aligned memory
    text = orjson.dumps(flat, option=orjson.OPT_SERIALIZE_NUMPY)
    if b"null" in text:  # orjson's mark of a non-finite number; far cheaper than to look through every array
        return _restore_tokens(text, flat)
    return text


def _slice_numbers(datatype: str, flat: Array) -> Iterator[bytes]:
    for start in range(0, len(flat), MAX_SLICE_ELEMENTS):
        yield encode_json_array(datatype, flat[start : start + MAX_SLICE_ELEMENTS])


def _slice_strings(flat: Array) -> Iterator[bytes]:
    for window_start in range(0, len(flat), MAX_SLICE_ELEMENTS):
        window = flat[window_start : window_start + MAX_SLICE_ELEMENTS]
        ends = [0, *accumulate(map(len, window.tolist()))]
        start = 0
        while start < len(window):
            stop = max(start + 1, bisect_right(ends, ends[start] + MAX_SLICE_BYTES) - 1)
            yield encode_json_array("BYTES", window[start:stop])
            start = stop


def _restore_tokens(text: bytes, flat: Array) -> bytes:
    """Return ``text`` with each ``null`` replaced by the token of the non-finite number it stands for."""
    parts = text.split(b"null")
    non_finite = flat[~np.isfinite(flat)]
    tokens = np.where(
        np.isnan(non_finite), b"NaN", np.where(non_finite > 0, b"Infinity", b"-Infinity")
    ).tolist()
    pieces = [parts[0]]
    for token, part in zip(tokens, parts[1:], strict=True):
        pieces.append(token)
        pieces.append(part)
    return b"".join(pieces)
