"""gRPC statuses, and the prepared header blocks that carry them.

Every block here leaves the peer's header table as it is, so a block made once may be sent on any connection.

Source: gRPC over HTTP/2 ("Responses", "Status"); gRPC ``status_code.h``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from enum import IntEnum
from typing import Final

from bireme.wire.http2.headers import encode_block


class Status(IntEnum):
    """gRPC's status codes."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16


class Refusal(Exception):
    """What a client sent breaks gRPC's own rules or limits: the call ends with ``status`` and ``text``."""

    def __init__(self, status: Status, text: str) -> None:
        super().__init__(status, text)
        self.status = status
        self.text = text

    def __str__(self) -> str:
        return f"{self.status.name}: {self.text}"


MAX_MESSAGE_SIZE: Final = 4096
"""Bytes of a ``grpc-message`` as it is sent; a longer one is cut. Clients throw away trailers of more than 8 KB (gRPC's
soft limit on metadata), and with them the status."""

_OK_STATUS = (b":status", b"200")
_CONTENT_TYPE = (b"content-type", b"application/grpc")
_find_special: Final = re.compile(rb"[^ -$&-~]")
_CUT = b"..."

_status_fields: Final = [encode_block([(b"grpc-status", b"%d" % status)]) for status in Status]

OK_TRAILERS: Final = _status_fields[Status.OK]
"""The trailers of a call that succeeded."""


def response_headers(encoding: str | None = None) -> bytes:
    """Return the block that begins a response whose messages may be compressed by ``encoding``."""
    fields = [_OK_STATUS, _CONTENT_TYPE]
    if encoding is not None:
        fields.append((b"grpc-encoding", encoding.encode()))
    return encode_block(fields)


RESPONSE_HEADERS: Final = response_headers()
"""The block that begins a response."""
GZIP_RESPONSE_HEADERS: Final = response_headers("gzip")
DEFLATE_RESPONSE_HEADERS: Final = response_headers("deflate")


def trailers(status: Status, message: str = "") -> bytes:
    """Return the block that ends a response with ``status``."""
    if not message:
        return _status_fields[status]
    return _status_fields[status] + encode_block([(b"grpc-message", encode_message(message))])


def trailers_only(status: Status, message: str = "", extra: Iterable[tuple[bytes, bytes]] = ()) -> bytes:
    """Return the one block of a response that is nothing but a status, with ``extra`` fields in it."""
    return RESPONSE_HEADERS + encode_block(extra) + trailers(status, message)


def http_refusal(status: int) -> bytes:
    """Return the one block of an answer to what is no gRPC request, as 415 to another content type."""
    return encode_block([(b":status", b"%d" % status)])


def encode_message(message: str) -> bytes:
    """Return ``message`` percent-encoded for ``grpc-message``, cut between two characters at `MAX_MESSAGE_SIZE`."""
    message = message[: MAX_MESSAGE_SIZE + 1]
    encoded = _escape(message)
    while len(encoded) > MAX_MESSAGE_SIZE:
        message = message[: len(message) * MAX_MESSAGE_SIZE // len(encoded) - len(_CUT)]
        encoded = _escape(message) + _CUT
    return encoded


def _escape(message: str) -> bytes:
    return _find_special.sub(_escape_byte, message.encode(errors="replace"))


def _escape_byte(match: re.Match[bytes]) -> bytes:
    return b"%%%02X" % match[0][0]
