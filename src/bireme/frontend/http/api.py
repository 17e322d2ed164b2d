"""Api: what the handlers of the HTTP front end share — the server, the options, and work that takes its time."""

from __future__ import annotations

from bireme.engine.server import Server
from bireme.frontend.http.options import HttpOptions
from bireme.frontend.work import Work, compile_header_pattern
from bireme.ipc.json_offload import JsonOffload
from bireme.wire.http import Limits


class Api(Work):
    """Shared by all handlers. Loop thread only."""

    __slots__ = ("header_pattern", "limits", "offload", "options", "server")

    def __init__(self, server: Server, options: HttpOptions) -> None:
        """Prepare.

        Raises:
            InvalidArgument: the header pattern is no regular expression.
        """
        super().__init__("bireme-http")
        self.server = server
        self.options = options
        self.limits = Limits(max_input_size=options.max_input_size)
        self.header_pattern = compile_header_pattern(options.header_forward_pattern)
        self.offload = JsonOffload(self.limits)

    async def stop(self) -> None:
        """Give up what nobody waits for any more; called when every connection is gone."""
        await super().stop()
        await self.offload.stop()
