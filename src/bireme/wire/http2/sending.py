"""Sending: the half of a connection that answers. It makes frames, keeps to the peer's windows, and queues what must wait.

Frames other than DATA go to `output` at once. DATA goes there, too, as long as the windows of its stream and of the
connection allow and the transport takes more; what does not fit waits in its stream, uncopied, and the streams that could
go on take turns.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Sequence
from typing import Final

from bireme.types import Buffer
from bireme.wire.http2 import frames
from bireme.wire.http2.errors import ErrorCode
from bireme.wire.http2.frames import END_HEADERS, END_STREAM, HEADERS, pack_header
from bireme.wire.http2.limits import Http2Limits
from bireme.wire.http2.stream import DISCARD, Handler, Stream

JOIN_LIMIT: Final = 16 << 10
"""Answers up to this size are joined, with their frame headers if they go out at once; the pieces of larger ones are handed
on as they are."""

_TURN_SIZE: Final = 64 << 10
"""Bytes of DATA that a stream may send before it is another stream's turn."""
_MAX_RESET_IDS: Final = 1024
_LAST_HEADERS: Final = END_HEADERS | END_STREAM


class Sending:
    """Output, windows and queues. `FrameReader` and `Http2Connection` are what is built on it."""

    __slots__ = (
        "_accepted_id",
        "_backlog",
        "_forgotten_id",
        "_handler",
        "_last_stream_id",
        "_limits",
        "_num_useful",
        "_peer_initial_window",
        "_peer_max_frame_size",
        "_ready",
        "_reset_ids",
        "_room",
        "_send_window",
        "_table_update",
        "close_reason",
        "is_closed",
        "output",
        "streams",
    )

    def __init__(self, handler: Handler, limits: Http2Limits) -> None:
        self._handler = handler
        self._limits = limits
        self.output: list[Buffer] = []
        """What to write next."""
        self.streams: dict[int, Stream] = {}
        """Streams that are not closed, half-closed ones included."""
        self.is_closed = False
        """Whether the connection has ended, by an error or since the peer is gone: write the output, then close it."""
        self.close_reason = ""
        """Why it ended, for the log."""
        self._last_stream_id = 0
        """The highest that the client has used."""
        self._accepted_id = frames.MAX_STREAM_ID
        """The last that is not refused."""
        self._num_useful = 0
        """DATA frames with something in them, in both directions; each 4 KB of a large one count as one more."""

        # What the peer takes
        self._send_window = frames.DEFAULT_WINDOW
        self._peer_initial_window = frames.DEFAULT_WINDOW
        self._peer_max_frame_size = frames.MIN_MAX_FRAME_SIZE
        self._table_update = b""
        """Must begin the next header block: an update of the HPACK table's size that the peer has asked for."""

        # What waits
        self._room = limits.max_output_burst
        """Bytes of DATA that may go to the output before it is taken; -1 while the transport is paused."""
        self._backlog = 0
        """Bytes of other frames put out while the transport is paused."""
        self._ready: OrderedDict[int, Stream] = OrderedDict()
        """Streams with queued DATA and an open window of their own, in the order of their turns."""

        # Streams that we have reset while the peer may still have been sending
        self._reset_ids: OrderedDict[int, None] = OrderedDict()
        self._forgotten_id = 0
        """The highest of those that are not remembered any more."""

    # Transport

    def take_output(self) -> list[Buffer]:
        """Return what to write, and forget it.

        Call it until it returns nothing: large answers come in several parts, between which the transport may be
        paused (`is_writable`).
        """
        if self._ready and not self.output:
            self._pump()
        if self._room >= 0:
            self._room = self._limits.max_output_burst
        output, self.output = self.output, []
        return output

    @property
    def is_writable(self) -> bool:
        """False while the transport is paused: DATA stays in the streams."""
        return self._room >= 0

    @is_writable.setter
    def is_writable(self, value: bool) -> None:
        self._room = self._limits.max_output_burst if value else -1
        if value:
            self._backlog = 0

    def resume(self) -> None:
        """The transport takes more: move queued DATA to the output."""
        self.is_writable = True
        self._pump()

    # Answers

    def send_headers(self, stream: Stream, block: bytes, *, end_stream: bool = False) -> None:
        """Send a header block; with ``end_stream`` it is the whole answer."""
        if stream.is_closed:
            return
        if end_stream:
            self.finish(stream, block)
        else:
            self._emit_headers(stream.id, block, 0)

    def send_data(self, stream: Stream, pieces: Sequence[Buffer], size: int) -> None:
        """Send or queue ``size`` bytes of DATA. The pieces are borrowed until they are written."""
        if stream.is_closed or stream.trailers is not None or not size:
            return
        if (
            stream.unsent_size
            or size > self._room
            or size > self._send_window
            or size > stream.window
            or size > self._peer_max_frame_size
        ):
            self._queue(stream, pieces, size)
            return
        self._num_useful += 1 + (size >> 12)
        self._room -= size
        self._send_window -= size
        stream.window -= size
        if size <= JOIN_LIMIT:
            self.output.append(b"".join((pack_header(size << 8, 0, stream.id), *pieces)))
        else:
            self.output += (pack_header(size << 8, 0, stream.id), *pieces)

    def finish(self, stream: Stream, block: bytes) -> None:
        """End the answer by a block of trailers, behind all queued data.

        If the client has not ended its side, it is told then to stop. Nothing is reported to the handler after this,
        except that the queue has drained.
        """
        if stream.is_closed or stream.trailers is not None:
            return
        if stream.unsent_size:
            stream.trailers = block
            stream.sink = DISCARD
        else:
            self._end(stream, block)
            stream.receiver = DISCARD

    def answer(
        self, stream: Stream, block: bytes, pieces: Sequence[Buffer], size: int, trailers: bytes
    ) -> None:
        """Send a whole answer: header block, ``size`` bytes of DATA, trailers."""
        if (
            size > self._room
            or size > self._send_window
            or size > stream.window
            or size > JOIN_LIMIT
            or size > self._peer_max_frame_size
            or stream.unsent_size
            or stream.is_closed
            or self._table_update
        ):
            self.send_headers(stream, block)
            self.send_data(stream, pieces, size)
            self.finish(stream, trailers)
            return
        stream_id = stream.id
        self._room -= size
        self._send_window -= size
        self.output.append(
            b"".join(
                (
                    pack_header(len(block) << 8 | HEADERS, END_HEADERS, stream_id),
                    block,
                    pack_header(size << 8, 0, stream_id),
                    *pieces,
                    pack_header(len(trailers) << 8 | HEADERS, _LAST_HEADERS, stream_id),
                    trailers,
                )
            )
        )
        del self.streams[stream_id]
        stream.is_closed = True
        stream.sink = stream.receiver = DISCARD
        if not stream.is_half_closed:
            self._emit_reset(stream_id, ErrorCode.NO_ERROR)

    def reset(self, stream: Stream, code: ErrorCode) -> None:
        """End a stream at once; what is queued for it is dropped."""
        if not stream.is_closed:
            self._close_stream(stream)
            self._emit_reset(stream.id, code)
            stream.receiver = DISCARD

    # Frames

    def _emit(self, frame: bytes) -> None:
        """Put a frame other than DATA out. A peer that provokes such, but reads none, is sent away."""
        if self._room < 0:
            self._backlog += len(frame)
            if self._backlog > self._limits.max_unread_replies:
                self._fail(ErrorCode.ENHANCE_YOUR_CALM, "the client does not read what it asks for")
                return
        self.output.append(frame)

    def _emit_headers(self, stream_id: int, block: bytes, flags: int) -> None:
        if self._table_update:
            block = self._table_update + block
            self._table_update = b""
        self._emit(frames.headers(stream_id, block, flags, self._peer_max_frame_size))

    def _emit_reset(self, stream_id: int, code: ErrorCode) -> None:
        """Reset a stream, and remember to bear with what its peer has already sent."""
        self._emit(frames.rst_stream(stream_id, code))
        reset_ids = self._reset_ids
        reset_ids[stream_id] = None
        if len(reset_ids) > _MAX_RESET_IDS:
            self._forgotten_id = max(self._forgotten_id, reset_ids.popitem(last=False)[0])

    def _end(self, stream: Stream, trailers: bytes) -> None:
        self._close_stream(stream)
        self._emit_headers(stream.id, trailers, END_STREAM)
        if not stream.is_half_closed:
            self._emit_reset(stream.id, ErrorCode.NO_ERROR)

    def _close_stream(self, stream: Stream) -> None:
        stream.is_closed = True
        stream.sink = DISCARD
        self.streams.pop(stream.id, None)
        if stream.unsent_size:
            stream.unsent_size = 0
            self._ready.pop(stream.id, None)
        stream.queue = stream.trailers = None

    def _abandon(self, stream: Stream, code: int) -> None:
        """Close a stream early, and report that unless it has been answered."""
        is_answered = stream.trailers is not None
        self._close_stream(stream)
        if not is_answered:
            self._handler.reset_stream(stream, code)
        stream.receiver = DISCARD

    def _fail(self, code: ErrorCode, message: str) -> None:
        """End the connection: the peer is told why, all streams are reset."""
        if not self.is_closed:
            last_stream_id = min(self._last_stream_id, self._accepted_id)
            self.output.append(frames.goaway(last_stream_id, code, message.encode()))
            self._close(message, code)

    def _close(self, reason: str, code: ErrorCode) -> None:
        self.is_closed = True
        self.close_reason = reason
        for stream in list(self.streams.values()):
            if not stream.is_closed:  # by what the handler does on the way
                self._abandon(stream, code)

    # Queues

    def _queue(self, stream: Stream, pieces: Sequence[Buffer], size: int) -> None:
        queue = stream.queue
        if queue is None:
            queue = stream.queue = deque()
        if size <= JOIN_LIMIT:  # views of small pieces would take several times their memory
            queue.append(b"".join(pieces))
        else:
            for piece in pieces:
                view = memoryview(piece)
                if view.nbytes:
                    queue.append(view if view.format == "B" and view.ndim == 1 else view.cast("B"))
        stream.unsent_size += size
        self._make_ready(stream)
        stream.is_waiting = stream.unsent_size > 0

    def _make_ready(self, stream: Stream) -> None:
        """Let a stream take turns if it has something to send and may."""
        if stream.unsent_size and stream.window > 0:
            self._ready[stream.id] = stream
            self._pump()

    def _pump(self) -> None:
        """Move queued DATA to the output, in turns, as far as the connection's window and the transport allow."""
        ready = self._ready
        while ready and self._room > 0 and self._send_window > 0:
            stream_id, stream = ready.popitem(last=False)
            # Alone, a stream may go on: 512 KB take a tenth less time in one frame than in eight.
            turn_size = _TURN_SIZE if ready else max(self._room, _TURN_SIZE)
            self._move(stream, min(stream.unsent_size, stream.window, self._send_window, turn_size))
            if not stream.unsent_size:
                if stream.trailers is not None:
                    self._end(stream, stream.trailers)
                if stream.is_waiting:
                    stream.is_waiting = False
                    self._handler.stream_drained(stream)
                if stream.is_closed:
                    stream.receiver = DISCARD
            elif stream.window > 0:
                ready[stream_id] = stream

    def _move(self, stream: Stream, size: int) -> None:
        queue, output = stream.queue, self.output
        assert queue is not None
        stream.unsent_size -= size
        stream.window -= size
        self._send_window -= size
        self._room = max(0, self._room - size)
        while size:
            left = min(size, self._peer_max_frame_size)
            size -= left
            self._num_useful += 1 + (left >> 12)
            output.append(pack_header(left << 8, 0, stream.id))
            while left:
                piece = queue[0]
                num_bytes = len(piece)
                if num_bytes <= left:
                    output.append(piece)
                    queue.popleft()
                    left -= num_bytes
                else:
                    output.append(piece[:left])
                    queue[0] = piece[left:]
                    left = 0
