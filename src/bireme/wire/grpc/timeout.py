"""``grpc-timeout``: how long a client waits for its call.

Source: gRPC over HTTP/2, "Timeout".
"""

from __future__ import annotations

from typing import Final

from bireme.wire.grpc.status import Refusal, Status

_UNITS_NS: Final = {
    b"H": 3_600_000_000_000,
    b"M": 60_000_000_000,
    b"S": 1_000_000_000,
    b"m": 1_000_000,
    b"u": 1_000,
    b"n": 1,
}
_MAX_DIGITS = 8


def parse_timeout(value: bytes) -> int:
    """Return the ns that a ``grpc-timeout`` header gives a call; 0: none is left.

    Raises:
        Refusal: INTERNAL, that's no timeout.
    """
    digits = value[:-1]
    unit_ns = _UNITS_NS.get(value[-1:])
    if unit_ns is None or not digits.isdigit() or len(digits) > _MAX_DIGITS:
        shown = value[:32].decode("ascii", "backslashreplace")
        raise Refusal(
            Status.INTERNAL,
            f"malformed grpc-timeout '{shown}', expected up to 8 digits and one of H, M, S, m, u, n",
        )
    return int(digits) * unit_ns
