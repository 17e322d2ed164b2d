"""Compressed messages: which encoding to speak, and the bounded inflating and deflating of messages.

zlib lets go of the GIL while it works, so anything large belongs on a thread.

Source: gRPC "Compression" (compression.md); gRPC core ``compression_internal.cc`` (``CompressionAlgorithmForLevel``).
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable
from typing import Final, Literal

from bireme.types import Buffer
from bireme.wire.grpc.status import Refusal, Status
from bireme.wire.inflate import GZIP, ZLIB, NotInflatable, inflate

Encoding = Literal["gzip", "deflate"]
Level = Literal["none", "low", "medium", "high"]

ACCEPT_ENCODING: Final = b"identity, deflate, gzip"
"""``grpc-accept-encoding`` for the reply to an unknown encoding."""

_WINDOW_BITS: Final[dict[Encoding, int]] = {"gzip": GZIP, "deflate": ZLIB}
_FASTEST = 1


def parse_encoding(value: bytes | None) -> Encoding | None:
    """Return the encoding that ``grpc-encoding`` names; None: no message of the call is compressed.

    Raises:
        Refusal: UNIMPLEMENTED, it's another one; the reply should carry `ACCEPT_ENCODING`.
    """
    if value is None or value == b"identity":
        return None
    if value == b"gzip":
        return "gzip"
    if value == b"deflate":
        return "deflate"
    shown = value[:64].decode("ascii", "backslashreplace")
    raise Refusal(
        Status.UNIMPLEMENTED, f"grpc-encoding '{shown}' is not supported, expected identity, deflate or gzip"
    )


def _take(num_bytes: int) -> None:
    """Let any number of bytes be kept."""


def decompress(
    message: Buffer, encoding: Encoding | None, max_size: int, take: Callable[[int], None] = _take
) -> Buffer:
    """Return the plain form of a message that came with the compressed flag, in a call with ``encoding``.

    ``take`` is told of all bytes before they are kept, and may refuse them. Never holds more than ``max_size`` bytes, one
    slice (1 MB), and an eighth that is reserved.

    Raises:
        Refusal: INTERNAL, the call has no encoding, or the message is not encoded by it; RESOURCE_EXHAUSTED, it's larger
            than ``max_size``; or what ``take`` raises.
    """
    if encoding is None:
        raise Refusal(Status.INTERNAL, "a message has the compressed flag, and the call has no grpc-encoding")
    first = b""
    plain: bytearray | None = (
        None  # grows in place: to join pieces would take twice the memory, and hold the GIL
    )
    size = 0
    try:
        for piece in inflate(message, _WINDOW_BITS[encoding]):
            size += len(piece)
            if size > max_size:
                text = f"Received message larger than max ({size} vs. {max_size})"
                raise Refusal(Status.RESOURCE_EXHAUSTED, text)
            take(len(piece))
            if plain is not None:
                plain += piece
            elif first:
                plain = bytearray(first + piece)
            else:
                first = piece
    except NotInflatable as error:
        raise Refusal(Status.INTERNAL, f"failed to decompress a message by {encoding}: {error}") from None
    return first if plain is None else plain


def choose_encoding(accept: bytes | None, level: Level) -> Encoding | None:
    """Return by what to compress at a configured ``level`` for a client that sent ``grpc-accept-encoding: accept``.

    gRPC ranks the two of them: gzip, then deflate.
    """
    if level == "none" or accept is None:
        return None
    names = {name.strip() for name in accept.split(b",")}
    if b"deflate" in names and (level != "low" or b"gzip" not in names):
        return "deflate"
    return "gzip" if b"gzip" in names else None


def compress(pieces: Iterable[Buffer], encoding: Encoding) -> bytes:
    """Return the compressed form of the concatenated ``pieces``. When it is not smaller, send them as they are.

    At zlib's fastest level: gRPC's (zlib's default) takes several times as long and saves at most a tenth.
    """
    stream = zlib.compressobj(_FASTEST, zlib.DEFLATED, _WINDOW_BITS[encoding])
    compressed = [stream.compress(piece) for piece in pieces]
    compressed.append(stream.flush())
    return b"".join(compressed)
