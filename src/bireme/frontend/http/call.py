"""Call: what the handler of a control-plane route is given."""

from __future__ import annotations

from typing import Any, NamedTuple

from bireme.engine.server import Server
from bireme.frontend.http.api import Api
from bireme.frontend.http.exchange import Exchange
from bireme.frontend.http.target import Target
from bireme.wire.http import write_json


class Call(NamedTuple):
    """One request to a route. A handler answers it at once, hands it to `Api.spawn`, or raises a `BiremeError`."""

    api: Api
    exchange: Exchange
    target: Target

    @property
    def server(self) -> Server:
        """The engine."""
        return self.api.server

    def reply_json(self, value: Any) -> None:
        """Answer 200 with ``value`` as JSON."""
        self.exchange.reply(200, write_json(value))
