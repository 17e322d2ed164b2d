"""Routes of Triton's that this server does not serve yet: each says so, instead of looking like an unknown path."""

from __future__ import annotations

from bireme.frontend.http.call import Call
from bireme.frontend.unsupported import TRACING_UNSUPPORTED
from bireme.types import Unsupported
from bireme.wire.http import CLIENT_SHARED_MEMORY_UNSUPPORTED


def generate(call: Call) -> None:
    """The generate extension."""
    raise Unsupported(
        f"the generate extension is not supported yet; send model '{call.target.model}' an infer request"
    )


def trace(_: Call) -> None:
    """Trace settings."""
    raise Unsupported(TRACING_UNSUPPORTED)


def shared_memory(_: Call) -> None:
    """System and CUDA shared memory regions."""
    raise Unsupported(CLIENT_SHARED_MEMORY_UNSUPPORTED)
