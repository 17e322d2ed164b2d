"""SETTINGS: what this server announces, and what of a client's it can use. Source: RFC 9113 section 6.5."""

from __future__ import annotations

from typing import Final

from bireme.wire.http2 import frames
from bireme.wire.http2.errors import ErrorCode, ProtocolViolation
from bireme.wire.http2.limits import Http2Limits

_MAX_PAIRS: Final = 64
MAX_SETTINGS_SIZE: Final = _MAX_PAIRS * frames.SETTING.size
"""A frame of more is abuse: there are half a dozen settings."""

_RANGES: Final = {
    frames.ENABLE_PUSH: (0, 1, ErrorCode.PROTOCOL_ERROR),
    frames.INITIAL_WINDOW_SIZE: (0, frames.MAX_WINDOW, ErrorCode.FLOW_CONTROL_ERROR),
    frames.MAX_FRAME_SIZE: (frames.MIN_MAX_FRAME_SIZE, frames.MAX_MAX_FRAME_SIZE, ErrorCode.PROTOCOL_ERROR),
}


def announce(limits: Http2Limits) -> bytes:
    """Return what a server sends first: its SETTINGS, and the connection's window."""
    output = frames.settings(
        (
            (frames.HEADER_TABLE_SIZE, frames.DEFAULT_HEADER_TABLE_SIZE),
            (frames.ENABLE_PUSH, 0),
            (frames.MAX_CONCURRENT_STREAMS, limits.max_concurrent_streams),
            (frames.INITIAL_WINDOW_SIZE, limits.stream_window),
            (frames.MAX_FRAME_SIZE, limits.max_frame_size),
            (frames.MAX_HEADER_LIST_SIZE, limits.max_header_list_size),
        )
    )
    if limits.connection_window > frames.DEFAULT_WINDOW:
        output += frames.window_update(0, limits.connection_window - frames.DEFAULT_WINDOW)
    return output


def read_settings(payload: memoryview) -> list[tuple[int, int]]:
    """Return the settings of a frame in their order, unknown ones included.

    Raises:
        ProtocolViolation: a value out of its range, or a size that no SETTINGS frame has.
    """
    if len(payload) % frames.SETTING.size:
        raise ProtocolViolation(ErrorCode.FRAME_SIZE_ERROR, f"SETTINGS of {len(payload)} bytes")
    pairs: list[tuple[int, int]] = list(frames.SETTING.iter_unpack(payload))
    for key, value in pairs:
        least, most, code = _RANGES.get(key, (0, 0xFFFFFFFF, ErrorCode.NO_ERROR))
        if not least <= value <= most:
            raise ProtocolViolation(code, f"setting {key} with the value {value}")
    return pairs
