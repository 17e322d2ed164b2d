"""Bireme: an inference server in pure Python that speaks Triton's protocols.

import bireme

with bireme.Server("models") as server:
    print(server.infer("plus", {"X": [1.0, 2.0]})["Y"])
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bireme.engine import BlockingServer, InferResult, OnDemandOptions, Server, ServerOptions
    from bireme.types import (
        AlreadyExists,
        BackendFailed,
        BiremeError,
        Cancelled,
        DeadlineExceeded,
        Internal,
        InvalidArgument,
        NotFound,
        QueueFull,
        RequestTimedOut,
        Tensor,
        Unavailable,
        Unsupported,
    )

__version__ = "0.1.0"

__all__ = [
    "AlreadyExists",
    "BackendFailed",
    "BiremeError",
    "BlockingServer",
    "Cancelled",
    "DeadlineExceeded",
    "InferResult",
    "Internal",
    "InvalidArgument",
    "NotFound",
    "OnDemandOptions",
    "QueueFull",
    "RequestTimedOut",
    "Server",
    "ServerOptions",
    "Tensor",
    "Unavailable",
    "Unsupported",
    "__version__",
]

_ENGINE_NAMES = frozenset({"BlockingServer", "InferResult", "OnDemandOptions", "Server", "ServerOptions"})


def __getattr__(name: str) -> Any:
    # Made on first use: a program that needs one piece, a command line above all, does not pay for the others.
    if name not in __all__:
        raise AttributeError(f"module 'bireme' has no attribute '{name}'")
    value = getattr(import_module("bireme.engine" if name in _ENGINE_NAMES else "bireme.types"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
