"""The fields of a protobuf message, walked in place: where each lies, without a copy of what it holds.

Source: Protocol Buffers "Encoding" (tags, wire types, varints).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from bireme.types import Buffer
from bireme.wire.grpc.errors import UnreadableMessage

_MAX_VARINT_BYTES = 10
_FIXED_SIZES = {1: 8, 5: 4}
_VARINT, _LENGTH_DELIMITED = 0, 2


class WireField(NamedTuple):
    """One field of a message."""

    tag: int
    """Field number and wire type: ``number << 3 | type``."""
    start: int
    """Where its tag begins."""
    content: int
    """Where its content begins, behind tag and length."""
    end: int
    """Where the next field begins."""


def walk_fields(message: Buffer) -> Iterator[WireField]:
    """Yield the fields of ``message`` in their order; the last may reach past the end, which is told after it.

    Raises:
        UnreadableMessage: a field is cut off, is a group, or has an unknown wire type.
    """
    size = len(message)
    offset = 0
    while offset < size:
        start = offset
        tag, offset = read_varint(message, offset)
        kind = tag & 7
        if kind == _LENGTH_DELIMITED:
            length, offset = read_varint(message, offset)
            end = offset + length
        elif kind == _VARINT:
            _, end = read_varint(message, offset)
        elif kind in _FIXED_SIZES:
            end = offset + _FIXED_SIZES[kind]
        else:
            raise UnreadableMessage(f"wire type {kind} at byte {start}")
        yield WireField(tag, start, offset, end)
        if end > size:
            raise UnreadableMessage(f"field {tag >> 3} at byte {start} ends {end - size} bytes past the end")
        offset = end


def read_varint(message: Buffer, offset: int) -> tuple[int, int]:
    """Return the number that begins at ``offset``, and where it ends.

    Raises:
        UnreadableMessage: it's cut off, or has more than 10 bytes.
    """
    value = 0
    for index, byte in enumerate(message[offset : offset + _MAX_VARINT_BYTES]):
        value |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return value, offset + index + 1
    raise UnreadableMessage(f"unfinished number at byte {offset}")


def write_varint(value: int) -> bytes:
    """Return ``value`` (not negative) as a varint."""
    if value < 0x80:
        return _ONE_BYTE[value]
    written = bytearray()
    while value > 0x7F:
        written.append(value & 0x7F | 0x80)
        value >>= 7
    written.append(value)
    return bytes(written)


_ONE_BYTE = [bytes((value,)) for value in range(0x80)]


def write_bytes(tag: bytes, content: bytes) -> bytes:
    """Return a length-delimited field."""
    return b"%b%b%b" % (tag, write_varint(len(content)), content)
