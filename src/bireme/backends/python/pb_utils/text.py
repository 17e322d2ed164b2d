"""Text that models hand over."""

from __future__ import annotations

from typing import Any


def to_text(what: str, value: Any) -> str:
    """Return ``value`` as a plain str. Models pass on the bytes of a BYTES tensor as names and messages: those are UTF-8.

    Raises:
        TypeError: it is neither a str nor bytes; ``what`` is its name there.
    """
    if isinstance(value, str):
        return str.__str__(value)  # subclasses do not travel
    if isinstance(value, (bytes, bytearray)):
        return value.decode(errors="replace")
    raise TypeError(f"{what} must be a str, found {type(value).__name__}")
