"""JSON in, `ModelConfig` out: the form of load overrides and of the HTTP config route.

As in protobuf's JSON mapping a field goes by its own or its camelCase name, null means absent, 64-bit integers may be
strings; as in Triton enum names match in any case and an unknown field is an error. All faults are reported at once,
each with the path of its field.

Source: Triton ``model_config_utils.cc`` (JsonToModelConfig); protobuf "ProtoJSON Format".
"""

from __future__ import annotations

import json
import math
from typing import Any, Final

from bireme.config import faults
from bireme.config.model_config import ModelConfig
from bireme.config.schema import INTEGER_RANGES, Field, MessageType, model_config_type
from bireme.types.errors import InvalidArgument

_FLOAT_NAMES: Final = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_SHOWN_CHARACTERS: Final = 40


class _Pairs(list[tuple[str, Any]]):
    """A JSON object with its members in order, repeated ones included."""


def parse_json(text: str | bytes, source: str) -> ModelConfig:
    """Return the config that a JSON object holds; ``source`` names it in errors.

    Raises:
        InvalidArgument: the place where the JSON breaks off, or every field that does not fit.
    """
    document = _load(text, source)
    if not isinstance(document, _Pairs):
        raise InvalidArgument(
            f"{source}: expected a JSON object with the fields of ModelConfig, found {_show(document)}"
        )
    binder = _Binder()
    config = binder.message(document, "", (model_config_type(),))
    if binder.faults:
        raise InvalidArgument(f"{source}: {faults.summarise(binder.faults)}")
    assert isinstance(config, ModelConfig)
    return config


def _load(text: str | bytes, source: str) -> Any:
    try:
        return json.loads(text, object_pairs_hook=_Pairs)
    except json.JSONDecodeError as error:
        raise InvalidArgument(f"{source}:{error.lineno}:{error.colno}: not valid JSON: {error.msg}") from None
    except RecursionError:
        raise InvalidArgument(f"{source}: not a ModelConfig: the JSON is nested too deeply") from None
    except ValueError as error:  # not UTF-8, or an integer of thousands of digits
        raise InvalidArgument(f"{source}: not valid JSON: {error}") from None


class _Wrong(Exception):
    """A value does not fit its field."""


class _NotNumeric(ValueError):
    """A JSON value of another type where a number, or a number as text, is due."""


class _Binder:
    """Turns JSON values into dataclasses and collects what does not fit."""

    def __init__(self) -> None:
        self.faults: list[str] = []

    def message(self, members: _Pairs, path: str, types: tuple[MessageType, ...]) -> Any:
        """Return the dataclass of a JSON object; ``types`` are its own type and those around it, nearest first."""
        mine = types[0]
        values: dict[str, Any] = {}
        choices: dict[str, str] = {}
        for name, value in members:
            field = mine.fields.get(name) or _by_json_name(name, mine)
            place = f"{path}.{name}" if path else name
            if field is None:
                self.faults.append(_prefix(path) + faults.unknown_field(name, mine, types[1:]))
            elif value is None:
                continue
            elif field.attribute in values:
                self.faults.append(f"{_prefix(path)}field '{field.name}' in {mine.name} is given twice")
            else:
                if field.oneof is not None and choices.setdefault(field.oneof, name) != name:
                    self.faults.append(_prefix(path) + faults.two_choices(field, choices[field.oneof], mine))
                values[field.attribute] = self._value(value, field, place, types)
        return mine.make(**values)

    def _value(self, value: Any, field: Field, place: str, types: tuple[MessageType, ...]) -> Any:
        if field.key_kind is not None:
            return self._map(value, field, field.key_kind, place, types)
        if not field.is_repeated:
            return self._item(value, field, place, types)
        if not isinstance(value, list) or isinstance(value, _Pairs):
            self.faults.append(f"{place}: expected a list, found {_show(value)}")
            return ()
        return tuple(self._item(item, field, f"{place}[{i}]", types) for i, item in enumerate(value))

    def _map(
        self, value: Any, field: Field, key_kind: str, place: str, types: tuple[MessageType, ...]
    ) -> Any:
        if not isinstance(value, _Pairs):
            self.faults.append(f"{place}: expected an object, found {_show(value)}")
            return {}
        entries: dict[Any, Any] = {}
        for text, item in value:
            try:
                key = _scalar(text, field, key_kind) if key_kind != "string" else text
            except _Wrong as wrong:
                self.faults.append(f"{place}: key {wrong}")
                continue
            if key in entries:
                self.faults.append(f"{place}: key '{text}' is given twice")
            entries[key] = self._item(item, field, f"{place}[{text!r}]", types)
        return entries

    def _item(self, value: Any, field: Field, place: str, types: tuple[MessageType, ...]) -> Any:
        if field.message is None:
            try:
                return _scalar(value, field, field.kind)
            except _Wrong as wrong:
                self.faults.append(f"{place}: {wrong}")
                return None
        if not isinstance(value, _Pairs):
            self.faults.append(
                f"{place}: expected {faults.expected(field)} as an object, found {_show(value)}"
            )
            return None
        return self.message(value, place, (field.message, *types))


def _by_json_name(name: str, message: MessageType) -> Field | None:
    return next((field for field in message.fields.values() if field.json_name == name), None)


def _prefix(path: str) -> str:
    return f"{path}: " if path else ""


def _scalar(value: Any, field: Field, kind: str) -> Any:
    """Return the value of a scalar."""
    if kind in INTEGER_RANGES:
        return _integer(value, field, kind)
    if kind == "enum":
        return _enum(value, field)
    if kind in {"float", "double"}:
        return _float(value, field, kind)
    if kind == "bool" and isinstance(value, bool):
        return value
    if kind == "string" and isinstance(value, str):
        if value.isascii() or _is_unicode(value):
            return value
        raise _Wrong("the string holds half a surrogate pair, which is not valid Unicode")
    raise _unexpected(value, field)


def _integer(value: Any, field: Field, kind: str) -> int:
    try:
        number = int(_number_or_text(value))
        if isinstance(value, float) and number != value:
            raise ValueError
    except (ValueError, OverflowError):
        raise _unexpected(value, field) from None
    if not faults.is_in_range(number, kind):
        raise _Wrong(faults.out_of_range(number, field, kind))
    return number


def _float(value: Any, field: Field, kind: str) -> float:
    if isinstance(value, str):
        value = _FLOAT_NAMES.get(value, value)
    try:
        number = float(_number_or_text(value))
    except (ValueError, OverflowError):
        raise _unexpected(value, field) from None
    return faults.shortest_float(number) if kind == "float" else number


def _number_or_text(value: Any) -> int | float | str:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise _NotNumeric
    return value


def _enum(value: Any, field: Field) -> str:
    if isinstance(value, str):
        name = value.upper()
        if name in field.enum:
            return name
        raise _Wrong(faults.unknown_enum_value(value, field))
    if isinstance(value, int | float) and not isinstance(value, bool):
        for name, number in field.enum.items():
            if number == value:
                return name
        raise _Wrong(faults.unknown_enum_value(str(value), field))
    raise _unexpected(value, field)


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _unexpected(value: Any, field: Field) -> _Wrong:
    return _Wrong(f"expected {faults.expected(field)}, found {_show(value)}")


def _show(value: Any) -> str:
    if isinstance(value, _Pairs):
        return "an object"
    if isinstance(value, list):
        return "a list"
    text = json.dumps(value, ensure_ascii=False)
    text = text if len(text) <= _SHOWN_CHARACTERS else text[:_SHOWN_CHARACTERS] + "…"
    return f"the string {text}" if isinstance(value, str) else text
