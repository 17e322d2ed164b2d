"""What one connection may make the server hold or do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

HARD_LIST_FACTOR: Final = 4
"""Header lists of up to so many times the limit are read, since later ones refer to them, and end only their stream:
other calls shall not lose their connection by one call's large metadata."""


@dataclass(frozen=True, slots=True)
class Http2Limits:
    """The settings that are announced to the client, and the bounds on what it may send.

    Allowances are numbers of events: they begin full, lose one per event, gain a fixed number per tick (about a second) and
    some for each useful frame, and hold no more than when full after a tick. Who uses one up is sent away with
    ENHANCE_YOUR_CALM.
    """

    # Announced to the client
    stream_window: int = 64 << 20
    """Bytes of DATA that may be under way on one stream. What arrives is consumed at once, so a window never stalls."""
    connection_window: int = 64 << 20
    """The same for all streams of the connection together."""
    max_frame_size: int = 4 << 20
    """Bytes of payload of one frame (RFC 9113 section 4.2: 2^14 to 2^24 - 1)."""
    max_concurrent_streams: int = 1024
    """Requests in flight; one more is refused with REFUSED_STREAM, which clients may retry."""
    max_header_list_size: int = 16 << 10
    """Bytes of a request's header fields, 32 added for each. A larger list ends its stream with ENHANCE_YOUR_CALM, one
    of more than `HARD_LIST_FACTOR` times this size, compressed or not, the connection. gRPC's own servers take as much.
    Small fields take four times their size here, and are held as long as their request: 60 MB for as many as may be in flight."""

    # Abuse
    reset_allowance: int = 2048
    """Streams that the client opens and then resets, or that end by its errors: rapid reset costs the server the
    start of a request, and the client nothing."""
    reset_refill: int = 512
    """What `reset_allowance` gains per tick. Each stream that ends well adds one."""
    frame_allowance: int = 10_000
    """Frames without use: PING, SETTINGS, PRIORITY, WINDOW_UPDATE, RST_STREAM on closed streams, unknown types,
    CONTINUATION, empty DATA. They cost 1 to 2 µs each."""
    frame_refill: int = 2_000
    """What `frame_allowance` gains per tick. Each frame that carries a request or data adds some, since clients
    measure bandwidth by PING and open windows as data comes."""
    max_unread_replies: int = 1 << 20
    """Bytes of frames other than DATA that wait while the client does not read."""
    max_output_burst: int = 1 << 20
    """Bytes of DATA moved to the output before the front end is asked whether the transport takes more."""
