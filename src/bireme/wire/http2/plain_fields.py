"""Header fields in the forms that clients use, read at a third of what the hpack library takes; it reads all others.

A request that brings something of its own, such as a trace's number or a deadline, cannot be found by its bytes, and
decoding its dozen fields by the library costs 27 to 35 µs. What it consists of is nearly always plain: indices below 127
and strings of fewer than 127 bytes. Those are read here (7 to 14 µs with the checks), with the library's table and its
Huffman code. At anything else, errors included, the reader stops between two fields, where the library takes over: the
state of both is the same table.

Source: RFC 7541 section 6.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from hpack.exceptions import HPACKDecodingError
from hpack.huffman_table import decode_huffman
from hpack.table import HeaderTable

from bireme.wire.http2.headers import Field

_STATIC: Final = ((b"", b""), *HeaderTable.STATIC_TABLE)
_NUM_STATIC: Final = len(_STATIC)
_MANY: Final = 0x7F
"""In seven bits: a number that takes more bytes."""
_MAX_NAMES: Final = 512

_names: dict[bytes, bytes] = {}
"""Names as they come, Huffman-coded → names: a request's own values have the same names each time."""


class _Unusual(Exception):
    """What comes is not plain, or not sound."""


def read_plain_fields(
    block: bytes, table: HeaderTable, fields: list[Field], max_size: int
) -> tuple[int, int]:
    """Append the fields at the beginning of ``block`` to ``fields``, up to one that is not plain or is broken.

    Returns:
        Where that one lies, mostly at the end of the block, and how large the list of fields is by RFC 9113 section 6.5.2.
        It is not read on when that is more than ``max_size``.
    """
    position, end, size = 0, len(block), 0
    entries = table.dynamic_entries
    try:
        while position < end and size <= max_size:
            first = block[position]
            if first & 0x80:
                index = first & 0x7F
                if index == _MANY or not index:
                    break
                field = _STATIC[index] if index < _NUM_STATIC else entries[index - _NUM_STATIC]
                position += 1
            elif first & 0x40:
                field, position = _read_literal(block, position, 0x3F, entries)
                table.add(*field)
            elif first & 0x20:
                break
            else:
                field, position = _read_literal(block, position, 0x0F, entries)
            fields.append(field)
            size += len(field[0]) + len(field[1]) + 32
    except (IndexError, _Unusual, HPACKDecodingError):
        return position, size  # where the field begins that is not plain
    return position, size


def _read_literal(block: bytes, position: int, most: int, entries: deque[Field]) -> tuple[Field, int]:
    """Read a literal field whose first byte ends in an index of up to ``most`` for its name."""
    index = block[position] & most
    position += 1
    if index == most:
        more = block[position]
        if more & 0x80:
            raise _Unusual
        index += more
        position += 1
    if index:
        name = (_STATIC[index] if index < _NUM_STATIC else entries[index - _NUM_STATIC])[0]
    else:
        start, position = _find_text(block, position)
        name = block[start:position]
        if block[start - 1] & 0x80:
            name = _names.get(name) or _decode_name(name)
    start, position = _find_text(block, position)
    value = block[start:position]
    if block[start - 1] & 0x80:
        value = decode_huffman(value)
    return (name, value), position


def _find_text(block: bytes, position: int) -> tuple[int, int]:
    """Return where a string starts and ends whose length is at ``position``."""
    start = position + 1
    length = block[position] & _MANY
    if length == _MANY or start + length > len(block):
        raise _Unusual
    return start, start + length


def _decode_name(text: bytes) -> bytes:
    if len(_names) >= _MAX_NAMES:
        _names.clear()
    name = _names[text] = decode_huffman(text)
    return name
