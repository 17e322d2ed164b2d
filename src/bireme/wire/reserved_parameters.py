"""Names of request parameters that have a meaning of their own, in every protocol.

Source: Triton ``http_server.cc`` (``ForwardHeaders``), ``infer_handler.h`` (``ForwardHeadersAsParameters``).
"""

from __future__ import annotations

from typing import Final

from bireme.types import InvalidArgument

RESERVED_PREFIX: Final = "triton_"
_OUR_PREFIX: Final = "bireme_"
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


def forwarded_name(name: str) -> str:
    """Return the parameter's name that a header is forwarded by: its own as it was sent, or in lower case if it is one of ours.

    Raises:
        InvalidArgument: a parameter of that name has a meaning.
    """
    lower = name.lower()
    if is_reserved_parameter(lower):
        raise InvalidArgument(f"Header '{name}' is reserved for Triton usage and cannot be forwarded.")
    return lower if lower.startswith(_OUR_PREFIX) else name
