"""Listener: a listening socket, its connections, and the one timer that watches over all of them.

Each protocol has a subclass that makes its connections and holds what they share.
"""

from __future__ import annotations

import asyncio
import os
import selectors
import socket
import time
from collections.abc import Callable
from typing import ClassVar, Protocol

from bireme.frontend.busy_poll import BusyPoll
from bireme.frontend.newcomers import keep_out
from bireme.frontend.options import ListenOptions
from bireme.frontend.tls import Certificates, CertificateWatch
from bireme.frontend.tls_connection import TlsConnection, TlsState
from bireme.frontend.unix_socket import UnixSocket
from bireme.telemetry.log import get_logger
from bireme.types import Unavailable

log = get_logger(__name__)

_BACKLOG = 1024
_FIRST_REQUEST_S = 0.25
"""How long a client that has just connected has to begin its request, when the port closes."""
_MOST_TURNS = 100
"""Looks at whether more clients have connected, before the port closes all the same."""
_ABORT_TIMEOUT_S = 1.0
"""An aborted transport reports its end in the next iteration of the loop."""


class Connection(Protocol):
    """What a listener asks of its connections, which call `Listener.add` and `Listener.remove` for themselves."""

    @property
    def is_new(self) -> bool:
        """Whether nothing has come yet: the client's first request is most likely on its way."""

    def retire(self) -> None:
        """Let the client know that it must open a new connection for what comes next; cut off nothing."""

    def drain(self) -> None:
        """Finish what has been asked, then close; at once when that is nothing."""

    def abort(self) -> None:
        """Cut the connection; what is in flight is cancelled."""

    def sweep(self) -> None:
        """Count one `Listener.sweep_interval_s` against whatever this connection waits for."""


class Listener:
    """Accepts connections and knows those that are open. Loop thread only."""

    scheme: ClassVar[str] = ""
    """Of `url`; with TLS, an "s" is appended."""
    alpn: ClassVar[tuple[str, ...]] = ()
    """What may be agreed on with a TLS client. Source: RFC 7301."""

    def __init__(self, options: ListenOptions, *, sweep_interval_s: float = 1.0) -> None:
        """Read the certificates, if there are any; nothing is bound before `start`.

        Raises:
            InvalidArgument: a certificate cannot be used, or the address is wrong.
        """
        self.options = options
        self._unix_path = options.unix_path
        self._unix: UnixSocket | None = None
        self._certificates = None if options.tls is None else Certificates(options.tls, self.alpn)
        self._watch = None if self._certificates is None else CertificateWatch(self._certificates)
        self.sweep_interval_s = sweep_interval_s
        self.connections: set[Connection] = set()
        self.busy_poll: BusyPoll | None = None
        """None unless asked for; there from the start on."""
        self._server: asyncio.Server | None = None
        self._sweep_timer: asyncio.TimerHandle | None = None
        self._emptied: asyncio.Future[None] | None = None
        self._is_stopping = False
        self._is_retiring = False

    def make_connection(self) -> asyncio.BufferedProtocol:
        """Return the protocol of a client that has just connected; it is a `Connection`, too."""
        raise NotImplementedError

    @property
    def port(self) -> int:
        """The port it listens on, also when any free one was asked for; 0 before the start and without ports."""
        if self._server is None or not self._server.sockets or self._unix_path:
            return 0
        return int(self._server.sockets[0].getsockname()[1])

    @property
    def url(self) -> str:
        """Where it listens, as a client would write it."""
        if self._unix_path:
            return f"unix:{self._unix_path}"
        address = self.options.address
        host = f"[{address}]" if ":" in address else address
        secure = "" if self._certificates is None else "s"
        return f"{self.scheme}{secure}://{host}:{self.port}"

    async def start(self) -> None:
        """Listen.

        Raises:
            Unavailable: the address cannot be bound; names it and the system's reason.
        """
        options = self.options
        self._is_stopping = self._is_retiring = False
        if options.busy_poll_us:
            self.busy_poll = BusyPoll(asyncio.get_running_loop(), options.busy_poll_us)
        self._server = await (self._listen_on_path() if self._unix_path else self._listen_on_port())
        if self._watch is not None:
            self._watch.start()

    async def _listen_on_port(self) -> asyncio.Server:
        options = self.options
        try:
            return await asyncio.get_running_loop().create_server(
                self._protocol_factory(),
                options.address or None,
                options.port,
                reuse_port=options.reuse_port or None,
                backlog=_BACKLOG,
            )
        except OSError as error:
            raise Unavailable(
                f"cannot listen on '{options.address}:{options.port}': {_reason(error)}"
            ) from error

    async def _listen_on_path(self) -> asyncio.Server:
        self._unix = UnixSocket(self._unix_path)
        return await asyncio.get_running_loop().create_unix_server(
            self._protocol_factory(), sock=self._unix.socket, backlog=_BACKLOG
        )

    def _protocol_factory(self) -> Callable[[], asyncio.BaseProtocol]:
        certificates, make_connection = self._certificates, self.make_connection
        if certificates is None:
            return make_connection
        state = TlsState()
        return lambda: TlsConnection(self, certificates.context, state, make_connection)

    def reload_certificates(self) -> None:
        """Read the certificates again, soon; nothing without TLS. Connections that are open keep theirs."""
        if self._watch is not None:
            self._watch.reload()

    def retire(self) -> None:
        """Tell clients with every answer that it is the connection's last: none is cut off between two requests."""
        self._is_retiring = True
        for connection in tuple(self.connections):
            connection.retire()

    async def stop(self, grace_s: float) -> None:
        """Accept nothing more, close idle connections, let the others finish for ``grace_s``, then cut them.

        What clients have sent by now is answered, as far as they have connected.
        """
        await self._take_rest()
        self._is_stopping = True
        if self._watch is not None:
            self._watch.stop()
        if self._unix is not None:
            self._unix.unlink()
            self._unix = None
        if self._server is not None:
            self._server.close()
        grace_s -= await self._wait_for_new(min(grace_s, _FIRST_REQUEST_S))
        for connection in tuple(self.connections):
            connection.drain()
        if not await self._wait_until_empty(grace_s):
            log.warning("cutting %d connections that did not finish in time", len(self.connections))
            for connection in tuple(self.connections):
                connection.abort()
            await self._wait_until_empty(_ABORT_TIMEOUT_S)
        if self._server is not None:
            await self._server.wait_closed()
            self._server = None
        self._stop_sweeping()

    async def _take_rest(self) -> None:
        """Take in connections that wait to be accepted, and what they have sent: the system would reset them with the port."""
        if self._server is None:
            return
        with selectors.DefaultSelector() as waiting:
            for listening in self._server.sockets:
                keep_out(listening.fileno())
                waiting.register(listening.fileno(), selectors.EVENT_READ)
            for _ in range(_MOST_TURNS):
                # One turn of the loop accepts, the next one begins the connections, and one more reads.
                for _ in range(3):
                    await asyncio.sleep(0)
                if not waiting.select(0):
                    break

    async def _wait_for_new(self, timeout_s: float) -> float:
        """Close all connections that are not new, and wait for the first request of those that are; return how long it took."""
        start_s = time.monotonic()
        for connection in tuple(self.connections):
            if connection.is_new:
                connection.retire()
            else:
                connection.drain()
        if any(connection.is_new for connection in self.connections):
            await self._wait_until_empty(timeout_s)
        return time.monotonic() - start_s

    async def _wait_until_empty(self, timeout_s: float) -> bool:
        """Wait for the last connection's end; False when it did not come in time."""
        if self.connections:
            self._emptied = asyncio.get_running_loop().create_future()
            await asyncio.wait((self._emptied,), timeout=timeout_s)
        return not self.connections

    # Called by connections

    def add(self, connection: Connection) -> None:
        """Watch over ``connection``."""
        self.connections.add(connection)
        if self._is_retiring:
            connection.retire()
        if self._is_stopping:  # it had been accepted before the socket was closed
            connection.retire()
        elif self._sweep_timer is None:
            self._start_sweeping()

    def remove(self, connection: Connection) -> None:
        """Forget ``connection``, which is lost."""
        self.connections.discard(connection)
        if not self.connections:
            self._stop_sweeping()
            if self._emptied is not None and not self._emptied.done():
                self._emptied.set_result(None)

    def name_peer(self, transport: asyncio.BaseTransport) -> str:
        """Return the client's address, for the access log; ``unix`` on a UNIX domain socket, empty if it has left."""
        if self._unix_path:
            return "unix"
        peer = transport.get_extra_info("peername")
        return str(peer[0]) if peer else ""

    def _start_sweeping(self) -> None:
        loop = asyncio.get_running_loop()
        self._sweep_timer = loop.call_later(self.sweep_interval_s, self._sweep)

    def _stop_sweeping(self) -> None:
        if self._sweep_timer is not None:
            self._sweep_timer.cancel()
            self._sweep_timer = None

    def _sweep(self) -> None:
        self._start_sweeping()
        for connection in tuple(self.connections):
            connection.sweep()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url}, connections {len(self.connections)})"


def _reason(error: OSError) -> str:
    """Return what the system says; event loops put the address before it once more."""
    if isinstance(error, socket.gaierror) or not error.errno:
        return error.strerror or str(error)
    return os.strerror(error.errno)
