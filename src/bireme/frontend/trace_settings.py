"""Trace settings of models, for both protocols."""

from __future__ import annotations

from bireme.engine.server import Server
from bireme.types import BiremeError, InvalidArgument


def trace_model(server: Server, name: str) -> str:
    """Return ``name``, which is that of a model that serves, or empty.

    Raises:
        InvalidArgument: no such model serves.
    """
    if name:
        try:
            server.model(name)
        except BiremeError:
            raise InvalidArgument(f"Request for unknown model : {name}") from None
    return name
