"""What no front end does yet, in the words of every protocol's answer."""

from __future__ import annotations

from typing import Final

TRACING_UNSUPPORTED: Final = (
    "tracing is not supported yet; statistics and metrics have the times of every phase"
)
