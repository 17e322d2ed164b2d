"""HttpFrontend: the v2 protocol over HTTP/1.1, for one server."""

from __future__ import annotations

from bireme.engine.server import Server
from bireme.frontend.frontend import FrontEnd
from bireme.frontend.http.access import access_recorder
from bireme.frontend.http.api import Api
from bireme.frontend.http.listener import HttpListener
from bireme.frontend.http.options import HttpOptions
from bireme.frontend.http.routes import Router
from bireme.telemetry import open_access_log


class HttpFrontend(FrontEnd):
    """Serves ``server`` on a port."""

    def __init__(self, server: Server, options: HttpOptions | None = None) -> None:
        """Prepare; nothing is bound before `start`.

        Raises:
            InvalidArgument: an option is wrong, or the access log or a certificate cannot be opened.
        """
        self.options = options or HttpOptions()
        api = Api(server, self.options)
        router = Router(api)
        access_log = open_access_log(self.options.access_log, json=self.options.access_log_json)
        listener = HttpListener(
            router.resolve,
            self.options,
            limits=self.options.limits,
            cancel=server.cancel,
            log_access=access_recorder(access_log),
            statuses=server.metrics.responses("http"),
            tracing=server.tracing,
        )
        super().__init__(listener, api, access_log)
