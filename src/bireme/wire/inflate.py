"""Bounded inflating of zlib and gzip streams, a slice at a time."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Final

from bireme.types import Buffer

GZIP: Final = zlib.MAX_WBITS | 16
ZLIB: Final = zlib.MAX_WBITS
GZIP_OR_ZLIB: Final = zlib.MAX_WBITS | 32
"""Which of the two it is shows in the first bytes."""

_INPUT_SIZE = 16 << 10
_OUTPUT_SIZE = 1 << 20


class NotInflatable(Exception):
    """The bytes are no such stream, or not only one; the text says what is wrong."""


def inflate(data: Buffer, window_bits: int, max_streams: int = 1) -> Iterator[bytes]:
    """Yield the plain form of at most ``max_streams`` streams in a row, in slices of up to 1 MB.

    Slices, since zlib copies what it leaves of its input, and since it puts its output together with the GIL held:
    the time for both would grow with the square of the data's size, and hold up the loop.

    Raises:
        NotInflatable: the data is something else, cut short, or followed by something else.
    """
    view = memoryview(data)
    stream = zlib.decompressobj(window_bits)
    num_streams = 1
    try:
        for start in range(0, len(view), _INPUT_SIZE):
            rest: Buffer = view[start : start + _INPUT_SIZE]
            while len(rest):
                if stream.eof:
                    num_streams += 1
                    if num_streams > max_streams:
                        raise NotInflatable(_describe_excess(max_streams))
                    stream = zlib.decompressobj(window_bits)
                yield stream.decompress(rest, _OUTPUT_SIZE)
                rest = stream.unused_data if stream.eof else stream.unconsumed_tail
        while not stream.eof and (piece := stream.decompress(b"", _OUTPUT_SIZE)):
            yield piece  # what did not fit into the last slice, though all of the input did
    except zlib.error as error:
        raise NotInflatable(str(error)) from None
    if not stream.eof:
        raise NotInflatable(f"its {len(view)} bytes end within the compressed stream")


def _describe_excess(max_streams: int) -> str:
    if max_streams == 1:
        return "something follows the compressed stream"
    return f"more than {max_streams} compressed streams in a row"
