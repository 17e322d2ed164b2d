"""What front ends do about a model that is loaded at its first request: wait for it before they look at it."""

from __future__ import annotations

from bireme.engine.request_deadlines import take_parameters
from bireme.engine.server import Server
from bireme.types import InferenceRequest


def must_wait(server: Server, name: str) -> bool:
    """Whether to `wait` before anything is asked of the model; False in every other control mode."""
    return server.on_demand is not None and server.on_demand.wants(name)


def begin(server: Server, name: str) -> None:
    """Begin the load of a model, while its request is brought into form.

    Raises:
        Unavailable: its last load failed, a moment ago.
    """
    if server.on_demand is not None:
        server.on_demand.begin(name)


def carry_over(waited: InferenceRequest, request: InferenceRequest) -> None:
    """Let ``request`` have the deadline that ``waited`` had in its place, before it could be decoded.

    Raises:
        InvalidArgument: a parameter that is meant for the server is wrong.
    """
    if request.parameters is not None:
        take_parameters(request)
    if waited.deadline_ns:
        request.deadline_ns = waited.deadline_ns


async def wait(server: Server, request: InferenceRequest, start_ns: int = 0) -> None:
    """Wait until the model of ``request`` is loaded, within the time that it has from ``start_ns`` on (0: from now on).

    Raises:
        BiremeError: it will not be, or not in time.
    """
    if request.parameters is not None:
        take_parameters(request, start_ns)
    await wait_for(server, request.model_name, request)


async def wait_for(server: Server, name: str, request: InferenceRequest | None = None) -> None:
    """As `wait`, for what only asks about a model: for as long as the server's limit allows."""
    if server.on_demand is not None:
        await server.on_demand.load(name, request)
