"""Compressed bodies: which encoding to speak, and the bounded inflating and deflating of bodies.

zlib lets go of the GIL while it works, so anything large belongs on a thread: a MB takes 20 (JSON) to 50 ms (floats) to
compress, and 8 ms to decompress.

Source: RFC 9110 section 12.5.3; Triton ``data_compressor.h``, ``http_server.cc`` (``CompressionTypeUsed``).
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from typing import Final, Literal

from bireme.types import Buffer, InvalidArgument, Unsupported
from bireme.wire.inflate import GZIP, GZIP_OR_ZLIB, ZLIB, NotInflatable, inflate

Encoding = Literal["gzip", "deflate"]

ACCEPTED_ENCODINGS: Final = "gzip, deflate"
"""For the ``Accept-Encoding`` header of the reply to an unsupported encoding."""

_WINDOW_BITS: Final[dict[str, int]] = {"gzip": GZIP, "deflate": ZLIB}
MAX_STREAMS: Final = 4096
"""More gzip streams in one body than any tool writes for `max_size` bytes (bgzip: one for every 64 KB)."""
_LEVEL = 1  # Triton's level 6 takes 1.2 (floats) to 10 times (JSON) as long, and saves at most a tenth


def parse_content_encoding(value: bytes | None) -> Encoding | None:
    """Return the encoding that a ``Content-Encoding`` header names; None: the body is not compressed.

    Raises:
        Unsupported: it's another one; the reply should carry `ACCEPTED_ENCODINGS`.
    """
    name = (value or b"").strip().lower()
    if name == b"gzip":
        return "gzip"
    if name == b"deflate":
        return "deflate"
    if name in (b"", b"identity"):
        return None
    raise Unsupported(
        f"Unsupported compression type: found '{name.decode('latin-1')}', expected one of {ACCEPTED_ENCODINGS}, identity"
    )


def choose_encoding(accept_encoding: bytes | None) -> Encoding | None:
    """Return what a client prefers by its ``Accept-Encoding``: the highest q-value, the first among equals.

    None: send the body as it is. Encodings that we do not speak, malformed ones and ``*`` are passed over.
    """
    chosen: Encoding | None = None
    best = 0.0
    for item in (accept_encoding or b"").decode("latin-1").lower().split(","):
        name, _, parameters = item.partition(";")
        name = name.strip()
        if name not in ("gzip", "deflate", "identity"):
            continue
        weight = _weight(parameters)
        if weight > best:
            best = weight
            chosen = "gzip" if name == "gzip" else "deflate" if name == "deflate" else None
    return chosen


def decompress(body: Buffer, max_size: int) -> bytes:
    """Return the plain form of a gzip or zlib ``body``; which of the two it is shows in its first bytes.

    Never holds more than ``max_size`` bytes and one slice more.

    Raises:
        InvalidArgument: not such a stream, cut short, followed by something else, or larger than ``max_size``; or more
            than `MAX_STREAMS` streams in a row, as gzip allows.
    """
    if not len(body):
        raise InvalidArgument("nothing to be decompressed: the body is empty")
    pieces: list[bytes] = []
    size = 0
    try:
        for piece in inflate(body, GZIP_OR_ZLIB, MAX_STREAMS):
            size += len(piece)
            if size > max_size:
                raise InvalidArgument(
                    f"Decompressed data size exceeds the maximum allowed value of {max_size} bytes. Use "
                    f"--http-max-input-size to increase the limit."
                )
            pieces.append(piece)
    except NotInflatable as error:
        raise InvalidArgument(f"failed to decompress the request body: {error}") from None
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def compress(pieces: Iterable[Buffer], encoding: Encoding) -> list[bytes]:
    """Return the compressed form of the concatenated ``pieces``, itself in pieces."""
    stream = zlib.compressobj(_LEVEL, zlib.DEFLATED, _WINDOW_BITS[encoding])
    compressed = [stream.compress(piece) for piece in pieces]
    compressed.append(stream.flush())
    return [piece for piece in compressed if piece]


def _weight(parameters: str) -> float:
    """Return the q-value among the ``;``-separated parameters of an item: 1 without one, 0 if malformed."""
    for parameter in parameters.split(";"):
        key, _, value = parameter.partition("=")
        if key.strip() == "q":
            try:
                return min(float(value), 1.0)
            except ValueError:
                return 0.0
    return 1.0
