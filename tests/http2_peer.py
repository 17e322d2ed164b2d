"""A client's side of HTTP/2 spelled out frame by frame, for what no library would send."""

from __future__ import annotations

import struct

from hpack import Encoder
from hyperframe.frame import ContinuationFrame, Frame, GoAwayFrame, HeadersFrame, PingFrame, RstStreamFrame

from bireme.wire.http2 import ErrorCode, Http2Limits
from http2_client import REQUEST_HEADERS, Server, parse_frames

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = (
    range(10)
)
ACK = END_STREAM = 0x1
END_HEADERS = 0x4
PADDED = 0x8
HAS_PRIORITY = 0x20


def frame(kind, flags=0, stream_id=0, payload=b"", *, length=None):
    """Return a frame. ``length``: what its header says instead of the truth."""
    length = len(payload) if length is None else length
    return struct.pack(">IBI", length << 8 | kind, flags, stream_id) + payload


def encode(fields):
    """Return a header block that refers to no entry of the dynamic table."""
    return Encoder().encode(fields)


REQUEST = encode(REQUEST_HEADERS)


def headers(stream_id=1, block=REQUEST, flags=END_HEADERS):
    return frame(HEADERS, flags, stream_id, block)


def request(stream_id=1, body=None, extra=()):
    """Return a whole request, with DATA unless ``body`` is None."""
    block = encode([*REQUEST_HEADERS, *extra]) if extra else REQUEST
    if body is None:
        return headers(stream_id, block, END_HEADERS | END_STREAM)
    return headers(stream_id, block) + data(stream_id, body, END_STREAM)


def data(stream_id=1, body=b"", flags=0):
    return frame(DATA, flags, stream_id, body)


def settings(*pairs, flags=0):
    return frame(SETTINGS, flags, 0, b"".join(struct.pack(">HI", key, value) for key, value in pairs))


def window_update(stream_id, increment):
    return frame(WINDOW_UPDATE, 0, stream_id, struct.pack(">I", increment))


def rst_stream(stream_id=1, code=ErrorCode.CANCEL):
    return frame(RST_STREAM, 0, stream_id, struct.pack(">I", code))


def goaway(last_stream_id=0, code=0, message=b""):
    return frame(GOAWAY, 0, 0, struct.pack(">II", last_stream_id, code) + message)


def ping(payload=b"12345678", flags=0):
    return frame(PING, flags, 0, payload)


def priority(stream_id=1, depends_on=0, weight=15):
    return frame(PRIORITY, 0, stream_id, struct.pack(">IB", depends_on, weight))


def continuation(stream_id=1, block=b"", flags=0):
    return frame(CONTINUATION, flags, stream_id, block)


START = PREFACE + settings()
"""What a client sends first."""

SMALL = Http2Limits(
    stream_window=1 << 16, connection_window=1 << 17, max_frame_size=1 << 14, max_concurrent_streams=4
)
"""Limits that a test can reach."""


class Peer(Server):
    """A server, and what it makes of a client's bytes. ``frames`` is all that it has sent."""

    def __init__(self, limits=None, *, start=START, **options):
        super().__init__(limits, **options)
        self.frames: list[Frame] = []
        self.exchange(start)

    @property
    def calls(self):
        return self.handler.calls

    def feed_cut(self, sent, sizes):
        """Let ``sent`` arrive in pieces of at most ``sizes``, the last of which is repeated."""
        position = 0
        for size in sizes[:-1]:
            self.feed(sent[position : position + size])
            position += size
        self.feed(sent[position:], sizes[-1])

    def exchange(self, sent):
        """Let ``sent`` arrive; return the frames that the server sends then."""
        self.feed(sent)
        return self.take_frames()

    def take_frames(self):
        frames = parse_frames(self.take())
        self.frames += frames
        return frames

    def is_alive(self):
        """Whether the server still answers."""
        return is_ping_ack(self.exchange(ping(b"is alive")), b"is alive")

    def resets_sent(self):
        return {
            sent.stream_id: ErrorCode(sent.error_code)
            for sent in self.frames
            if isinstance(sent, RstStreamFrame)
        }

    def goaway_code(self):
        """Why the server has ended the connection, by its last frame; None: it has not."""
        if not self.connection.is_closed:
            return None
        last = self.frames[-1]
        assert isinstance(last, GoAwayFrame)
        return ErrorCode(last.error_code)


def is_ping_ack(frames, payload):
    return any(
        isinstance(sent, PingFrame) and "ACK" in sent.flags and sent.opaque_data == payload for sent in frames
    )


def check_sequence(frames):
    """Check that what a server has sent over a connection's life is in an order that it may have."""
    assert not frames or frames[0].type == SETTINGS
    block_stream_id = None
    ended = set()
    reset = set()
    for sent in frames:
        stream_id = sent.stream_id
        assert isinstance(sent, ContinuationFrame) == (block_stream_id is not None)
        assert block_stream_id in (None, stream_id)
        if isinstance(sent, (HeadersFrame, ContinuationFrame)):
            block_stream_id = None if "END_HEADERS" in sent.flags else stream_id
        if not stream_id:
            continue
        assert stream_id % 2 == 1
        assert stream_id not in reset, "a frame after RST_STREAM"
        if isinstance(sent, RstStreamFrame):
            reset.add(stream_id)
        elif not isinstance(sent, ContinuationFrame) and sent.type != WINDOW_UPDATE:
            assert stream_id not in ended, "a frame after END_STREAM"
        if "END_STREAM" in sent.flags:
            ended.add(stream_id)
    assert block_stream_id is None, "the output ends within a header block"
