"""Receiving: what a client's HEADERS and DATA mean, frame by frame: requests begin, get their data, end, or are refused.

A broken rule ends the stream (`_fail_stream`, RST_STREAM) or the whole connection (`ProtocolViolation`, GOAWAY). What costs
the server something and the client nothing is charged against allowances (`flood`). Source: RFC 9113, sections 5 to 8.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from bireme.wire.http2 import frames
from bireme.wire.http2.errors import ErrorCode, MalformedRequest, ProtocolViolation
from bireme.wire.http2.flood import Allowance
from bireme.wire.http2.frame_reader import FrameReader
from bireme.wire.http2.frames import (
    CONTINUATION,
    DEFAULT_WINDOW,
    END_HEADERS,
    END_STREAM,
    HAS_PRIORITY,
    PADDED,
)
from bireme.wire.http2.header_decoder import HeaderDecoder
from bireme.wire.http2.headers import RequestHead, check_trailers
from bireme.wire.http2.limits import HARD_LIST_FACTOR, Http2Limits
from bireme.wire.http2.stream import Handler, Stream

_MAX_GAPS: Final = 32
_STREAM_WORTH: Final = 4
"""Frames without use that each request earns: WINDOW_UPDATE and PING for its answer, twice over."""
_DATA_WORTH: Final = 2
_PADDED_OR_PRIORITY: Final = PADDED | HAS_PRIORITY

_UNREAD: Final = Stream(0, RequestHead({b":method": b""}, []), 0, 0, is_half_closed=True)
"""Stands for the stream of DATA that nobody reads."""
_UNREAD.is_closed = True


class Receiving(FrameReader):
    """Requests. `Http2Connection` adds the frames that manage the connection."""

    __slots__ = (
        "_block",
        "_block_flags",
        "_block_stream_id",
        "_decoder",
        "_find_head",
        "_frame_allowance",
        "_gaps",
        "_least_window",
        "_num_opened",
        "_num_resets",
        "_receive_window",
        "_reset_allowance",
        "_stream_window",
    )

    def __init__(self, handler: Handler, limits: Http2Limits) -> None:
        super().__init__(handler, limits)
        self._decoder = HeaderDecoder(limits.max_header_list_size)
        self._find_head = self._decoder.find
        self._gaps: deque[range] = deque(maxlen=_MAX_GAPS)
        """Stream numbers that the client has passed over."""

        # A header block that comes in several frames
        self._block: bytearray | None = None
        self._block_stream_id = 0
        self._block_flags = 0

        # Windows for what the client sends
        self._receive_window = max(limits.connection_window, DEFAULT_WINDOW)
        self._least_window = self._receive_window // 2
        """The connection's window is opened again when it is smaller than this."""
        self._stream_window = max(limits.stream_window, DEFAULT_WINDOW)  # until the client knows ours

        # Abuse
        self._num_opened = 0
        self._num_resets = 0
        self._frame_allowance = Allowance("frames without use", limits.frame_allowance, limits.frame_refill)
        self._reset_allowance = Allowance("streams reset", limits.reset_allowance, limits.reset_refill)

    # DATA

    def _take_data(self, flags: int, stream_id: int, start: int, end: int) -> None:
        length = end - start
        stream = self.streams.get(stream_id)
        window = self._receive_window - length
        if (
            stream is None
            or not flags & END_STREAM
            or flags & PADDED
            or not length
            or stream.is_half_closed
            or stream.content_left >= 0
            or length > stream.receive_window
            or window < self._least_window
        ):
            self._take_any_data(flags, stream_id, start, end)
            return
        # What remains is by far the most frequent: the last or only DATA of a request, which costs 0.5 µs less this way.
        self._receive_window = window
        self._num_useful += 1
        stream.is_half_closed = True
        stream.sink.receive(self._buffer[start:end])
        stream.sink.end()

    def _take_any_data(self, flags: int, stream_id: int, start: int, end: int) -> None:
        length = end - start
        padding = 0
        if flags & PADDED:
            if not length:
                raise ProtocolViolation(ErrorCode.FRAME_SIZE_ERROR, "padded DATA without a padding length")
            padding = self._buffer[start]
        stream = self._admit_data(flags, stream_id, length, padding)
        if flags & PADDED:
            start += 1
            end -= padding
        if end > start:
            stream.sink.receive(self._buffer[start:end])
        if flags & END_STREAM:
            stream.sink.end()

    def _admit_data(self, flags: int, stream_id: int, length: int, padding: int) -> Stream:
        if not stream_id:
            raise ProtocolViolation(ErrorCode.PROTOCOL_ERROR, "DATA on stream 0")
        if flags & PADDED and padding >= length:
            raise ProtocolViolation(ErrorCode.PROTOCOL_ERROR, "more padding than DATA")
        self._count_received(length)
        stream = self.streams.get(stream_id)
        if stream is None:
            self._take_late(flags, stream_id, "DATA")
            return _UNREAD
        if stream.is_half_closed:
            return self._fail_data(stream, ErrorCode.STREAM_CLOSED)
        if length > stream.receive_window:
            return self._fail_data(stream, ErrorCode.FLOW_CONTROL_ERROR)
        size = length - (padding + 1 if flags & PADDED else 0)
        if size:
            self._num_useful += 1 + (size >> 12)
        elif not flags & END_STREAM:
            self._charge(1)
        if stream.content_left >= 0 and not self._is_content(stream, size, flags):
            return self._fail_data(stream, ErrorCode.PROTOCOL_ERROR)
        if flags & END_STREAM:
            stream.is_half_closed = True
        else:
            self._count_stream_received(stream, length)
        return stream

    def _is_content(self, stream: Stream, size: int, flags: int) -> bool:
        """Count DATA against its content-length; return whether it agrees with that."""
        stream.content_left -= size
        return stream.content_left == 0 or (stream.content_left > 0 and not flags & END_STREAM)

    def _fail_data(self, stream: Stream, code: ErrorCode) -> Stream:
        self._fail_stream(stream.id, code)
        return _UNREAD

    def _count_received(self, length: int) -> None:
        """Count DATA against the connection's window, and open it again when half of it is used."""
        window = self._receive_window - length
        if window < 0:
            raise ProtocolViolation(ErrorCode.FLOW_CONTROL_ERROR, "more DATA than the connection's window")
        if window < self._least_window:
            size = max(self._limits.connection_window, DEFAULT_WINDOW)
            self._emit(frames.window_update(0, size - window))
            window = size
        self._receive_window = window

    def _count_stream_received(self, stream: Stream, length: int) -> None:
        window = stream.receive_window - length
        if window < self._stream_window // 2:
            self._emit(frames.window_update(stream.id, self._stream_window - window))
            window = self._stream_window
        stream.receive_window = window

    # HEADERS

    def _take_headers(self, flags: int, stream_id: int, start: int, end: int) -> None:
        if not stream_id & 1:
            raise ProtocolViolation(ErrorCode.PROTOCOL_ERROR, f"HEADERS on stream {stream_id}")
        self._check_block_size(end - start)
        if flags & _PADDED_OR_PRIORITY:
            start, end = self._strip_headers(flags, start, end)
        if flags & END_HEADERS:
            self._take_block(flags, stream_id, self._buffer[start:end].tobytes())
            return
        self._block = bytearray(self._buffer[start:end])
        self._block_stream_id = stream_id
        self._block_flags = flags
        self._only_kind = CONTINUATION

    def _take_continuation(self, flags: int, stream_id: int, start: int, end: int) -> None:
        block = self._block
        if block is None or stream_id != self._block_stream_id:
            raise ProtocolViolation(ErrorCode.PROTOCOL_ERROR, f"CONTINUATION on stream {stream_id}")
        self._charge(1)
        self._check_block_size(len(block) + end - start)
        block += self._buffer[start:end]
        if flags & END_HEADERS:
            self._block = None
            self._only_kind = None
            self._take_block(self._block_flags, stream_id, bytes(block))

    def _check_block_size(self, size: int) -> None:
        if size > HARD_LIST_FACTOR * self._limits.max_header_list_size:
            raise ProtocolViolation(ErrorCode.ENHANCE_YOUR_CALM, f"a header block of {size} bytes or more")

    def _strip_headers(self, flags: int, start: int, end: int) -> tuple[int, int]:
        """Return where the block in a HEADERS frame with padding or a priority starts and ends."""
        if end - start < (1 if flags & PADDED else 0) + (5 if flags & HAS_PRIORITY else 0):
            raise ProtocolViolation(ErrorCode.FRAME_SIZE_ERROR, f"HEADERS of {end - start} bytes")
        if flags & PADDED:
            end -= self._buffer[start]
            start += 1
        if flags & HAS_PRIORITY:
            start += 5
        if end < start:
            raise ProtocolViolation(ErrorCode.PROTOCOL_ERROR, "more padding than HEADERS")
        return start, end

    def _take_block(self, flags: int, stream_id: int, block: bytes) -> None:
        """Take a complete header block: it opens a stream, or is the trailers of one."""
        head = self._find_head(block)
        last_stream_id = self._last_stream_id
        if stream_id <= last_stream_id:
            self._take_late_block(flags, stream_id, block)
            return
        if stream_id != last_stream_id + 2 and stream_id != 1:
            self._gaps.append(range(last_stream_id + 1, stream_id))
        self._last_stream_id = stream_id
        self._num_opened += 1
        if head is None:
            head = self._read_head(stream_id, block)
            if head is None:
                return
        is_half_closed = bool(flags & END_STREAM)
        if is_half_closed and head.content_length > 0:
            self._fail_stream(stream_id, ErrorCode.PROTOCOL_ERROR)
            return
        if len(self.streams) >= self._limits.max_concurrent_streams or stream_id > self._accepted_id:
            self._fail_stream(stream_id, ErrorCode.REFUSED_STREAM)
            return
        stream = Stream(
            stream_id,
            head,
            self._peer_initial_window,
            self._stream_window,
            is_half_closed=is_half_closed,
        )
        self.streams[stream_id] = stream
        receiver = self._handler.open_stream(stream)
        if not stream.is_closed and stream.trailers is None:
            stream.sink = stream.receiver = receiver
            if is_half_closed:
                receiver.end()

    def _read_head(self, stream_id: int, block: bytes) -> RequestHead | None:
        try:
            return self._decoder.decode_request(block)
        except MalformedRequest as error:
            self._fail_stream(stream_id, error.code)
            return None

    def _take_late_block(self, flags: int, stream_id: int, block: bytes) -> None:
        """Take a header block on a stream that is, or was, open: trailers. It is decoded in any case, for the table."""
        stream = self.streams.get(stream_id)
        if stream is None:
            self._take_late(flags, stream_id, "HEADERS")
        code = ErrorCode.NO_ERROR
        try:
            check_trailers(self._decoder.decode(block))
        except MalformedRequest as error:
            code = error.code
        if stream is None:
            return
        if stream.is_half_closed:
            code = ErrorCode.STREAM_CLOSED
        elif not flags & END_STREAM or stream.content_left > 0:
            code = ErrorCode.PROTOCOL_ERROR
        if code is not ErrorCode.NO_ERROR:
            self._fail_stream(stream_id, code)
            return
        stream.is_half_closed = True
        stream.sink.end()

    # Errors

    def _check_not_idle(self, stream_id: int, what: str) -> None:
        """Check that a frame is not for stream 0 or one that was never opened. Source: section 5.1."""
        if stream_id > self._last_stream_id or not stream_id & 1:
            raise ProtocolViolation(ErrorCode.PROTOCOL_ERROR, f"{what} on idle stream {stream_id}")

    def _take_late(self, flags: int, stream_id: int, what: str) -> None:
        """Take a frame for a stream that is not open, if it was on its way when we reset that."""
        self._check_not_idle(stream_id, what)
        if stream_id in self._reset_ids or stream_id <= self._forgotten_id:
            self._charge(1)
            if flags & END_STREAM:
                self._reset_ids.pop(stream_id, None)
            return
        if any(stream_id in gap for gap in self._gaps):
            raise ProtocolViolation(
                ErrorCode.PROTOCOL_ERROR, f"{what} on stream {stream_id} after {self._last_stream_id}"
            )
        raise ProtocolViolation(ErrorCode.STREAM_CLOSED, f"{what} on closed stream {stream_id}")

    def _fail_stream(self, stream_id: int, code: ErrorCode) -> None:
        """End one stream by the client's fault."""
        stream = self.streams.get(stream_id)
        self._emit_reset(stream_id, code)
        if stream is not None and not stream.is_closed:
            self._abandon(stream, code)
        self._charge_reset()

    def _charge(self, cost: int) -> None:
        self._frame_allowance.charge(cost, self._useful_frames_worth())

    def _charge_reset(self) -> None:
        self._num_resets += 1
        self._reset_allowance.charge(1, self._num_opened - self._num_resets)

    def _useful_frames_worth(self) -> int:
        return _STREAM_WORTH * self._num_opened + _DATA_WORTH * self._num_useful
