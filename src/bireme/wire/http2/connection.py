"""Http2Connection: the server's side of an HTTP/2 connection that carries gRPC. Pure: bytes in, bytes out.

Four classes, one on the other: `Sending` has the output, the peer's windows and the queues; `FrameReader` finds frames in what
comes; `Receiving` makes requests of HEADERS and DATA; and this one has the frames that manage the connection, and what
the front end does with it as a whole. Source throughout: RFC 9113, by sections.
"""

from __future__ import annotations

from typing import Final

from bireme.wire.http2 import frames
from bireme.wire.http2.errors import ErrorCode, ProtocolViolation
from bireme.wire.http2.frames import (
    ACK,
    MAX_WINDOW,
    PING,
    PRIORITY,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    WORD,
)
from bireme.wire.http2.limits import HARD_LIST_FACTOR, Http2Limits
from bireme.wire.http2.receiving import Receiving
from bireme.wire.http2.settings import MAX_SETTINGS_SIZE, announce, read_settings
from bireme.wire.http2.stream import Handler

_SIZES: Final = {PRIORITY: 5, RST_STREAM: 4, PING: 8, WINDOW_UPDATE: 4, SETTINGS: MAX_SETTINGS_SIZE}
_SETTINGS_COST: Final = 8


class Http2Connection(Receiving):
    """One client's connection. See `FrameReader` for the bytes that come in and `Sending` for what goes out."""

    __slots__ = ("is_going_away", "is_peer_going_away")

    def __init__(self, handler: Handler, limits: Http2Limits = Http2Limits()) -> None:  # noqa: B008 (frozen)
        """Begin a connection: `output` holds what a server sends first."""
        super().__init__(handler, limits)
        self.is_going_away = False
        """Whether a GOAWAY was sent."""
        self.is_peer_going_away = False
        """Whether the client has said that it will open no more streams."""
        self.output.append(announce(limits))

    # The front end

    def send_ping(self, data: bytes) -> None:
        """Send a PING with eight bytes, which `Handler.ping_acknowledged` gets back."""
        if not self.is_closed:
            self._emit(frames.ping(data))

    def go_away(self, code: ErrorCode, message: bytes = b"", *, last_stream_id: int | None = None) -> None:
        """Tell the client that no stream after ``last_stream_id`` is taken; None: after the last one that has come.

        Later ones are refused. A code other than NO_ERROR ends the connection.
        """
        if self.is_closed:
            return
        self._accepted_id = min(
            self._accepted_id, self._last_stream_id if last_stream_id is None else last_stream_id
        )
        self.is_going_away = True
        self._emit(frames.goaway(self._accepted_id, code, message))
        if code is not ErrorCode.NO_ERROR and not self.is_closed:
            self._close(message.decode("utf-8", "replace"), code)

    def tick(self) -> None:
        """Refill the allowances; to be called about once a second."""
        self._frame_allowance.tick(self._useful_frames_worth())
        self._reset_allowance.tick(self._num_opened - self._num_resets)

    def connection_lost(self) -> None:
        """The peer is gone: report the end of all streams."""
        if not self.is_closed:
            self._close("the client has left", ErrorCode.CANCEL)

    # Other frames

    def _take_priority(self, flags: int, stream_id: int, start: int, end: int) -> None:  # noqa: ARG002
        if not stream_id:
            raise ProtocolViolation(ErrorCode.PROTOCOL_ERROR, "PRIORITY on stream 0")
        if end - start != 5:
            if stream_id not in self.streams:  # an idle or closed stream cannot be reset
                raise ProtocolViolation(ErrorCode.FRAME_SIZE_ERROR, f"PRIORITY of {end - start} bytes")
            self._fail_stream(stream_id, ErrorCode.FRAME_SIZE_ERROR)
        self._charge(1)

    def _take_rst_stream(self, flags: int, stream_id: int, start: int, end: int) -> None:  # noqa: ARG002
        if end - start != 4:
            raise ProtocolViolation(ErrorCode.FRAME_SIZE_ERROR, f"RST_STREAM of {end - start} bytes")
        stream = self.streams.get(stream_id)
        if stream is None:
            self._check_not_idle(stream_id, "RST_STREAM")
            self._reset_ids.pop(stream_id, None)
            self._charge(1)
            return
        self._abandon(stream, WORD.unpack_from(self._buffer, start)[0])
        self._charge_reset()

    def _take_settings(self, flags: int, stream_id: int, start: int, end: int) -> None:
        if stream_id:
            raise ProtocolViolation(ErrorCode.PROTOCOL_ERROR, f"SETTINGS on stream {stream_id}")
        if flags & ACK:
            self._take_settings_ack(end - start)
            return
        if end - start > MAX_SETTINGS_SIZE:
            raise ProtocolViolation(ErrorCode.ENHANCE_YOUR_CALM, f"SETTINGS of {end - start} bytes")
        settings = read_settings(self._buffer[start:end])
        self._charge(_SETTINGS_COST)
        self._only_kind = None
        for key, value in settings:
            if key == frames.HEADER_TABLE_SIZE:
                # RFC 7541 section 4.2. Ours is empty anyway, and made to stay so.
                if value < frames.DEFAULT_HEADER_TABLE_SIZE:
                    self._table_update = frames.EMPTY_TABLE
            elif key == frames.MAX_FRAME_SIZE:
                self._peer_max_frame_size = value
            elif key == frames.INITIAL_WINDOW_SIZE:
                self._move_windows(value)
        self._emit(frames.SETTINGS_ACK)
        self._pump()

    def _take_settings_ack(self, length: int) -> None:
        if length:
            raise ProtocolViolation(ErrorCode.FRAME_SIZE_ERROR, "SETTINGS that acknowledge with a payload")
        if self._only_kind is not None:
            raise ProtocolViolation(ErrorCode.PROTOCOL_ERROR, "an acknowledgement in place of SETTINGS")
        self._charge(1)
        change = self._limits.stream_window - self._stream_window
        if change:  # the client knows now that its windows are smaller than they were by default
            self._stream_window += change
            for stream in self.streams.values():
                stream.receive_window += change
                self._count_stream_received(stream, 0)

    def _move_windows(self, size: int) -> None:
        """Apply a new initial window to the streams that are open. Source: section 6.9.2."""
        change = size - self._peer_initial_window
        self._peer_initial_window = size
        if not change:
            return
        self._charge(len(self.streams) // 4)
        for stream in self.streams.values():
            stream.window += change
            if stream.window > MAX_WINDOW:
                raise ProtocolViolation(
                    ErrorCode.FLOW_CONTROL_ERROR, "a stream's window of more than 2^31 - 1"
                )
            if stream.unsent_size and stream.window > 0:
                self._ready[stream.id] = stream
            else:
                self._ready.pop(stream.id, None)

    def _take_push_promise(self, flags: int, stream_id: int, start: int, end: int) -> None:  # noqa: ARG002
        raise ProtocolViolation(ErrorCode.PROTOCOL_ERROR, "PUSH_PROMISE from a client")

    def _take_ping(self, flags: int, stream_id: int, start: int, end: int) -> None:
        if stream_id:
            raise ProtocolViolation(ErrorCode.PROTOCOL_ERROR, f"PING on stream {stream_id}")
        if end - start != 8:
            raise ProtocolViolation(ErrorCode.FRAME_SIZE_ERROR, f"PING of {end - start} bytes")
        data = self._buffer[start:end].tobytes()
        self._charge(1)
        if flags & ACK:
            self._handler.ping_acknowledged(data)
        elif self._handler.ping_received() and not self.is_closed:
            self._emit(frames.ping(data, ACK))

    def _take_goaway(self, flags: int, stream_id: int, start: int, end: int) -> None:  # noqa: ARG002
        if stream_id:
            raise ProtocolViolation(ErrorCode.PROTOCOL_ERROR, f"GOAWAY on stream {stream_id}")
        if end - start < 8:
            raise ProtocolViolation(ErrorCode.FRAME_SIZE_ERROR, f"GOAWAY of {end - start} bytes")
        self._charge(1)
        self.is_peer_going_away = True

    def _take_window_update(self, flags: int, stream_id: int, start: int, end: int) -> None:  # noqa: ARG002
        if end - start != 4:
            raise ProtocolViolation(ErrorCode.FRAME_SIZE_ERROR, f"WINDOW_UPDATE of {end - start} bytes")
        self._charge(1)
        increment = WORD.unpack_from(self._buffer, start)[0] & MAX_WINDOW
        if not stream_id:
            self._open_window(increment)
            return
        stream = self.streams.get(stream_id)
        if stream is None:
            self._check_not_idle(stream_id, "WINDOW_UPDATE")
            return
        if not increment:
            self._fail_stream(stream_id, ErrorCode.PROTOCOL_ERROR)
            return
        stream.window += increment
        if stream.window > MAX_WINDOW:
            self._fail_stream(stream_id, ErrorCode.FLOW_CONTROL_ERROR)
            return
        self._make_ready(stream)

    def _open_window(self, increment: int) -> None:
        if not increment:
            raise ProtocolViolation(ErrorCode.PROTOCOL_ERROR, "WINDOW_UPDATE by 0")
        self._send_window += increment
        if self._send_window > MAX_WINDOW:
            raise ProtocolViolation(ErrorCode.FLOW_CONTROL_ERROR, "a connection window of more than 2^31 - 1")
        self._pump()

    def _take_unknown(self, flags: int, stream_id: int, start: int, end: int) -> None:  # noqa: ARG002
        self._charge(1)

    def _max_size_of(self, kind: int) -> int:
        return _SIZES.get(kind, HARD_LIST_FACTOR * self._limits.max_header_list_size)

    _dispatch = (
        Receiving._take_data,  # noqa: SLF001 (its own)
        Receiving._take_headers,  # noqa: SLF001 (its own)
        _take_priority,
        _take_rst_stream,
        _take_settings,
        _take_push_promise,
        _take_ping,
        _take_goaway,
        _take_window_update,
        Receiving._take_continuation,  # noqa: SLF001 (its own)
        _take_unknown,
    )

    def __repr__(self) -> str:
        state = "closed" if self.is_closed else "going away" if self.is_going_away else "open"
        return f"Http2Connection({state}, last stream {self._last_stream_id}, in flight {len(self.streams)})"
