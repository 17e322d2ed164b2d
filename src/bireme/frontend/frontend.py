"""FrontEnd: what every front end does with its listener, its work and its access log, from start to stop."""

from __future__ import annotations

from bireme.frontend.listener import Listener
from bireme.frontend.options import ListenOptions
from bireme.frontend.work import Work
from bireme.telemetry import AccessLog


class FrontEnd:
    """One protocol on one address. Belongs to the loop that the server runs on."""

    options: ListenOptions

    def __init__(
        self, listener: Listener, work: Work | None = None, access_log: AccessLog | None = None
    ) -> None:
        self._listener = listener
        self._work = work
        """None: nothing is pending between two events."""
        self.access_log = access_log
        """None: there is none."""

    @property
    def port(self) -> int:
        """The port that is listened on; 0 on a UNIX domain socket."""
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
        """Prepare for the end: clients are asked to go elsewhere, and what has been received goes to the engine.

        Returns when all that was complete has been inflated, parsed and submitted, after ``timeout_s`` at the latest. The
        engine must not refuse requests before that.
        """
        self._ask_to_leave()
        if self._work is not None:
            await self._work.settle(timeout_s)

    def _ask_to_leave(self) -> None:
        self._listener.retire()

    async def stop(self, grace_s: float = 0.0) -> None:
        """Accept nothing more, close idle connections, let requests in flight finish for ``grace_s``, then cut them."""
        await self._listener.stop(grace_s)
        if self._work is not None:
            await self._work.stop()
        if self.access_log is not None:
            self.access_log.close()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._listener!r})"
