"""`ModelConfig` to and from the protobuf message ``inference.ModelConfig``, which gRPC clients exchange."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bireme.config.descriptors import message_class
from bireme.config.faults import shortest_float
from bireme.config.model_config import ModelConfig
from bireme.config.schema import Field, MessageType, model_config_type
from bireme.types.errors import InvalidArgument

if TYPE_CHECKING:
    from google.protobuf.message import Message


def to_proto(config: ModelConfig) -> Message:
    """Return the config as an ``inference.ModelConfig`` message of our own pool.

    Raises:
        ValueError: a number does not fit its field.
    """
    message = message_class()()
    _fill(message, config, model_config_type())
    return message


def from_proto(message: Message) -> ModelConfig:
    """Return the config that an ``inference.ModelConfig`` message holds, of whatever pool.

    Raises:
        InvalidArgument: an enum holds a number that has no name.
    """
    config = _read(message, model_config_type())
    assert isinstance(config, ModelConfig)
    return config


def _fill(target: Any, source: Any, message: MessageType) -> None:
    for field in message.fields.values():
        value = getattr(source, field.attribute)
        if value is None:
            continue
        if field.key is not None:
            entries = getattr(target, field.name)
            for key, item in value.items():
                if field.message is not None:
                    _fill(entries[key], item, field.message)
                else:
                    entries[key] = item
        elif field.message is None:
            _set_scalar(target, field, value)
        elif field.is_repeated:
            for item in value:
                _fill(getattr(target, field.name).add(), item, field.message)
        else:
            part = getattr(target, field.name)
            part.SetInParent()
            _fill(part, value, field.message)


def _set_scalar(target: Any, field: Field, value: Any) -> None:
    if field.is_repeated:
        getattr(target, field.name).extend(value)
    else:
        setattr(target, field.name, field.enum[value] if field.enum else value)


def _read(source: Any, message: MessageType) -> Any:
    values: dict[str, Any] = {}
    for field in message.fields.values():
        held = getattr(source, field.name)
        if field.key is not None:
            values[field.attribute] = {key: _read_item(held[key], field) for key in held}
        elif field.is_repeated:
            values[field.attribute] = tuple(_read_item(item, field) for item in held)
        elif (field.message is None and field.oneof is None) or source.HasField(field.name):
            values[field.attribute] = _read_item(held, field)
    return message.make(**values)


def _read_item(value: Any, field: Field) -> Any:
    if field.message is not None:
        return _read(value, field.message)
    if field.enum:
        for name, number in field.enum.items():
            if number == value:
                return name
        raise InvalidArgument(
            f"'{field.name}' holds {value}, expected one of 0 to {max(field.enum.values())}"
        )
    return shortest_float(value) if field.kind == "float" else value
