"""Routes of Triton's that this server does not serve yet: each says so, instead of looking like an unknown path."""

from __future__ import annotations

from bireme.frontend.http.call import Call
from bireme.frontend.unsupported import TRACING_UNSUPPORTED
from bireme.types import Unsupported


def trace(_: Call) -> None:
    """Trace settings."""
    raise Unsupported(TRACING_UNSUPPORTED)
