"""Words for what is wrong with a config, so that the text and the JSON parser say the same things the same way."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable
from typing import Final

from bireme.config.schema import INTEGER_RANGES, Field, MessageType

_MAX_REPORTED: Final = 20

# What people write, by habit from other tools, for what the proto calls otherwise.
_FIELD_SYNONYMS: Final = {
    "shape": "dims",
    "dim": "dims",
    "type": "data_type",
    "dtype": "data_type",
    "datatype": "data_type",
}
_TYPE_SYNONYMS: Final = {
    "BFLOAT16": "BF16",
    "BOOLEAN": "BOOL",
    "BYTE": "UINT8",
    "BYTES": "STRING",
    "CHAR": "STRING",
    "DOUBLE": "FP64",
    "FLOAT": "FP32",
    "FLOAT16": "FP16",
    "FLOAT32": "FP32",
    "FLOAT64": "FP64",
    "HALF": "FP16",
    "INT": "INT32",
    "LONG": "INT64",
    "OBJECT": "STRING",
    "STR": "STRING",
}
_EXPECTED: Final = {
    "bool": "true or false",
    "double": "a number",
    "float": "a number",
    "int32": "an integer",
    "int64": "an integer",
    "string": "a string",
    "uint32": "a non-negative integer",
    "uint64": "a non-negative integer",
}


def summarise(faults: list[str]) -> str:
    """Return one text for several faults, in order; a very long list is cut."""
    rest = len(faults) - _MAX_REPORTED
    return "; ".join(faults[:_MAX_REPORTED]) + (f"; and {rest} more" if rest > 0 else "")


def near_name(name: str, known: Iterable[str]) -> str | None:
    """Return the name of ``known`` that was probably meant."""
    import difflib

    by_lower = {candidate.lower(): candidate for candidate in known}
    found = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=0.7)
    return by_lower[found[0]] if found else None


def unknown_field(name: str, message: MessageType, enclosing: Iterable[MessageType]) -> str:
    """Say that a message has no such field, and where the name does belong, if anywhere.

    ``enclosing`` are the messages around it, nearest first.
    """
    found = f"unknown field '{name}' in {message.name}"
    for outer in enclosing:
        if name in outer.fields:
            return f"{found}; it is a field of {outer.name}: is a '}}' missing before it?"
    synonym = _FIELD_SYNONYMS.get(name)
    near = synonym if synonym in message.fields else near_name(name, message.fields)
    if near is not None:
        return f"{found}; did you mean '{near}'?"
    for field in message.fields.values():
        if field.message is not None and field.key_kind is None and name in field.message.fields:
            return f"{found}; did you mean '{name}' inside '{field.name}'?"
    return f"{found}; it has: {', '.join(message.fields)}"


def two_choices(field: Field, other: str, message: MessageType) -> str:
    """Say that two members of one oneof are set."""
    members = ", ".join(member.name for member in message.fields.values() if member.oneof == field.oneof)
    return f"'{field.name}' cannot stand beside '{other}': {message.name} takes only one of {members}"


def unknown_enum_value(value: str, field: Field) -> str:
    """Say that an enum has no such value, and which one was probably meant."""
    found = f"'{field.name}' has no value '{value}'"
    near = _near_enum_value(value, field)
    if near is not None:
        return f"{found}; did you mean {near}?"
    return f"{found}; expected one of {', '.join(name for name in field.enum if name != 'TYPE_INVALID')}"


def _near_enum_value(value: str, field: Field) -> str | None:
    upper = value.upper()
    bare = upper.removeprefix("TYPE_")
    for candidate in (upper, f"TYPE_{_TYPE_SYNONYMS.get(bare, bare)}"):
        if candidate in field.enum:
            return candidate
    endings = [name for name in field.enum if name.endswith(f"_{upper}")]
    return endings[0] if len(endings) == 1 else near_name(value, field.enum)


def expected(field: Field) -> str:
    """Say what the field takes."""
    if field.enum:
        names = [name for name in field.enum if name != "TYPE_INVALID"]
        return f"one of {', '.join(names[:4])}{', …' if len(names) > 4 else ''}"
    if field.message is not None:
        return f"a {field.message.name} message"
    return _EXPECTED[field.kind]


def is_in_range(value: int, kind: str) -> bool:
    """Whether an integer fits its kind."""
    low, high = INTEGER_RANGES[kind]
    return low <= value <= high


def out_of_range(value: int, field: Field, kind: str) -> str:
    """Say that an integer does not fit its kind."""
    low, high = INTEGER_RANGES[kind]
    return f"'{field.name}' is {value}, which does not fit in {kind}: expected {low} to {high}"


def shortest_float(value: float) -> float:
    """Return the number that a 32-bit float field holds for ``value``, as its shortest decimal: 0.3 stays 0.3."""
    if not math.isfinite(value):
        return value
    try:
        (single,) = struct.unpack("<f", struct.pack("<f", value))
    except OverflowError:
        return math.copysign(math.inf, value)
    for digits in range(6, 9):
        short = float(f"{single:.{digits}g}")
        if struct.unpack("<f", struct.pack("<f", short))[0] == single:
            return short
    return float(f"{single:.9g}")
