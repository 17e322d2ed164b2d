"""`ModelConfig` out as protobuf text, ready to be saved as ``config.pbtxt``. What has its default is left out."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Final

from bireme.config.model_config import ModelConfig
from bireme.config.schema import Field, MessageType, model_config_type

_INDENT: Final = "  "
_ESCAPES: Final = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\r": "\\r", "\t": "\\t"}


def to_text(config: ModelConfig) -> str:
    """Return the config as text; `parse_text` gives the same config back."""
    return "".join(f"{line}\n" for line in _message(config, model_config_type()))


def _message(value: Any, message: MessageType) -> Iterator[str]:
    for field in message.fields.values():
        held = getattr(value, field.attribute)
        if held is not None and (field.oneof is not None or held != field.default):
            yield from _field(held, field)


def _field(value: Any, field: Field) -> Iterator[str]:
    if field.key is not None:
        for key, item in value.items():
            shown = f"key: {_scalar(key, field.key.kind)}"
            yield from _braces(field.name, [shown, *_item(item, field, "value")])
    elif field.is_repeated and field.message is None:
        yield f"{field.name}: [ {', '.join(_scalar(item, field.kind) for item in value)} ]"
    elif field.is_repeated:
        for item in value:
            yield from _item(item, field, field.name)
    else:
        yield from _item(value, field, field.name)


def _item(value: Any, field: Field, name: str) -> list[str]:
    if field.message is None:
        return [f"{name}: {_scalar(value, field.kind)}"]
    return list(_braces(name, list(_message(value, field.message))))


def _braces(name: str, lines: list[str]) -> Iterator[str]:
    if not lines:
        yield f"{name} {{ }}"
        return
    yield f"{name} {{"
    yield from (_INDENT + line for line in lines)
    yield "}"


def _scalar(value: Any, kind: str) -> str:
    if kind == "string":
        return '"' + "".join(_escape(character) for character in value) + '"'
    if kind == "bool":
        return "true" if value else "false"
    if isinstance(value, float) and not math.isfinite(value):
        return "nan" if math.isnan(value) else ("inf" if value > 0 else "-inf")
    return str(value)


def _escape(character: str) -> str:
    if character in _ESCAPES:
        return _ESCAPES[character]
    # Control characters, by their UTF-8 bytes.
    return character if character.isprintable() else "".join(f"\\{byte:03o}" for byte in character.encode())
