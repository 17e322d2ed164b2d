"""JSON text ⇄ Python values, with the liberty Triton takes: bare ``NaN``, ``Inf`` and ``Infinity`` tokens both ways.

orjson does the work. It refuses the bare tokens when it reads and writes ``null`` for them, so each direction has a
second path that is taken only when such a value is really there.

Source: Triton ``triton_json.h`` (RapidJSON with ``kParseNanAndInfFlag`` and ``kWriteNanAndInfFlag``).
"""

from __future__ import annotations

import json
import re
from math import isinf
from typing import Any

import orjson

from bireme.types import Buffer, InvalidArgument

ABSENT: Any = object()
"""Stands for a member that an object does not have (None is JSON's null)."""

_INT64_MIN = -(1 << 63)
_UINT64_MAX = (1 << 64) - 1

# A whole string (closed or not, so that the scan stays linear), or one bare token outside of strings.
_STRING_OR_TOKEN = re.compile(rb'"(?:[^"\\]|\\.?)*+(?:"|\Z)|-?(?:NaN|Inf(?:inity)?)', re.DOTALL)
_TOKEN_VALUES = {
    b"NaN": float("nan"),
    b"-NaN": float("nan"),
    b"Inf": float("inf"),
    b"Infinity": float("inf"),
    b"-Inf": float("-inf"),
    b"-Infinity": float("-inf"),
}


def parse_json(text: Buffer) -> Any:
    """Return the value of a JSON document.

    Numbers that fit in neither int64 nor uint64 are floats; a number too large for a double is an error.

    Raises:
        InvalidArgument: the text is not JSON in UTF-8; names the reason and the byte offset.
    """
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as error:
        data = bytes(text)
        if b"NaN" in data or b"Inf" in data:
            return _parse_with_tokens(data)
        raise _syntax_error(data, error) from None


def write_json(value: Any) -> bytes:
    """Return ``value`` (no arrays) as compact JSON; non-finite floats become bare tokens."""
    try:
        text = orjson.dumps(value)
    except TypeError:  # lone surrogates and integers of more than 64 bits, which the standard library writes
        return json.dumps(value, separators=(",", ":")).encode()
    if b"null" in text:  # maybe a non-finite float
        return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()
    return text


def describe(value: Any) -> str:
    """Name a JSON value for an error message: its kind and, where that is short, the value itself."""
    match value:
        case None:
            return "null"
        case dict():
            return "an object"
        case list():
            return "an array"
        case str():
            return f"the string {_shorten(json.dumps(value[:64], ensure_ascii=False))}"
        case bool():
            return f"the boolean {json.dumps(value)}"
        case int():
            return f"the integer {value}"
        case _:
            return f"the number {json.dumps(value)}"


def wrong_member(key: str, owner: str, expected: str, value: Any) -> InvalidArgument:
    """Return the error for a member ``key`` of ``owner`` that is `ABSENT` or of the wrong type."""
    if value is ABSENT:
        return InvalidArgument(f"Unable to parse '{key}': {owner} has no such member, expected {expected}")
    return InvalidArgument(f"Unable to parse '{key}': {owner} expects {expected}, found {describe(value)}")


def _shorten(text: str) -> str:
    return text if len(text) <= 40 else text[:37] + "..."


def _parse_with_tokens(data: bytes) -> Any:
    """Parse JSON that may hold bare tokens, by the standard library.

    That knows ``NaN`` and ``Infinity`` only. So each token is replaced by a ``NaN`` padded to its length, which keeps
    the offsets of errors true, and the parser asks for the values back in document order.
    """
    values: list[float] = []

    def replace(match: re.Match[bytes]) -> bytes:
        found = match.group()
        value = _TOKEN_VALUES.get(found)
        if value is None:
            if b"\\u" in found:
                _check_surrogates(found, match.start())
            return found
        values.append(value)
        return b"NaN".ljust(len(found))

    try:
        text = _STRING_OR_TOKEN.sub(replace, data).decode()
        in_order = iter(values)
        return json.loads(
            text, parse_constant=lambda _: next(in_order), parse_int=_to_integer, parse_float=_to_finite
        )
    except RecursionError:
        raise InvalidArgument("failed to parse the request JSON buffer: nesting is too deep at 0") from None
    except ValueError as error:
        raise _syntax_error(data, error) from None


def _check_surrogates(string: bytes, offset: int) -> None:
    """Refuse a string with half of a surrogate pair, as orjson does: it is no text, and cannot be encoded again."""
    try:
        json.loads(string).encode()
    except UnicodeEncodeError:
        raise _parse_error("half of a surrogate pair in string", offset) from None
    except ValueError:
        pass  # not even a string: the parser says so, and where


def _to_integer(digits: str) -> int | float:
    if len(digits) <= 20:
        value = int(digits)
        if _INT64_MIN <= value <= _UINT64_MAX:
            return value
    return _to_finite(digits)


def _to_finite(digits: str) -> float:
    value = float(digits)
    if isinf(value):
        raise ValueError(f"number {_shorten(digits)} is too large for a double")
    return value


def _syntax_error(data: bytes, error: ValueError) -> InvalidArgument:
    """Return the error for a client; parsers count characters, we tell bytes."""
    try:
        text = data.decode()
    except UnicodeDecodeError as undecodable:
        return _parse_error(f"invalid UTF-8 ({undecodable.reason})", undecodable.start)
    if not isinstance(error, json.JSONDecodeError):
        return _parse_error(str(error), 0)
    return _parse_error(error.msg, len(text[: error.pos].encode()))


def _parse_error(reason: str, offset: int) -> InvalidArgument:
    return InvalidArgument(f"failed to parse the request JSON buffer: {reason} at {offset}")
