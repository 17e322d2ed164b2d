"""Whether the server is live and ready, as the health calls of every protocol answer it.

Source: Triton ``server.cc`` (``InferenceServer::IsLive``, ``IsReady``).
"""

from __future__ import annotations

from bireme.engine.server import Server
from bireme.engine.server_state import ServerState
from bireme.types import Unavailable

_LIVE_STATES = (ServerState.INITIALIZING, ServerState.READY)
_ENDING_STATES = (ServerState.EXITING, ServerState.STOPPED)


def is_ending(server: Server) -> bool:
    """Tell whether the server stops or has stopped: it will not be ready again."""
    return server.state in _ENDING_STATES


def is_live(server: Server) -> bool:
    """Tell whether the server is well; it is while models are still being loaded, too.

    Raises:
        Unavailable: the server is stopping.
    """
    _refuse_when_ending(server)
    return server.state in _LIVE_STATES


def is_ready(server: Server) -> bool:
    """Tell whether the server takes requests, by the rules of `Server.is_ready`: as far as it knows.

    Raises:
        Unavailable: the server is stopping.
    """
    _refuse_when_ending(server)
    return server.is_ready


async def check_ready(server: Server) -> bool:
    """As `is_ready`, but ask the models, too, that have a say in it (`Server.asks_models`)."""
    _refuse_when_ending(server)
    return await server.check_ready()


def _refuse_when_ending(server: Server) -> None:
    if is_ending(server):
        raise Unavailable("Server exiting")
