"""Names of request parameters that have a meaning of their own, in every protocol.

Source: Triton ``http_server.cc`` (``ForwardHeaders``), ``infer_handler.h`` (``ForwardHeadersAsParameters``).
"""

from __future__ import annotations

from typing import Final

from bireme.types import InvalidArgument

RESERVED_PREFIX: Final = "triton_"
_RESERVED = frozenset(
    {
        "sequence_id",
        "sequence_start",
        "sequence_end",
        "priority",
        "timeout",
        "headers",
        "binary_data_output",
    }
)


def is_reserved_parameter(key: str) -> bool:
    """Whether a forwarded header must not have this name, because the parameters extension gives it a meaning."""
    return key in _RESERVED or key.startswith(RESERVED_PREFIX)


def check_forwarded(name: str) -> None:
    """Check the name of a header, in any case, that is to become a parameter.

    Raises:
        InvalidArgument: a parameter of that name has a meaning.
    """
    if is_reserved_parameter(name.lower()):
        raise InvalidArgument(f"Header '{name}' is reserved for Triton usage and cannot be forwarded.")
