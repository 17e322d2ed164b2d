"""What front ends do about a model that is loaded at its first request: wait for it before they look at it."""

from __future__ import annotations

from bireme.engine.request_deadlines import take_parameters
from bireme.engine.server import Server
from bireme.types import InferenceRequest


def must_wait(server: Server, name: str) -> bool:
    """Whether to `wait` before anything is asked of the model; False in every other control mode."""
    return server.on_demand is not None and server.on_demand.wants(name)


async def wait(server: Server, request: InferenceRequest) -> None:
    """Wait until the model of ``request`` is loaded, within the time that it has.

    Raises:
        BiremeError: it will not be, or not in time.
    """
    if request.parameters is not None:
        take_parameters(request)
    await wait_for(server, request.model_name, request)


async def wait_for(server: Server, name: str, request: InferenceRequest | None = None) -> None:
    """As `wait`, for what only asks about a model: for as long as the server's limit allows."""
    if server.on_demand is not None:
        await server.on_demand.load(name, request)
