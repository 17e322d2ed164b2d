"""Frames of HTTP/2: types, flags, settings, and the builders of what a server sends. Source: RFC 9113 sections 4 and 6."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Final

from bireme.wire.http2.errors import ErrorCode

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
"""The first bytes of a client's connection."""

FRAME_HEADER_SIZE: Final = 9
MIN_MAX_FRAME_SIZE: Final = 1 << 14
MAX_MAX_FRAME_SIZE: Final = (1 << 24) - 1
MAX_STREAM_ID: Final = (1 << 31) - 1
MAX_WINDOW: Final = (1 << 31) - 1
DEFAULT_WINDOW: Final = 65535
DEFAULT_HEADER_TABLE_SIZE: Final = 4096

# Types
DATA: Final = 0
HEADERS: Final = 1
PRIORITY: Final = 2
RST_STREAM: Final = 3
SETTINGS: Final = 4
PUSH_PROMISE: Final = 5
PING: Final = 6
GOAWAY: Final = 7
WINDOW_UPDATE: Final = 8
CONTINUATION: Final = 9
UNKNOWN: Final = 10
"""All types from here on."""

# Flags
END_STREAM: Final = 0x1
ACK: Final = 0x1
END_HEADERS: Final = 0x4
PADDED: Final = 0x8
HAS_PRIORITY: Final = 0x20

# Settings
HEADER_TABLE_SIZE: Final = 1
ENABLE_PUSH: Final = 2
MAX_CONCURRENT_STREAMS: Final = 3
INITIAL_WINDOW_SIZE: Final = 4
MAX_FRAME_SIZE: Final = 5
MAX_HEADER_LIST_SIZE: Final = 6

HEADER: Final = struct.Struct(">IBI")
"""A frame's header: ``length << 8 | type``, flags, stream."""
WORD: Final = struct.Struct(">I")
SETTING: Final = struct.Struct(">HI")

pack_header = HEADER.pack
"""Return a frame's header, given ``length << 8 | type``, flags and stream."""

_pack_word_frame = struct.Struct(">IBII").pack
_pack_goaway = struct.Struct(">IBIII").pack

EMPTY_TABLE: Final = b"\x20"
"""Begins a header block: an update of the HPACK table's size to nothing (RFC 7541 section 6.3)."""

SETTINGS_ACK: Final = pack_header(SETTINGS, ACK, 0)


def settings(values: Iterable[tuple[int, int]]) -> bytes:
    """Return a SETTINGS frame."""
    payload = b"".join(SETTING.pack(key, value) for key, value in values)
    return pack_header(len(payload) << 8 | SETTINGS, 0, 0) + payload


def window_update(stream_id: int, increment: int) -> bytes:
    """Return a WINDOW_UPDATE frame."""
    return _pack_word_frame(4 << 8 | WINDOW_UPDATE, 0, stream_id, increment)


def rst_stream(stream_id: int, code: ErrorCode) -> bytes:
    """Return a RST_STREAM frame."""
    return _pack_word_frame(4 << 8 | RST_STREAM, 0, stream_id, code)


def ping(data: bytes, flags: int = 0) -> bytes:
    """Return a PING frame with the eight bytes ``data``."""
    return pack_header(8 << 8 | PING, flags, 0) + data


def goaway(last_stream_id: int, code: ErrorCode, message: bytes = b"") -> bytes:
    """Return a GOAWAY frame."""
    return _pack_goaway((8 + len(message)) << 8 | GOAWAY, 0, 0, last_stream_id, code) + message


def headers(stream_id: int, block: bytes, flags: int, max_frame_size: int) -> bytes:
    """Return a header block as a HEADERS frame, and as many CONTINUATION frames as it takes."""
    if len(block) <= max_frame_size:
        return pack_header(len(block) << 8 | HEADERS, flags | END_HEADERS, stream_id) + block
    frames = [pack_header(max_frame_size << 8 | HEADERS, flags, stream_id), block[:max_frame_size]]
    for start in range(max_frame_size, len(block), max_frame_size):
        fragment = block[start : start + max_frame_size]
        is_last = start + max_frame_size >= len(block)
        frames += (
            pack_header(len(fragment) << 8 | CONTINUATION, END_HEADERS if is_last else 0, stream_id),
            fragment,
        )
    return b"".join(frames)
