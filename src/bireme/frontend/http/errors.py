"""The one table from error codes to HTTP statuses.

Source: Triton ``http_server.cc`` (``HttpCodeFromError``).
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Final

from bireme.types import BiremeError

STATUS_BY_CODE: Final = MappingProxyType(
    {
        "UNKNOWN": 400,
        "INVALID_ARG": 400,
        "ALREADY_EXISTS": 400,
        "CANCELLED": 400,
        "NOT_FOUND": 404,
        "INTERNAL": 500,
        "UNSUPPORTED": 501,
        "UNAVAILABLE": 503,
        "DEADLINE_EXCEEDED": 503,
    }
)
"""HTTP status of every error code (`BiremeError.code`)."""


def status_of(error: BiremeError) -> int:
    """Return the HTTP status of an error."""
    return STATUS_BY_CODE.get(error.code, 400)
