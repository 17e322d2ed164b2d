"""Listener: a listening socket, its connections, and the one timer that watches over all of them."""

from __future__ import annotations

import asyncio
import os
import socket
from collections import defaultdict
from collections.abc import Callable

from bireme.frontend.http.busy_poll import BusyPoll
from bireme.frontend.http.connection import HttpConnection
from bireme.frontend.http.exchange import Exchange, Route
from bireme.frontend.http.head import HeadCache, RequestHead
from bireme.frontend.http.options import ListenOptions
from bireme.telemetry.log import get_logger
from bireme.types import InferenceRequest, Unavailable

log = get_logger(__name__)

_SCRATCH_SIZE = 64 << 10
"""Bytes received at once while no body is under way; the most of a large body that is copied."""
_BACKLOG = 1024
_ABORT_TIMEOUT_S = 1.0
"""An aborted transport reports its end in the next iteration of the loop."""


class Listener:
    """Accepts connections and routes their requests through ``resolve``. Loop thread only."""

    def __init__(
        self,
        resolve: Callable[[RequestHead], Route],
        options: ListenOptions,
        *,
        cancel: Callable[[InferenceRequest], None] | None = None,
        log_access: Callable[[Exchange, int], None] | None = None,
        statuses: defaultdict[int, int] | None = None,
    ) -> None:
        """``cancel`` takes back a request whose client has left; ``log_access`` is told of every answer and its size.

        ``statuses`` counts answers by status, `CLIENT_LEFT` among them.
        """
        self.options = options
        self.limits = options.limits
        self.resolve = resolve
        self.cancel = cancel or _ignore
        self.log_access = log_access
        self.statuses = defaultdict(int) if statuses is None else statuses
        self.heads = HeadCache()
        self.scratch = bytearray(_SCRATCH_SIZE)
        self.scratch_view = memoryview(self.scratch)
        self.connections: set[HttpConnection] = set()
        self.timeouts_s = {
            "request": self.limits.keepalive_timeout_s,
            "head": self.limits.header_timeout_s,
            "body": self.limits.stall_timeout_s,
            "writing": self.limits.stall_timeout_s,
            "end": self.limits.linger_timeout_s,
            "model": 0.0,
        }
        """How long a connection may wait for what, without progress; 0: for ever."""
        self.busy_poll: BusyPoll | None = None
        self._server: asyncio.Server | None = None
        self._sweep_timer: asyncio.TimerHandle | None = None
        self._emptied: asyncio.Future[None] | None = None
        self._is_stopping = False
        self._is_retiring = False

    @property
    def port(self) -> int:
        """The port it listens on, also when any free one was asked for; 0 before the start."""
        if self._server is None or not self._server.sockets:
            return 0
        return int(self._server.sockets[0].getsockname()[1])

    async def start(self) -> None:
        """Listen.

        Raises:
            Unavailable: the address cannot be bound; names it and the system's reason.
        """
        options = self.options
        self._is_stopping = self._is_retiring = False
        if options.busy_poll_us:
            self.busy_poll = BusyPoll(asyncio.get_running_loop(), options.busy_poll_us)
        try:
            self._server = await asyncio.get_running_loop().create_server(
                lambda: HttpConnection(self),
                options.address or None,
                options.port,
                reuse_port=options.reuse_port or None,
                backlog=_BACKLOG,
            )
        except OSError as error:
            raise Unavailable(
                f"cannot listen on '{options.address}:{options.port}': {_reason(error)}"
            ) from error

    def retire(self) -> None:
        """Tell clients with every answer that it is the connection's last: none is cut off between two requests."""
        self._is_retiring = True
        for connection in self.connections:
            connection.retire()

    async def stop(self, grace_s: float) -> None:
        """Accept nothing more, close idle connections, let the others finish for ``grace_s``, then cut them."""
        self._is_stopping = True
        if self._server is not None:
            self._server.close()
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

    async def _wait_until_empty(self, timeout_s: float) -> bool:
        """Wait for the last connection's end; False when it did not come in time."""
        if self.connections:
            self._emptied = asyncio.get_running_loop().create_future()
            await asyncio.wait((self._emptied,), timeout=timeout_s)
        return not self.connections

    # Called by connections

    def add(self, connection: HttpConnection) -> None:
        """Watch over ``connection``."""
        self.connections.add(connection)
        if self._is_retiring:
            connection.retire()
        if self._is_stopping:  # it had been accepted before the socket was closed
            connection.drain()
        elif self._sweep_timer is None:
            self._start_sweeping()

    def remove(self, connection: HttpConnection) -> None:
        """Forget ``connection``, which is lost."""
        self.connections.discard(connection)
        if not self.connections:
            self._stop_sweeping()
            if self._emptied is not None and not self._emptied.done():
                self._emptied.set_result(None)

    def _start_sweeping(self) -> None:
        loop = asyncio.get_running_loop()
        self._sweep_timer = loop.call_later(self.limits.sweep_interval_s, self._sweep)

    def _stop_sweeping(self) -> None:
        if self._sweep_timer is not None:
            self._sweep_timer.cancel()
            self._sweep_timer = None

    def _sweep(self) -> None:
        self._start_sweeping()
        for connection in tuple(self.connections):
            connection.sweep()

    def __repr__(self) -> str:
        return f"Listener({self.options.address}:{self.port}, connections {len(self.connections)})"


def _ignore(request: InferenceRequest) -> None:
    """Nothing to cancel."""


def _reason(error: OSError) -> str:
    """Return what the system says; event loops put the address before it once more."""
    if isinstance(error, socket.gaierror) or not error.errno:
        return error.strerror or str(error)
    return os.strerror(error.errno)
