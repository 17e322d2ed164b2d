"""HttpConnection: one client's connection — `RequestReceiver`, and the answers to its requests in their order.

Reading goes on while requests are in flight: an end of stream means that the client has left, and cancels them. It
stops only while more than `ConnectionLimits.max_pipelined` requests wait, or while the client does not read its answers.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from typing import TYPE_CHECKING, Final

from bireme.frontend.http.exchange import Exchange
from bireme.frontend.http.head import RefusedRequest, RequestHead
from bireme.frontend.http.receiver import Phase, RequestReceiver
from bireme.types import Buffer
from bireme.wire.http import error_body

if TYPE_CHECKING:
    from bireme.frontend.http.listener import HttpListener

JOIN_LIMIT: Final = 16 << 10
"""Answers up to this size are joined and written by one plain ``write``; larger ones are gathered without a copy."""

CLIENT_LEFT: Final = 499
"""Stands in the access log and the metrics for the status of a request whose client left first (nginx's number for it)."""

_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


class HttpConnection(RequestReceiver):
    """One client's connection. Everything runs on the loop thread."""

    __slots__ = (
        "_busy_poll",
        "_is_reading_paused",
        "_is_writing_paused",
        "_lingers",
        "_log_access",
        "_max_pipelined",
        "_num_sweeps",
        "_owes_continue",
        "_queue",
        "_statuses",
        "_swept",
        "_tracing",
        "_transport",
        "is_closing",
        "is_lost",
        "num_requests",
        "peer",
    )

    def __init__(self, listener: HttpListener) -> None:
        super().__init__(listener)
        self._max_pipelined = listener.limits.max_pipelined
        self._log_access = listener.log_access
        self._tracing = listener.tracing
        self._statuses = listener.statuses
        self._busy_poll = listener.busy_poll
        self._transport: asyncio.Transport
        self.peer = ""
        """The client's address, for the access log."""

        self._is_reading_paused = False
        self.num_requests = 0

        # Answering
        self._queue: deque[Exchange] = deque()
        """Unanswered requests in the order received, and answered ones behind them."""
        self._owes_continue = False
        self._is_writing_paused = False
        self.is_closing = False
        """Whether the next answer is the last."""
        self._lingers = False
        self.is_lost = False

        # Timeouts
        self._swept: tuple[str, int] = ("", 0)
        self._num_sweeps = 0

    # Transport → protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        self._transport = transport  # type: ignore[assignment]
        self._listener.add(self)
        if self._log_access is not None:
            self.peer = self._listener.name_peer(transport)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        """Cancel what the client no longer waits for."""
        self._listener.remove(self)
        self._lose()

    def _lose(self) -> None:
        """Nothing reaches the client any more: cancel all that was asked for."""
        self.is_lost = True
        self._stop_receiving()
        queue, self._queue = self._queue, deque()
        for exchange in queue:
            if not exchange.is_answered:
                self._abandon(exchange)

    def _abandon(self, exchange: Exchange) -> None:
        exchange.is_answered = True
        exchange.on_room = None
        exchange.status = CLIENT_LEFT
        self._statuses[CLIENT_LEFT] += 1
        if self._log_access is not None:
            self._log_access(exchange, 0)
        if exchange.work is not None:
            exchange.work.cancel()
        request, exchange.request = exchange.request, None
        if request is not None:
            self._listener.cancel(request)

    def pause_writing(self) -> None:
        """Stop reading, too: a client that does not read its answers may not ask for more."""
        self._is_writing_paused = True
        self._update_reading()

    def resume_writing(self) -> None:
        """Read again."""
        self._is_writing_paused = False
        self._tell_room()
        self._take_held()
        self._update_reading()

    def _tell_room(self) -> None:
        """Tell the answer that is being sent in parts that its client has taken some."""
        if self._queue and (on_room := self._queue[0].on_room) is not None:
            on_room()

    # Requests → routes

    def _new_exchange(self, head: RequestHead, body: Buffer) -> Exchange:
        exchange = Exchange(self, head, body)
        if self._log_access is not None or (self._tracing is not None and self._tracing.is_on):
            exchange.start_ns = time.monotonic_ns()
        return exchange

    def _may_continue(self, head: RequestHead) -> bool:
        if not head.expects_continue:
            return True
        if head.route.is_final:
            self.is_closing = self._lingers = True  # whether the body comes all the same is not known
            self._hand_on(self._new_exchange(head, b""))
            return False
        if self._queue:
            self._owes_continue = True
        else:
            self._transport.write(_CONTINUE)
        return True

    def _hand_on(self, exchange: Exchange) -> None:
        self._queue.append(exchange)
        self.num_requests += 1
        head = exchange.head
        if not head.keep_alive or self.is_closing:
            self.is_closing = True
            self._phase = Phase.REFUSED
        try:
            head.route.handle(exchange)
        except Exception as error:  # noqa: BLE001 (the connection survives; logged if it was not foreseen)
            exchange.take_error(error)
        if len(self._queue) >= self._max_pipelined:
            self._update_reading()

    def refuse(self, refusal: RefusedRequest) -> None:
        """Answer a request that cannot be taken, after those before it, and end the connection."""
        self._stop_receiving()
        self.is_closing = self._lingers = True
        exchange = Exchange(self, REFUSED_HEAD, b"")
        self._queue.append(exchange)
        self.num_requests += 1
        exchange.reply(refusal.status, error_body(refusal.message))

    # Answers → bytes

    def complete(self, exchange: Exchange, pieces: list[Buffer], size: int) -> None:
        """Write an answer, or keep it until the answers before it are written."""
        if exchange.is_answered:
            if self.is_lost:
                return
            raise RuntimeError(f"{exchange.head!r} was answered twice")
        exchange.is_answered = True
        self._statuses[exchange.status] += 1
        if self._log_access is not None:
            self._log_access(exchange, size)
        exchange.request = None  # breaks the cycle of exchange and request
        queue = self._queue
        if queue[0] is not exchange:
            exchange.pieces = pieces
            exchange.size = size
            return
        self._write(pieces, size)
        self._go_on()

    def _go_on(self) -> None:
        """The answer to the first request is written: write what waits behind it."""
        queue = self._queue
        queue.popleft()
        while queue and (pieces := queue[0].pieces) is not None:
            first = queue[0]
            self._write(pieces, first.size)
            first.pieces = None
            first.size = 0
            if not first.is_answered:  # these were parts, and there will be more
                self._tell_room()
                break
            queue.popleft()
            if first.stream is not None and not first.stream.is_chunked:
                self._close()
                return
        if self._is_reading_paused or not queue:
            self._after_answers()

    # Answers in parts

    def send_part(self, exchange: Exchange, pieces: list[Buffer], size: int) -> None:
        """Write a part of an answer, or keep it until the answers before it are written."""
        if exchange.is_answered:
            raise RuntimeError(f"{exchange.head!r} was answered already, or its client has left")
        if self._queue[0] is exchange:
            self._write(pieces, size)
        elif exchange.pieces is None:
            exchange.pieces = pieces
            exchange.size = size
        else:
            exchange.pieces += pieces
            exchange.size += size

    def end_parts(self, exchange: Exchange, size: int) -> None:
        """End an answer of ``size`` bytes, all of which have been sent."""
        exchange.is_answered = True
        self._statuses[exchange.status] += 1
        if self._log_access is not None:
            self._log_access(exchange, size)
        exchange.request = exchange.on_room = None
        if self._queue[0] is not exchange:
            return
        if exchange.stream is not None and not exchange.stream.is_chunked:
            self._close()
        else:
            self._go_on()

    def unsent_size(self, exchange: Exchange) -> int:
        """Return how many bytes have not left yet: of ``exchange``, and maybe of the answers before it."""
        return exchange.size + self._transport.get_write_buffer_size()

    def take_no_more(self) -> None:
        """Take no request behind those that are here: the connection's end is that of an answer."""
        self.is_closing = True
        self._stop_receiving()

    def _close(self) -> None:
        """Close the connection after what was written; requests behind it get no answer."""
        self._lose()
        self._transport.close()

    def cut(self, exchange: Exchange) -> None:
        """Give up ``exchange``, and with it the connection: what is not sent yet is thrown away."""
        if not exchange.is_answered:
            self._lose()
            self._transport.abort()

    def _write(self, pieces: list[Buffer], size: int) -> None:
        if size <= JOIN_LIMIT:
            self._transport.write(b"".join(pieces))
        else:
            self._transport.writelines(pieces)

    def _after_answers(self) -> None:
        if not self._queue:
            if self._owes_continue:
                self._owes_continue = False
                self._transport.write(_CONTINUE)
            if self.is_closing and self._receiving is None and self._phase is not Phase.PARTIAL_HEAD:
                self._end()
                return
            if self._busy_poll is not None:
                self._busy_poll.extend()
        if self._is_reading_paused:
            if self._held:
                asyncio.get_running_loop().call_soon(self._take_held)
            self._update_reading()

    def _end(self) -> None:
        """End the connection after what was written. A client that may still be sending sees an end, not a reset."""
        self._stop_receiving()
        if self._transport.is_closing():
            return
        if self._lingers and self._transport.can_write_eof():
            self._transport.write_eof()
        else:
            self._transport.close()

    def _must_wait(self) -> bool:
        return self._is_writing_paused or len(self._queue) >= self._max_pipelined

    def _update_reading(self) -> None:
        pause = bool(self._held) or self._must_wait()
        if pause != self._is_reading_paused and not self.is_lost:
            self._is_reading_paused = pause
            if pause:
                self._transport.pause_reading()
            else:
                self._transport.resume_reading()

    # The listener's side

    @property
    def is_idle(self) -> bool:
        """Whether the client waits for nothing and has begun nothing."""
        return not self._queue and not self._held and self._phase is Phase.HEAD

    @property
    def is_new(self) -> bool:
        """See `Connection.is_new`."""
        return not self.num_requests and self.is_idle

    def is_last(self, exchange: Exchange) -> bool:
        """Whether nothing is asked for behind ``exchange``."""
        return not self._queue or self._queue[-1] is exchange

    def retire(self) -> None:
        """Make the next answer that has nothing behind it the last; an idle connection stays until then."""
        self.is_closing = True

    def drain(self) -> None:
        """Answer what has been asked, then close; at once when that is nothing."""
        self.is_closing = True
        if self.is_idle:
            self._transport.close()

    def abort(self) -> None:
        """Cut the connection; what is in flight is cancelled."""
        self._transport.abort()

    def sweep(self) -> None:
        """Count one sweep interval against what this connection waits for, and act when that has lasted too long.

        Called for every connection by one timer, so that a request costs no timer of its own. What is waited for, and
        how far it has come, is one value; the count starts again whenever that value changes.
        """
        waiting_for = self._waiting_for()
        if waiting_for != self._swept:
            self._swept = waiting_for
            self._num_sweeps = 0
            return
        self._num_sweeps += 1
        kind = waiting_for[0]
        timeout_s = self._listener.timeouts_s[kind]
        if timeout_s and self._num_sweeps * self._listener.limits.sweep_interval_s >= timeout_s:
            self._give_up(kind, timeout_s)

    def _waiting_for(self) -> tuple[str, int]:
        num_unsent = self._transport.get_write_buffer_size()
        if num_unsent:
            return "writing", num_unsent
        if self._queue:
            return "model", self.num_requests
        phase = self._phase
        if phase is Phase.HEAD:
            return "request", self.num_requests
        if phase is Phase.PARTIAL_HEAD:
            return "head", self.num_requests
        if phase is Phase.BODY:
            return "body", len(self._target)
        if phase is Phase.CHUNKS and self._chunks is not None:
            return "body", len(self._chunks.body)
        return "end", 0

    def _give_up(self, kind: str, timeout_s: float) -> None:
        if kind in ("head", "body"):
            self.refuse(RefusedRequest(408, f"the request's {kind} did not arrive within {timeout_s:g} s"))
        elif kind == "writing":
            self._transport.abort()
        else:
            self._transport.close()

    def __repr__(self) -> str:
        return (
            f"HttpConnection({self._phase.name.lower()}, requests {self.num_requests}, in flight {len(self._queue)}"
            f"{', closing' if self.is_closing else ''})"
        )


REFUSED_HEAD: Final = RequestHead(b"", b"/", "1.1", [])
"""Stands for the head of a request that could not be read."""
REFUSED_HEAD.keep_alive = False
REFUSED_HEAD.reply_end = b"Connection: close\r\n\r\n"
