"""What each field of a ModelConfig may hold: the ``.proto`` (widths, enums, oneofs) joined with the dataclasses.

The parsers, the printers and the protobuf conversion all walk this one description, so that none of them names a
field. It is built once, on first use.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Final, get_args, get_origin, get_type_hints

from bireme.config.descriptors import descriptor
from bireme.config.model_config import ModelConfig

if TYPE_CHECKING:
    from google.protobuf.descriptor import Descriptor, FieldDescriptor

INTEGER_RANGES: Final = {
    "int32": (-(2**31), 2**31 - 1),
    "int64": (-(2**63), 2**63 - 1),
    "uint32": (0, 2**32 - 1),
    "uint64": (0, 2**64 - 1),
}
"""Smallest and largest value of each integer kind."""

# The types of FieldDescriptorProto that our .proto uses, by number.
_KINDS: Final = {
    1: "double",
    2: "float",
    3: "int64",
    4: "uint64",
    5: "int32",
    8: "bool",
    9: "string",
    11: "message",
    13: "uint32",
    14: "enum",
}


@dataclass(frozen=True, slots=True)
class Field:
    """One field. Of a map, ``kind``, ``enum`` and ``message`` describe the values."""

    name: str
    attribute: str
    """Of the dataclass; differs from ``name`` where that is a Python keyword."""
    json_name: str
    """protobuf's other spelling in JSON (``maxBatchSize``)."""
    kind: str
    """``int32`` … ``uint64``, ``float``, ``double``, ``bool``, ``string``, ``enum`` or ``message``."""
    default: Any
    """The dataclass's value when the field is absent; None where absence can be told from the default."""
    is_repeated: bool
    key: Field | None
    """What a map's keys are; None: the field is no map."""
    enum: Mapping[str, int]
    """Numbers by name; empty: no enum."""
    message: MessageType | None
    oneof: str | None
    """Name of the group of which at most one field may be set."""


@dataclass(frozen=True, slots=True)
class MessageType:
    """One message: its name, the dataclass that holds it, and its fields in the order of the ``.proto``."""

    name: str
    make: Callable[..., Any]
    fields: Mapping[str, Field]


@cache
def model_config_type() -> MessageType:
    """Return the description of ModelConfig, the root of all others."""
    return _describe_message(descriptor(), ModelConfig, {})


def _describe_message(message: Descriptor, cls: type, known: dict[str, MessageType]) -> MessageType:
    if (found := known.get(message.full_name)) is not None:
        return found
    hints = get_type_hints(cls)
    fields = {field.name: _describe_field(field, cls, hints, known) for field in message.fields}
    described = MessageType(message.full_name.partition(".")[2], cls, fields)
    known[message.full_name] = described
    return described


def _describe_field(
    field: FieldDescriptor, cls: type, hints: Mapping[str, Any], known: dict[str, MessageType]
) -> Field:
    attribute = field.name if field.name in hints else f"{field.name}_"
    held, is_repeated, is_map = _unwrap(hints[attribute])
    entry = field.message_type if is_map else None
    value = entry.fields_by_name["value"] if entry else field
    default = cls.__dataclass_fields__[attribute].default  # type: ignore[attr-defined]
    return Field(
        name=field.name,
        attribute=attribute,
        json_name=field.json_name,
        kind=_KINDS[value.type],
        default={} if is_map else default,
        is_repeated=is_repeated,
        key=_describe_key(entry.fields_by_name["key"]) if entry else None,
        enum={item.name: item.number for item in value.enum_type.values} if value.enum_type else {},
        message=_describe_message(value.message_type, held, known) if value.message_type else None,
        oneof=field.containing_oneof.name if field.containing_oneof else None,
    )


def _describe_key(field: FieldDescriptor) -> Field:
    return Field(
        field.name, field.name, field.json_name, _KINDS[field.type], None, False, None, {}, None, None
    )


def _unwrap(hint: Any) -> tuple[Any, bool, bool]:
    """Return what a field's annotation holds, and whether many of them in a row or by key."""
    arguments = get_args(hint)
    if get_origin(hint) is tuple:
        return arguments[0], True, False
    if get_origin(hint) is Mapping:
        return arguments[1], False, True
    return (arguments[0] if arguments else hint), False, False
