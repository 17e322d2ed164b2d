"""Custom metadata: what of a call's headers is the application's, and what of that becomes request parameters.

Source: gRPC over HTTP/2 ("Custom-Metadata", "Binary-Header"); gRPC core ``call_utils.h`` (what is published to the
application); Triton ``infer_handler.h`` (``ForwardHeadersAsParameters``).
"""

from __future__ import annotations

import binascii
import re
from collections.abc import Iterable
from typing import Final

from bireme.types import Parameter
from bireme.wire.grpc.status import Refusal, Status
from bireme.wire.reserved_parameters import forwarded_name

PROTOCOL_NAMES: Final = frozenset(
    (
        b"te",
        b"content-type",
        b"content-length",
        b"grpc-accept-encoding",
        b"grpc-encoding",
        b"grpc-internal-encoding-request",
        b"grpc-message",
        b"grpc-status",
        b"grpc-timeout",
    )
)
"""Headers that gRPC itself reads, and keeps from the application."""

_BINARY_SUFFIX = b"-bin"


def decode_binary(value: bytes) -> bytes:
    """Return what a ``-bin`` header stands for: base64, with its padding or without.

    Raises:
        Refusal: INTERNAL, it's not base64.
    """
    stripped = value.rstrip(b"=")
    try:
        return binascii.a2b_base64(stripped + b"=" * (-len(stripped) % 4), strict_mode=True)
    except binascii.Error as error:
        raise Refusal(Status.INTERNAL, f"a binary header is not base64: {error}") from None


def forwarded_parameters(
    headers: Iterable[tuple[bytes, bytes]], pattern: re.Pattern[str] | None
) -> dict[str, Parameter] | None:
    """Return the metadata that become parameters of an inference request, or None; of several values the last.

    A text is what its bytes are in Latin-1; so are the decoded bytes of a ``-bin`` header.

    Raises:
        InvalidArgument: one of them is named like a parameter with a meaning.
        Refusal: INTERNAL, a ``-bin`` header is not base64.
    """
    if pattern is None:
        return None
    forwarded: dict[str, Parameter] = {}
    for raw_name, raw_value in headers:
        if raw_name in PROTOCOL_NAMES:
            continue
        name = raw_name.decode("latin-1")
        if pattern.search(name):
            key = forwarded_name(name)
            value = raw_value
            if raw_name.endswith(_BINARY_SUFFIX):
                value = decode_binary(raw_value.rpartition(b",")[2].strip())
            forwarded[key] = value.decode("latin-1")
    return forwarded or None
