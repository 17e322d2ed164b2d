"""FrameReader: the receiving half of a connection, bytes → frames, and the bytes of DATA → their receivers.

Bytes come through a scratch buffer that all connections of a listener share, and are parsed where they lie. What is left of
a frame that has not come whole is one of three things (`_Rest`): its first bytes, kept aside until the others come; the rest
of a DATA frame, received into the message's own memory when its receiver has some; or bytes that are to be passed over.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Any, ClassVar, Final

from bireme.wire.http2.errors import ErrorCode, ProtocolViolation
from bireme.wire.http2.frames import (
    DATA,
    END_STREAM,
    FRAME_HEADER_SIZE,
    GOAWAY,
    HEADER,
    MAX_STREAM_ID,
    PADDED,
    PREFACE,
    SETTINGS,
    UNKNOWN,
)
from bireme.wire.http2.limits import Http2Limits
from bireme.wire.http2.sending import Sending
from bireme.wire.http2.stream import Handler, Stream

if TYPE_CHECKING:
    from collections.abc import Callable

    TakeFrame = Callable[[Any, int, int, int, int], None]
    """Takes a whole frame: connection, flags, stream, and where its payload starts and ends in the buffer. It checks the
    size of the payload before it looks at it."""

_MAX_KEPT_SIZE: Final = 1024
"""The beginning of a frame that is at most so long is copied back into the scratch buffer before more is read; longer
frames get memory of their own, so that one that arrives in drops is not copied over and over."""
_SCRATCH_SHARE: Final = 4
"""Data that fills no more than this part of the scratch buffer is read there, with what follows it, and copied: many clients
send frames of 16 KB, of which a read for each rest and another for each header cost twice the reads, 5 µs each."""
_unpack = HEADER.unpack_from


class _Rest(Enum):
    """What the next bytes are."""

    NONE = 0
    """A new frame."""
    PREFACE = 1
    """What is missing of the connection preface."""
    FRAME = 2
    """What is missing of the frame whose first bytes are kept."""
    DATA = 3
    SKIPPED = 4
    """Padding, or the payload of a frame of which no more needs to be known."""


_NONE: Final = _Rest.NONE


class FrameReader(Sending):
    """Finds the frames in what a client sends. `Http2Connection` is what gives them their meaning."""

    __slots__ = (
        "_buffer",
        "_data_left",
        "_data_stream",
        "_ends_stream",
        "_kept",
        "_max_word",
        "_num_kept",
        "_only_kind",
        "_own_memory",
        "_rest",
        "_skip_left",
        "_target",
    )

    _dispatch: ClassVar[tuple[TakeFrame, ...]]
    """By the frame's type; the last is for all unknown ones. Of the class: bound methods would keep a connection alive."""

    def __init__(self, handler: Handler, limits: Http2Limits) -> None:
        super().__init__(handler, limits)
        self._max_word = limits.max_frame_size << 8 | 0xFF
        """The highest first word of a frame that is not too long."""
        self._buffer = memoryview(b"")
        """Where the bytes being parsed lie."""
        self._only_kind: int | None = SETTINGS
        """The type that the next frame must be of; None: any."""
        self._rest = _Rest.PREFACE
        self._kept = b""
        self._num_kept = 0
        """Bytes at the beginning of the buffer that came earlier."""
        self._own_memory: memoryview | None = None
        """Takes the place of the scratch buffer until a long frame is complete."""
        self._target: memoryview | None = None
        """Memory of the message that the next bytes go to."""
        self._data_stream: Stream | None = None
        self._data_left = 0
        self._ends_stream = False
        self._skip_left = len(PREFACE)
        """Bytes to pass over: padding, say. At first, bytes missing of the preface."""

    # Transport → protocol

    def get_buffer(self, scratch: memoryview) -> memoryview:
        """Return where the next bytes go: ``scratch`` or a part of it, or memory of a message that is being received.

        Between this call and `received`, nothing may use ``scratch``, which must have 2 KB at least.
        """
        rest = self._rest
        if rest is _NONE:
            self._buffer = scratch
            return scratch
        if rest is _Rest.FRAME:
            return self._get_frame_buffer(scratch)
        self._buffer = scratch
        self._target = None
        if rest is _Rest.DATA and self._data_left > len(scratch) // _SCRATCH_SHARE:
            assert self._data_stream is not None
            target = self._data_stream.sink.get_target(self._data_left)
            if target:
                self._target = target = target[: self._data_left]
                return target
        return scratch

    def received(self, num_bytes: int) -> None:
        """Take the bytes that came.

        Nothing that a peer sends raises an exception. One that the handler raises ends the connection with
        INTERNAL_ERROR and passes through.
        """
        if self.is_closed:
            return
        try:
            if self._rest is _NONE:
                self._parse(0, num_bytes)
            else:
                self._continue(num_bytes)
        except ProtocolViolation as violation:
            self._fail(violation.code, violation.message)
        except BaseException:
            self._fail(ErrorCode.INTERNAL_ERROR, "internal error")
            raise

    # Frames

    def _parse(self, position: int, stop: int) -> None:
        """Take the frames that begin in the buffer between ``position`` and ``stop``."""
        buffer = self._buffer
        while stop - position >= FRAME_HEADER_SIZE:
            word, flags, stream_id = _unpack(buffer, position)
            if word > self._max_word:
                raise ProtocolViolation(ErrorCode.FRAME_SIZE_ERROR, f"a frame of {word >> 8} bytes")
            start = position + FRAME_HEADER_SIZE
            end = start + (word >> 8)
            if end > stop:
                self._take_partial(word, flags, stream_id & MAX_STREAM_ID, start, stop)
                return
            kind = word & 0xFF
            if self._only_kind is not None and kind != self._only_kind:
                self._refuse_kind(kind)
            self._dispatch[kind if kind < UNKNOWN else UNKNOWN](  # noqa: FURB136 (min takes 0.1 µs)
                self, flags, stream_id & MAX_STREAM_ID, start, end
            )
            if self.is_closed:
                return
            position = end
        if position < stop:
            self._keep(position, stop, FRAME_HEADER_SIZE)

    def _take_partial(self, word: int, flags: int, stream_id: int, start: int, stop: int) -> None:
        """Take the beginning of a frame, from its payload at ``start`` on."""
        length = word >> 8
        kind = word & 0xFF
        if self._only_kind is not None and kind != self._only_kind:
            self._refuse_kind(kind)
        kind = min(kind, UNKNOWN)
        if kind == DATA:
            self._start_data(flags, stream_id, length, start, stop)
        elif kind in (UNKNOWN, GOAWAY) or length > self._max_size_of(kind):
            # Its payload is not needed, or it is refused.
            self._dispatch[kind](self, flags, stream_id, start, start + length)
            self._skip(length, start, stop)
        else:
            self._keep(start - FRAME_HEADER_SIZE, stop, FRAME_HEADER_SIZE + length)

    def _refuse_kind(self, kind: int) -> None:
        raise ProtocolViolation(
            ErrorCode.PROTOCOL_ERROR, f"a frame of type {kind} where one of type {self._only_kind} must come"
        )

    def _max_size_of(self, kind: int) -> int:
        """Return how large a frame may be for it to be collected; larger ones are refused when their header comes."""
        raise NotImplementedError

    def _continue(self, num_bytes: int) -> None:
        """Take bytes that do not begin a frame."""
        rest = self._rest
        if rest is _Rest.FRAME:
            stop = self._num_kept + num_bytes
            self._rest = _NONE
            self._num_kept = 0
            self._parse(0, stop)
            if self._rest is not _Rest.FRAME:
                self._own_memory = None
        elif rest is _Rest.DATA:
            self._take_more_data(num_bytes)
        elif rest is _Rest.PREFACE:
            self._take_preface(num_bytes)
        else:
            self._rest = _NONE
            self._skip(self._skip_left, 0, num_bytes)

    def _take_preface(self, num_bytes: int) -> None:
        num_here = min(self._skip_left, num_bytes)
        start = len(PREFACE) - self._skip_left
        if self._buffer[:num_here] != PREFACE[start : start + num_here]:
            raise ProtocolViolation(ErrorCode.PROTOCOL_ERROR, "the client does not speak HTTP/2")
        self._skip_left -= num_here
        if not self._skip_left:
            self._rest = _NONE
            self._parse(num_here, num_bytes)

    # Frames that have not come whole

    def _keep(self, position: int, stop: int, size: int) -> None:
        """Keep the beginning of a frame that is ``size`` bytes long in all, as far as is known."""
        self._rest = _Rest.FRAME
        num_kept = self._num_kept = stop - position
        if self._own_memory is not None and position == 0:
            return  # it lies where it is
        if size <= _MAX_KEPT_SIZE:
            self._kept = self._buffer[position:stop].tobytes()
            self._own_memory = None
            return
        memory = memoryview(bytearray(size))
        memory[:num_kept] = self._buffer[position:stop]
        self._own_memory = memory

    def _get_frame_buffer(self, scratch: memoryview) -> memoryview:
        memory = self._own_memory
        num_kept = self._num_kept
        if memory is None:
            memory = scratch
            memory[:num_kept] = self._kept
        self._buffer = memory
        return memory[num_kept:]

    def _skip(self, size: int, start: int, stop: int) -> None:
        """Pass ``size`` bytes over from ``start`` on, of which not all may be here yet."""
        end = start + size
        if self.is_closed:
            return
        if end <= stop:
            self._parse(end, stop)
        else:
            self._rest = _Rest.SKIPPED
            self._skip_left = end - stop

    # DATA that has not come whole

    def _start_data(self, flags: int, stream_id: int, length: int, start: int, stop: int) -> None:
        padding = 0
        if flags & PADDED and length:
            if start == stop:  # how much padding there is has not come yet
                self._keep(start - FRAME_HEADER_SIZE, stop, FRAME_HEADER_SIZE + 1)
                return
            padding = self._buffer[start]
            start += 1
        stream = self._admit_data(flags, stream_id, length, padding)
        self._data_stream = stream
        self._data_left = length - padding - (1 if flags & PADDED else 0)
        self._skip_left = padding
        self._ends_stream = bool(flags & END_STREAM)
        self._rest = _Rest.DATA
        self._take_scratch_data(start, stop)

    def _take_more_data(self, num_bytes: int) -> None:
        stream = self._data_stream
        assert stream is not None
        if self._target is None:
            self._take_scratch_data(0, num_bytes)
            return
        self._target = None
        self._data_left -= num_bytes
        stream.sink.advance(num_bytes)
        if not self._data_left and not self.is_closed:
            self._finish_data(0, 0)

    def _take_scratch_data(self, start: int, stop: int) -> None:
        stream = self._data_stream
        assert stream is not None
        end = min(start + self._data_left, stop)
        self._data_left -= end - start
        if end > start:
            stream.sink.receive(self._buffer[start:end])
        if not self._data_left and not self.is_closed:
            self._finish_data(end, stop)

    def _finish_data(self, position: int, stop: int) -> None:
        """The data of a frame is complete; go on behind it."""
        stream, self._data_stream = self._data_stream, None
        assert stream is not None
        self._rest = _NONE
        if self._ends_stream:
            stream.sink.end()
        self._skip(self._skip_left, position, stop)

    def _admit_data(self, flags: int, stream_id: int, length: int, padding: int) -> Stream:
        """Count a DATA frame, of which nothing need be here yet, and return its stream.

        That is a closed one that discards the data if it comes in vain.

        Raises:
            ProtocolViolation: it must not come now.
        """
        raise NotImplementedError
