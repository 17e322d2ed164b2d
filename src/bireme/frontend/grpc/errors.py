"""The one table from error codes to gRPC statuses.

Source: Triton ``grpc_utils.cc`` (``GrpcStatusUtil::CodeToStatus``).
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Final

from bireme.types import BiremeError
from bireme.wire.grpc.status import Status

STATUS_BY_CODE: Final = MappingProxyType(
    {
        "UNKNOWN": Status.UNKNOWN,
        "INVALID_ARG": Status.INVALID_ARGUMENT,
        "ALREADY_EXISTS": Status.ALREADY_EXISTS,
        "CANCELLED": Status.CANCELLED,
        "NOT_FOUND": Status.NOT_FOUND,
        "INTERNAL": Status.INTERNAL,
        "UNSUPPORTED": Status.UNIMPLEMENTED,
        "UNAVAILABLE": Status.UNAVAILABLE,
        "DEADLINE_EXCEEDED": Status.DEADLINE_EXCEEDED,
    }
)
"""gRPC status of every error code (`BiremeError.code`)."""


def status_of(error: BiremeError) -> Status:
    """Return the gRPC status of an error."""
    return STATUS_BY_CODE.get(error.code, Status.UNKNOWN)
