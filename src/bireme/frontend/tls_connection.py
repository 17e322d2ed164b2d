"""TlsConnection: the TLS layer of one connection, between the socket's transport and the protocol that serves it.

To the transport it is a protocol that takes what the client has encrypted, to the protocol a transport that gives what
was decrypted. The protocol is made when the handshake is done; a client that fails it costs nothing else.

Event loops have a TLS layer of their own. It is not used, because

- it hides how much is still to be sent, so that a client that stops reading would go unnoticed;
- a closed connection waits for the client's goodbye, and what is unsent when that wait ends is lost;
- it cannot end one direction, which lets a refused client read its answer instead of a reset;
- clients that are shaking hands are unknown to the listener, which could not cut them when it stops.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from bireme.telemetry.log import get_logger
from bireme.types import Buffer

if TYPE_CHECKING:
    from bireme.frontend.listener import Listener

log = get_logger(__name__)

HANDSHAKE_TIMEOUT_S: Final = 10.0
"""From the connection to the end of the handshake, counted in sweeps. asyncio: 60 s, nginx: 60 s, Go: none."""
SCRATCH_SIZE: Final = 256 << 10
"""Bytes received at once, before they are decrypted; in one piece of memory for all connections of a listener."""
_CHUNK_SIZE: Final = 256 << 10
"""Bytes encrypted at once, so that a large answer is not held encrypted in memory twice."""
_MAX_UNASKED_SIZE: Final = 64 << 10
"""Bytes that TLS itself (key updates) may have for a client that does not read."""
_TURN_S: Final = 0.005
"""How long a client's bytes may keep the loop at a time; other connections wait meanwhile."""
_REPORT_INTERVAL_S: Final = 10.0

_REASONS: Final = {
    "HTTP_REQUEST": "the client does not use TLS",
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "the client showed no certificate",
    "TLSV1_ALERT_UNKNOWN_CA": "the client does not trust the server's certificate",
    "SSLV3_ALERT_BAD_CERTIFICATE": "the client does not trust the server's certificate",
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN": "the client does not trust the server's certificate",
    "WRONG_VERSION_NUMBER": "the client does not use TLS, or a version that is not known",
    "UNSUPPORTED_PROTOCOL": "the client's version of TLS is too old, 1.2 is needed",
}
"""What OpenSSL's reasons mean; the others are written as they are."""


class TlsState:
    """What the TLS connections of one listener share."""

    __slots__ = ("_next_report_s", "num_failures", "scratch")

    def __init__(self) -> None:
        self.scratch = memoryview(bytearray(SCRATCH_SIZE))
        self.num_failures = 0
        """Handshakes that failed."""
        self._next_report_s = 0.0

    def report(self, peer: str, reason: str) -> None:
        """Log a failed handshake; at most one every ten seconds, whatever the internet does to this port."""
        self.num_failures += 1
        now_s = time.monotonic()
        if now_s >= self._next_report_s:
            self._next_report_s = now_s + _REPORT_INTERVAL_S
            log.info("TLS handshake with '%s' failed: %s (%d failed so far)", peer, reason, self.num_failures)


class TlsConnection(asyncio.BufferedProtocol, asyncio.Transport):
    """One client's TLS. Loop thread only. While the handshake lasts it is the listener's `Connection`."""

    __slots__ = (
        "_incoming",
        "_is_closing",
        "_is_discarding",
        "_is_having_break",
        "_is_reading_paused",
        "_is_writing_paused",
        "_listener",
        "_make_protocol",
        "_num_sweeps",
        "_object",
        "_outgoing",
        "_protocol",
        "_state",
        "_transport",
    )

    def __init__(
        self,
        listener: Listener,
        context: ssl.SSLContext,
        state: TlsState,
        make_protocol: Callable[[], asyncio.BufferedProtocol],
    ) -> None:
        """``make_protocol`` is called when the handshake is done."""
        self._listener = listener
        self._state = state
        self._make_protocol = make_protocol
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._object = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._protocol: asyncio.BufferedProtocol | None = None
        """None: the handshake is not done."""
        self._transport: asyncio.Transport
        self._is_reading_paused = False
        """Whether the protocol wants nothing now."""
        self._is_having_break = False
        """Whether other connections are let go first; the transport does not read then either."""
        self._is_writing_paused = False
        self._is_closing = False
        self._is_discarding = False
        self._num_sweeps = 0

    # The transport's protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Wait for the client's hello."""
        self._transport = transport  # type: ignore[assignment]
        self._listener.add(self)

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002
        """Return where the next encrypted bytes go."""
        return self._state.scratch

    def buffer_updated(self, nbytes: int) -> None:
        """Take encrypted bytes."""
        if self._is_discarding:
            return
        self._incoming.write(self._state.scratch[:nbytes])
        if self._protocol is None:
            self._shake_hands()
        else:
            self._decrypt()
            if nbytes == SCRATCH_SIZE:  # there is more, which the event loop would read at once
                self._let_others_go()

    def eof_received(self) -> bool | None:
        """The client has left, or at least says nothing more."""
        return None if self._protocol is None else self._protocol.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell the protocol, if there is one."""
        self._is_closing = self._is_discarding = True
        protocol, self._protocol = self._protocol, None  # breaks the cycle
        if protocol is None:
            self._listener.remove(self)
        else:
            protocol.connection_lost(exc)

    def pause_writing(self) -> None:
        """Hand on that the client does not read."""
        self._is_writing_paused = True
        if self._protocol is not None:
            self._protocol.pause_writing()

    def resume_writing(self) -> None:
        """Hand on that the client reads again."""
        self._is_writing_paused = False
        self._flush()
        if self._protocol is not None:
            self._protocol.resume_writing()

    # TLS

    def _shake_hands(self) -> None:
        try:
            self._object.do_handshake()
        except ssl.SSLWantReadError:
            self._flush()
            return
        except ssl.SSLError as error:
            self._fail(error)
            return
        self._flush()
        self._protocol = self._make_protocol()
        self._protocol.connection_made(self)
        self._listener.remove(self)
        self._decrypt()

    def _fail(self, error: ssl.SSLError) -> None:
        self._state.report(self._listener.name_peer(self._transport), _describe(error))
        self._is_closing = self._is_discarding = True
        self._flush()  # the alert that tells the client why
        self._transport.close()

    def _decrypt(self) -> None:
        """Give the protocol what has arrived, unless it wants nothing now."""
        protocol, incoming, read = self._protocol, self._incoming, self._object.read
        assert protocol is not None
        end_s = 0.0
        try:
            # The exception that says "no more" costs as much as the decryption of a small request: it is avoided.
            while (incoming.pending or self._object.pending()) and not (
                self._is_reading_paused or self._is_discarding
            ):
                if not end_s:
                    end_s = time.monotonic() + _TURN_S
                elif time.monotonic() >= end_s:
                    self._let_others_go()
                    break
                target = protocol.get_buffer(-1)
                size: int = read(len(target), target)  # type: ignore[arg-type,assignment]
                if not size:
                    self._take_goodbye()
                    return
                protocol.buffer_updated(size)
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLError as error:
            log.debug("TLS connection ended: %s", _describe(error))
            self.abort()
            return
        if self._outgoing.pending:
            self._flush_unasked()

    def _let_others_go(self) -> None:
        """Go on with what has arrived, and with reading, in the next turn of the loop."""
        if not (self._is_having_break or self._is_reading_paused or self._transport.is_closing()):
            self._is_having_break = True
            self._transport.pause_reading()
            asyncio.get_running_loop().call_soon(self._go_on)

    def _go_on(self) -> None:
        self._is_having_break = False
        if self._is_reading_paused or self._transport.is_closing():
            return
        self._transport.resume_reading()
        self._decrypt_held()

    def _take_goodbye(self) -> None:
        assert self._protocol is not None
        self._is_discarding = True
        if not self._protocol.eof_received():
            self.close()

    def _flush_unasked(self) -> None:
        """Send what TLS answers by itself; a client that asks for it and does not read must not fill the memory."""
        if not self._is_writing_paused:
            self._flush()
        elif self._outgoing.pending > _MAX_UNASKED_SIZE:
            self.abort()

    def _flush(self) -> None:
        data = self._outgoing.read()
        if data and not self._transport.is_closing():
            self._transport.write(data)

    def _say_goodbye(self) -> None:
        """Send the close_notify without which the client would take the end for an attack; wait for no answer."""
        with suppress(ssl.SSLError):
            self._object.unwrap()
        self._flush()

    # The protocol's transport

    def write(self, data: Buffer) -> None:
        """Encrypt and send."""
        self._encrypt(data)
        self._flush()

    def writelines(self, list_of_data: Iterable[Buffer]) -> None:
        """Encrypt and send, piece by piece; the pieces are free on return."""
        for data in list_of_data:
            if len(data) <= _CHUNK_SIZE:
                self._encrypt(data)
                if self._outgoing.pending > _CHUNK_SIZE:
                    self._flush()
                continue
            view = memoryview(data)
            for start in range(0, len(view), _CHUNK_SIZE):
                self._encrypt(view[start : start + _CHUNK_SIZE])
                self._flush()
        self._flush()

    def _encrypt(self, data: Buffer) -> None:
        if len(data) and not self._is_closing:
            self._object.write(data)  # all of it: the memory behind it takes everything

    def can_write_eof(self) -> bool:
        """Whether `write_eof` may be called."""
        return self._transport.can_write_eof()

    def write_eof(self) -> None:
        """Say that nothing more is sent; what the client still sends is thrown away."""
        self._is_closing = self._is_discarding = True
        self._say_goodbye()
        self._transport.write_eof()

    def close(self) -> None:
        """Send what is to be sent, then close. A client that answers the goodbye too late is not waited for."""
        if not self._is_closing:
            self._is_closing = self._is_discarding = True
            self._say_goodbye()
        self._transport.close()

    def abort(self) -> None:
        """Close at once."""
        self._is_closing = self._is_discarding = True
        self._transport.abort()

    def is_closing(self) -> bool:
        """Whether `close` or `abort` was called, or the client is gone."""
        return self._transport.is_closing()

    def pause_reading(self) -> None:
        """Give nothing more to the protocol."""
        self._is_reading_paused = True
        if not self._is_having_break and not self._transport.is_closing():
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Give again, starting with what has arrived meanwhile, in the next turn of the loop."""
        self._is_reading_paused = False
        if not self._is_having_break and not self._transport.is_closing():
            self._transport.resume_reading()
            asyncio.get_running_loop().call_soon(self._decrypt_held)

    def _decrypt_held(self) -> None:
        if not self._is_discarding:
            self._decrypt()

    def get_write_buffer_size(self) -> int:
        """Return how many encrypted bytes the client has not taken."""
        return self._transport.get_write_buffer_size() + self._outgoing.pending

    def get_write_buffer_limits(self) -> tuple[int, int]:
        """Return the sizes below and above which the protocol is told to go on and to pause."""
        return self._transport.get_write_buffer_limits()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Set those sizes."""
        self._transport.set_write_buffer_limits(high, low)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Return ``ssl_object``, or what the socket's transport knows under ``name``."""
        return self._object if name == "ssl_object" else self._transport.get_extra_info(name, default)

    # The listener's connection, while the handshake lasts

    is_new = True

    def retire(self) -> None:
        """Nothing: what was not asked cannot be answered."""

    def drain(self) -> None:
        """Cut the connection: nothing has been asked."""
        self.abort()

    def sweep(self) -> None:
        """Cut the connection when the handshake takes too long."""
        self._num_sweeps += 1
        if self._num_sweeps * self._listener.sweep_interval_s >= HANDSHAKE_TIMEOUT_S:
            self._state.report(
                self._listener.name_peer(self._transport), f"not done within {HANDSHAKE_TIMEOUT_S:g} s"
            )
            self.abort()

    def __repr__(self) -> str:
        return f"TlsConnection({self._protocol!r})"


def _describe(error: ssl.SSLError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the client's certificate was not accepted: {error.verify_message}"
    reason = error.reason or str(error)
    return _REASONS.get(reason) or reason.replace("_", " ").lower()
