"""`ModelConfig` out as JSON: the reply of the config route.

Own field names, every scalar with its default, enums as names, 64-bit integers as numbers. Absent messages and unset
members of a oneof are left out. Three fields stay strings, because Triton forgets to convert them and clients expect
it.

Source: Triton ``model_config_utils.cc`` (ModelConfigToJson).
"""

from __future__ import annotations

import math
from typing import Any, Final

from bireme.config.model_config import ModelConfig
from bireme.config.schema import Field, MessageType, model_config_type

_LEFT_AS_STRINGS: Final = frozenset(
    {
        ("ModelOptimizationPolicy.Cuda.GraphSpec.Shape", "dim"),
        ("ModelInstanceGroup.SecondaryDevice", "device_id"),
        ("ModelSequenceBatching.InitialState", "dims"),
    }
)


def to_json(config: ModelConfig) -> dict[str, Any]:
    """Return the config as JSON values, in the order of the ``.proto``."""
    return _message(config, model_config_type())


def _message(value: Any, message: MessageType) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for field in message.fields.values():
        held = getattr(value, field.attribute)
        if held is not None:
            result[field.name] = _field(
                held, field, as_strings=(message.name, field.name) in _LEFT_AS_STRINGS
            )
    return result


def _field(value: Any, field: Field, *, as_strings: bool) -> Any:
    if field.key is not None:
        return {str(key): _item(item, field, as_strings=as_strings) for key, item in value.items()}
    if field.is_repeated:
        return [_item(item, field, as_strings=as_strings) for item in value]
    return _item(value, field, as_strings=as_strings)


def _item(value: Any, field: Field, *, as_strings: bool) -> Any:
    if field.message is not None:
        return _message(value, field.message)
    if as_strings:
        return str(value)
    if field.kind in {"float", "double"} and not math.isfinite(value):
        # As in protobuf: JSON has no numbers for these.
        return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")
    return value
