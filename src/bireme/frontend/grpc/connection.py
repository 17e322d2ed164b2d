"""GrpcConnection: one client's connection: a transport on one side, `Http2Connection` and its calls on the other.

Everything that one readable event brings is handled before anything is written, so the answers that are there at once
go out in one write. Source: gRPC over HTTP/2.
"""

from __future__ import annotations

import asyncio
import random
import time
from typing import TYPE_CHECKING, Any, Final

from bireme.frontend.grpc.keepalive import Due, Keepalive
from bireme.telemetry import log as server_log
from bireme.wire.http2 import ErrorCode, Http2Connection, Receiver, Stream

if TYPE_CHECKING:
    from bireme.frontend.grpc.call import Call
    from bireme.frontend.grpc.listener import GrpcListener
    from bireme.frontend.grpc.options import GrpcOptions

log = server_log.get_logger(__name__)

_JOIN_LIMIT: Final = 64 << 10
"""Output up to this size is joined and written by one plain ``write``; larger output is gathered without a copy."""
_WRITE_BUFFER: Final = 1 << 20
"""Bytes that the transport holds before it asks for a pause; more make no write larger, and cost memory."""
_TURN_S: Final = 0.005
"""How long a connection may keep the loop at a time; others wait meanwhile."""
_LARGE_READ: Final = 32 << 10
"""Bytes received at once behind which there is most likely more. The event loop reads up to 32 times in a row then."""
_KEEPALIVE_DATA: Final = b"bireme ?"
_LAST_STREAM: Final = (1 << 31) - 1
_JITTER: Final = 0.1
"""Connections of one moment do not all end at one moment."""


class GrpcConnection(asyncio.BufferedProtocol):
    """One client's connection. Everything runs on the loop thread."""

    __slots__ = (
        "_age_ms",
        "_has_sent",
        "_is_drained",
        "_is_ending",
        "_is_receiving",
        "_is_retired",
        "_is_to_write",
        "_is_waking",
        "_keepalive",
        "_listener",
        "_max_age_ms",
        "_num_expected",
        "_num_idle_sweeps",
        "_num_received",
        "_reading_end_s",
        "_scratch",
        "_swept",
        "_transport",
        "_turn_end_s",
        "_unsent_streams",
        "_waiting",
        "answer_sizes",
        "h2",
        "is_lost",
        "log_access",
        "loop",
        "memory",
        "peer",
        "statuses",
    )

    def __init__(self, listener: GrpcListener) -> None:
        options = listener.grpc_options
        self._listener = listener
        self.loop = asyncio.get_running_loop()
        self.log_access = listener.log_access
        self.statuses = listener.statuses
        self.memory = listener.memory
        self._scratch = listener.scratch
        self._transport: asyncio.Transport
        self.h2 = Http2Connection(self, options.http2)
        self.peer = ""
        """The client's address, for the access log."""
        self.is_lost = False
        self._is_receiving = False
        self._reading_end_s = 0.0
        """When the reads in a row have kept the loop for long enough; 0: there is no row."""
        self._turn_end_s = 0.0
        """The same for the requests that have begun; 0: none yet in this turn."""
        self._has_sent = False
        """Whether a call was answered since the client's last ping."""
        self._is_retired = False
        """Whether the client was asked to open no more calls."""
        self._is_ending = False
        """Whether no more calls are taken: the connection closes with the last one."""
        self._is_drained = False
        """Whether its calls were asked to end."""
        self._num_received = 0
        self._waiting: dict[Any, int] = {}
        """Calls that go on when the client has taken earlier answers, and the size of the answer that each expects."""
        self._is_waking = False
        self._is_to_write = False
        self._num_expected = 0
        """Bytes of answers that are expected of the inferences that have begun."""
        self.answer_sizes: dict[str, int] = {}
        """How large the answers of a model have been lately: see `GrpcApi.expected_size`."""
        self._unsent_streams: dict[int, Stream] = {}
        """Streams with answers that the client has not taken yet."""
        self._keepalive = Keepalive(options, self._now_ms())
        self._num_idle_sweeps = 0
        """For how many sweeps no call has been open or begun."""
        self._age_ms = 0
        self._max_age_ms = options.max_connection_age_ms * random.uniform(1 - _JITTER, 1 + _JITTER)  # noqa: S311
        self._swept: dict[int, tuple[int, int]] = {}

    def _now_ms(self) -> int:
        return int(self.loop.time() * 1000)

    # Transport → protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin, unless TLS has agreed on another protocol."""
        self._transport = transport  # type: ignore[assignment]
        self._transport.set_write_buffer_limits(high=_WRITE_BUFFER)
        self._listener.add(self)
        if self.log_access is not None:
            self.peer = self._listener.name_peer(transport)
        tls = transport.get_extra_info("ssl_object")
        if tls is not None and tls.selected_alpn_protocol() != "h2":
            log.info("a TLS client did not offer h2 by ALPN, which gRPC needs: connection closed")
            self._transport.close()
            return
        self._write()

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002
        """Return where the next bytes go: the scratch buffer, or the memory of a large message."""
        return self.h2.get_buffer(self._scratch)

    def buffer_updated(self, nbytes: int) -> None:
        """Take what came, and write what that leads to."""
        self._num_received += 1
        self._is_receiving = True
        is_large = nbytes >= _LARGE_READ
        if not is_large:
            self._reading_end_s = 0.0
        elif not self._reading_end_s:
            self._reading_end_s = time.monotonic() + _TURN_S
        try:
            self.h2.received(nbytes)
        except Exception:  # the connection ends; others go on
            log.exception("%r failed", self)
        self._is_receiving = False
        self._turn_end_s = 0.0
        self._write()
        if is_large and time.monotonic() >= self._reading_end_s:
            self._let_others_read()

    def _let_others_read(self) -> None:
        self._reading_end_s = 0.0
        if not self._transport.is_closing():
            self._transport.pause_reading()
            self.loop.call_soon(self._resume_reading)

    def _resume_reading(self) -> None:
        if not self._transport.is_closing():
            self._transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        """Cancel what the client no longer waits for."""
        self.is_lost = True
        self.h2.connection_lost()
        self._waiting.clear()
        self._unsent_streams.clear()
        self._listener.remove(self)

    def pause_writing(self) -> None:
        """Leave further data in the streams."""
        self.h2.is_writable = False

    def resume_writing(self) -> None:
        """Move data on again."""
        self.h2.resume()
        self._write()

    def _write(self) -> None:
        if self.is_lost:
            return
        h2, transport = self.h2, self._transport
        while output := h2.take_output():
            if self._unsent_streams:
                self._has_sent = (
                    True  # most likely: answers that had to wait move on when the client opens its windows
                )
            if len(output) == 1:
                transport.write(output[0])
            elif sum(map(len, output)) <= _JOIN_LIMIT:
                transport.write(b"".join(output))
            else:
                transport.writelines(output)
        if h2.is_closed or (self._is_ending and not h2.streams):
            self._close()
        elif self._waiting:
            self._wake()

    def _write_soon(self) -> None:
        if not (self._is_to_write or self._is_receiving):
            self._is_to_write = True
            self.loop.call_soon(self._write_now)

    def _write_now(self) -> None:
        self._is_to_write = False
        self._write()

    def _close(self) -> None:
        if self._transport.is_closing():
            return
        if self.h2.close_reason:
            log.debug("connection closed: %s", self.h2.close_reason)
        self._transport.close()

    # Calls

    def flush(self, stream: Stream) -> None:
        """Write what a call has put out for ``stream``, now or together with what else is being handled.

        While other calls are open, it is written at the end of the turn of the loop: the answers of a batch go together.
        """
        self._has_sent = True
        if stream.unsent_size:
            self._unsent_streams[stream.id] = stream
        streams = self.h2.streams
        if len(streams) > (stream.id in streams):
            self._write_soon()
        elif not self._is_receiving:
            self._write()
        busy_poll = self._listener.busy_poll
        if busy_poll is not None and not self.h2.streams:
            busy_poll.extend()

    def may_begin(self) -> bool:
        """Whether a request may begin now, and before those that wait: see `wait`."""
        if self._waiting or not self._has_room(0):
            return False
        if not self._turn_end_s:
            self._turn_end_s = time.monotonic() + _TURN_S
            if not self._is_receiving:
                self.loop.call_soon(self._end_turn)
            return True
        return time.monotonic() < self._turn_end_s

    def _end_turn(self) -> None:
        self._turn_end_s = 0.0

    def admits(self, size: int) -> bool:
        """Whether an inference whose answer has ``size`` bytes may begin, and before those that wait: see `wait`."""
        return not self._waiting and self._has_room(size)

    def _has_room(self, size: int) -> bool:
        """Whether ``size`` bytes more may wait for the client; when none do, any number may."""
        held = self._num_expected
        if self._unsent_streams:
            held += self._sum_unsent()
        return not held or held + size <= self._listener.grpc_options.max_unsent_bytes

    def _sum_unsent(self) -> int:
        unsent = self._unsent_streams
        total = 0
        for stream_id, stream in tuple(unsent.items()):
            if stream.unsent_size:
                total += stream.unsent_size
            else:
                del unsent[stream_id]
        return total

    def expect(self, size: int) -> None:
        """Count an answer that an inference which begins now will have."""
        self._num_expected += size

    def release(self, size: int) -> None:
        """Count an expected answer no more: it is there, or will not come."""
        self._num_expected -= size
        if self._waiting:
            self._wake()

    def wait(self, call: Any, size: int) -> None:
        """Have ``call.resume()`` called when there is room for an answer of ``size`` bytes, in a turn of its own.

        Calls that wait take turns: one that waits again does so behind the others.
        """
        call.is_waiting = True
        self._waiting[call] = size
        self._wake()

    def forget(self, call: Call) -> None:
        """Let ``call`` wait no longer; those behind it may go on."""
        if call.is_waiting:
            call.is_waiting = False
            del self._waiting[call]
            self._wake()

    def _wake(self) -> None:
        if not self._is_waking:
            self._is_waking = True
            self.loop.call_soon(self._resume_waiting)

    def _resume_waiting(self) -> None:
        self._is_waking = False
        waiting = self._waiting
        self._turn_end_s = time.monotonic() + _TURN_S
        while waiting:
            call, size = next(iter(waiting.items()))
            if not self._has_room(size):
                break
            del waiting[call]
            call.is_waiting = False
            call.resume()
            if time.monotonic() >= self._turn_end_s:
                if waiting:
                    self._wake()
                break
        self._turn_end_s = 0.0

    # HTTP/2 → calls

    def open_stream(self, stream: Stream) -> Receiver:
        """Begin a call."""
        self._num_idle_sweeps = 0
        head = stream.head
        route = head.route
        if route is None:
            route = head.route = self._listener.resolve(head)
        receiver: Receiver = route.open(self, stream)
        return receiver

    def reset_stream(self, stream: Stream, code: int) -> None:  # noqa: ARG002
        """Cancel a call."""
        stream.receiver.cancel()  # type: ignore[attr-defined]

    def stream_drained(self, stream: Stream) -> None:
        """Count its answers no more. What waits for that goes on after they have been written."""
        self._unsent_streams.pop(stream.id, None)
        stream.receiver.note_taken()  # type: ignore[attr-defined]

    def ping_acknowledged(self, data: bytes) -> None:
        """Nothing to do: whatever comes shows that the client is there."""

    def ping_received(self) -> bool:
        """Return whether the client may ping now; if not, the connection ends."""
        if self._has_sent:
            self._has_sent = False
            self._keepalive.data_sent()
        if self._keepalive.is_ping_welcome(self._now_ms(), has_calls=bool(self.h2.streams)):
            return True
        self.h2.go_away(ErrorCode.ENHANCE_YOUR_CALM, b"too_many_pings")
        return False

    # The listener's side

    @property
    def is_new(self) -> bool:
        """See `Connection.is_new`."""
        return not self._num_received

    def retire(self) -> None:
        """Ask the client to open a new connection for its next calls; those that come meanwhile are taken."""
        if not self._is_retired and not self.is_lost:
            self._is_retired = True
            self.h2.go_away(ErrorCode.NO_ERROR, last_stream_id=_LAST_STREAM)
            self._write()

    def drain(self) -> None:
        """Take no more calls, and close when those there are have ended; at once when there are none."""
        if self._is_drained or self.is_lost:
            return
        self._is_drained = True
        self._take_no_more()
        for stream in tuple(self.h2.streams.values()):
            if not stream.is_closed:  # by what was done on the way
                stream.receiver.drain()  # type: ignore[attr-defined]
        self._write()

    def _take_no_more(self) -> None:
        if not self._is_ending:
            self._is_ending = self._is_retired = True
            self.h2.go_away(ErrorCode.NO_ERROR)

    def abort(self) -> None:
        """Cut the connection; what is in flight is cancelled."""
        self._transport.abort()

    def sweep(self) -> None:
        """Look at the clock for everything that may last too long."""
        options = self._listener.grpc_options
        interval_s = self._listener.sweep_interval_s
        self.h2.tick()
        self._age_ms += int(interval_s * 1000)
        if self._has_no_time_left(options) or self._is_gone(options):
            self.abort()
            return
        if options.stall_timeout_s:
            self._sweep_stalls(max(1, round(options.stall_timeout_s / interval_s)))
        self._write()

    def _has_no_time_left(self, options: GrpcOptions) -> bool:
        """Ask a client to leave when its connection grows too old, or has no use; return whether it has to leave now."""
        is_old = 0 < self._max_age_ms <= self._age_ms
        if is_old or self._is_idle(options):
            if not self._is_retired:
                self.retire()
            else:  # a sweep later, when the client knows and what it had already sent has come
                self._take_no_more()
        grace_ms = options.max_connection_age_grace_ms
        return is_old and bool(grace_ms) and self._age_ms >= self._max_age_ms + grace_ms

    def _is_idle(self, options: GrpcOptions) -> bool:
        if self.h2.streams:
            self._num_idle_sweeps = 0
            return False
        self._num_idle_sweeps += 1
        idle_s = self._num_idle_sweeps * self._listener.sweep_interval_s
        return 0 < options.idle_timeout_s <= idle_s

    def _is_gone(self, options: GrpcOptions) -> bool:
        """Ping a silent client when it is time; return whether it has not answered, or never said anything."""
        if not self._num_received:
            return 0 < options.stall_timeout_s * 1000 <= self._age_ms
        if self._has_sent:
            self._has_sent = False
            self._keepalive.data_sent()
        due = self._keepalive.look(self._now_ms(), self._num_received, has_calls=bool(self.h2.streams))
        if due is Due.PING:
            self.h2.send_ping(_KEEPALIVE_DATA)
        elif due is Due.LOST:
            log.info("a client answered no ping for %d ms: connection closed", options.keepalive_timeout_ms)
        return due is Due.LOST

    def _sweep_stalls(self, most: int) -> None:
        """End what has not come further for ``most`` sweeps: messages that arrive, and answers that are not taken."""
        before, self._swept = self._swept, {}
        size = self._transport.get_write_buffer_size()
        if size and self._has_stalled(0, size, before, most):
            self.abort()
            return
        for stream in tuple(self.h2.streams.values()):
            if not stream.is_closed:  # by what was done on the way
                stream.receiver.sweep(most)  # type: ignore[attr-defined]
            if stream.unsent_size and self._has_stalled(stream.id, stream.unsent_size, before, most):
                stream.receiver.cancel()  # type: ignore[attr-defined]
                self.h2.reset(stream, ErrorCode.CANCEL)

    def _has_stalled(self, key: int, size: int, before: dict[int, tuple[int, int]], most: int) -> bool:
        last_size, num_sweeps = before.get(key, (-1, 0))
        num_sweeps = num_sweeps + 1 if size == last_size else 0
        self._swept[key] = (size, num_sweeps)
        return num_sweeps >= most

    def __repr__(self) -> str:
        return f"GrpcConnection({self.h2!r})"
