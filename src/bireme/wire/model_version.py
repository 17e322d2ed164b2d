"""Model versions as clients write them: digits, or nothing for the latest.

Source: Triton ``common.cc`` (``GetModelVersionFromString``), which takes text that only begins with a number, too.
"""

from __future__ import annotations

from bireme.types import InvalidArgument

_INT64_MAX = (1 << 63) - 1
_MAX_DIGITS = 40
"""Of which some may be leading zeros. int() of more than some thousand digits is an error of its own."""


def parse_model_version(text: str) -> int:
    """Return the version as a number; -1, the latest, for empty text.

    Raises:
        InvalidArgument: it is no number, negative or too large for a version.
    """
    if not text:
        return -1
    if not (text.isascii() and text.removeprefix("-").isdigit()):
        raise _not_a_version(text, "not a number")
    number = int(text) if len(text) <= _MAX_DIGITS else _INT64_MAX + 1
    if number > _INT64_MAX:
        raise _not_a_version(text, "out of range")
    if text[0] == "-":
        raise InvalidArgument(
            f"invalid model version specified '{text}' , version should be an integral value > 0"
        )
    return number


def _not_a_version(text: str, details: str) -> InvalidArgument:
    return InvalidArgument(
        f"failed to get model version from specified version string '{text:.80}' (details: {details}), "
        "version should be an integral value > 0"
    )
