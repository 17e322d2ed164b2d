"""HttpFrontend: the v2 protocol over HTTP/1.1, for one server."""

from __future__ import annotations

from bireme.engine.server import Server
from bireme.frontend.http.access import access_recorder
from bireme.frontend.http.api import Api
from bireme.frontend.http.listener import HttpListener
from bireme.frontend.http.options import HttpOptions
from bireme.frontend.http.routes import Router
from bireme.telemetry import open_access_log


class HttpFrontend:
    """Serves ``server`` on a port. Belongs to the loop that the server runs on."""

    def __init__(self, server: Server, options: HttpOptions | None = None) -> None:
        """Prepare; nothing is bound before `start`.

        Raises:
            InvalidArgument: an option is wrong, or the access log or a certificate cannot be opened.
        """
        self.options = options or HttpOptions()
        self._api = Api(server, self.options)
        router = Router(self._api)
        self.access_log = open_access_log(self.options.access_log, json=self.options.access_log_json)
        """None: there is none."""
        self._listener = HttpListener(
            router.resolve,
            self.options,
            limits=self.options.limits,
            cancel=server.cancel,
            log_access=access_recorder(self.access_log),
            statuses=server.metrics.responses("http"),
        )

    @property
    def port(self) -> int:
        """The port that is listened on."""
        return self._listener.port

    @property
    def url(self) -> str:
        """Where a client finds it."""
        return self._listener.url

    @property
    def num_connections(self) -> int:
        """Open connections."""
        return len(self._listener.connections)

    async def start(self) -> None:
        """Listen.

        Raises:
            Unavailable: the address cannot be bound.
        """
        await self._listener.start()

    def reopen(self) -> None:
        """Open the access log again by its name, after a log rotation, and read the certificates again, soon."""
        if self.access_log is not None:
            self.access_log.reopen()
        self._listener.reload_certificates()

    async def retire(self, timeout_s: float) -> None:
        """Prepare for the end: every answer is its connection's last, and what has been received goes to the engine.

        Returns when all bodies that were complete have been inflated, parsed and submitted, after ``timeout_s`` at the
        latest. The engine must not refuse requests before that.
        """
        self._listener.retire()
        await self._api.settle(timeout_s)

    async def stop(self, grace_s: float = 0.0) -> None:
        """Accept nothing more, close idle connections, let requests in flight finish for ``grace_s``, then cut them."""
        await self._listener.stop(grace_s)
        await self._api.stop()
        if self.access_log is not None:
            self.access_log.close()

    def __repr__(self) -> str:
        return f"HttpFrontend({self._listener!r})"
