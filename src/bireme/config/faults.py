"""Words for what is wrong with a config, so that the text and the JSON parser say the same things the same way."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Sequence
from typing import Final

from bireme.config.schema import INTEGER_RANGES, Field, MessageType

MAX_REPORTED: Final = 20
"""The parsers stop at so many faults."""

_MAX_SHOWN: Final = 40

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


class Misfit(Exception):
    """A value does not fit its field. The text goes on from the field's name: "expects …, found …"."""


class EnoughFaults(Exception):
    """So many faults have been found that looking for more helps nobody."""


def summarise(faults: Sequence[str]) -> str:
    """Return one text for several faults, in order; a very long list is cut."""
    cut = "; more faults are not shown" if len(faults) >= MAX_REPORTED else ""
    return "; ".join(faults[:MAX_REPORTED]) + cut


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
    name = shorten(name)
    found = f"unknown field '{name}' in {message.name}"
    for outer in enclosing:
        if name in outer.fields:
            return f"{found}; it is a field of {outer.name}: is a '}}' missing before it?"
    synonym = _FIELD_SYNONYMS.get(name)
    near = synonym if synonym in message.fields else near_name(name, message.fields)
    if near is not None:
        return f"{found}; did you mean '{near}'?"
    for field in message.fields.values():
        if field.message is not None and field.key is None and name in field.message.fields:
            return f"{found}; did you mean '{name}' inside '{field.name}'?"
    return f"{found}; it has: {', '.join(message.fields)}"


def two_choices(field: Field, other: str, message: MessageType) -> str:
    """Say that two members of one oneof are set."""
    members = ", ".join(member.name for member in message.fields.values() if member.oneof == field.oneof)
    return f"'{field.name}' cannot stand beside '{other}': {message.name} takes only one of {members}"


def unknown_enum_value(value: str, field: Field) -> Misfit:
    """Say that an enum has no such value, and which one was probably meant."""
    value = shorten(value)
    found = f"has no value '{value}'"
    near = _near_enum_value(value, field)
    if near is not None:
        return Misfit(f"{found}; did you mean {near}?")
    return Misfit(f"{found}; expected one of {', '.join(_usable_names(field))}")


def _near_enum_value(value: str, field: Field) -> str | None:
    upper = value.upper()
    bare = upper.removeprefix("TYPE_")
    for candidate in (upper, f"TYPE_{_TYPE_SYNONYMS.get(bare, bare)}"):
        if candidate in field.enum:
            return candidate
    endings = [name for name in field.enum if name.endswith(f"_{upper}")]
    return endings[0] if len(endings) == 1 else near_name(value, field.enum)


def expected(field: Field) -> str:
    """Say what a scalar field takes."""
    if field.enum:
        names = _usable_names(field)
        return f"one of {', '.join(names[:4])}{', …' if len(names) > 4 else ''}"
    return _EXPECTED[field.kind]


def _usable_names(field: Field) -> list[str]:
    return [name for name in field.enum if name != "TYPE_INVALID"]


def checked_integer(value: int, field: Field) -> int:
    """Return an integer that fits its field.

    Raises:
        Misfit: it does not.
    """
    low, high = INTEGER_RANGES[field.kind]
    if low <= value <= high:
        return value
    raise Misfit(f"is {shorten(str(value))}, which does not fit in {field.kind}: expected {low} to {high}")


def shorten(text: str) -> str:
    """Return the beginning of a text that was found where it does not belong."""
    return text if len(text) <= _MAX_SHOWN else text[:_MAX_SHOWN] + "…"


def shortest_float(value: float) -> float:
    """Return the number that a 32-bit float field holds for ``value``, as its shortest decimal: 0.3 stays 0.3.

    Minus zero becomes zero: the two are equal here, but not as protobuf sees defaults.
    """
    if value == 0.0:
        return 0.0
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
