"""JSON in, `ModelConfig` out: the form of load overrides and of the HTTP config route.

As in protobuf's JSON mapping a field goes by its own or its camelCase name, null means absent, and numbers may be
strings; as in Triton enum names match in any case and an unknown field is an error. All faults are reported at once,
each with the path of its field.

Source: Triton ``model_config_utils.cc`` (JsonToModelConfig); protobuf "ProtoJSON Format".
"""

from __future__ import annotations

import json
import math
import re
from contextlib import suppress
from typing import Any, Final

from bireme.config import faults
from bireme.config.faults import Misfit
from bireme.config.model_config import ModelConfig
from bireme.config.schema import INTEGER_RANGES, Field, MessageType, model_config_type
from bireme.types.errors import InvalidArgument

_INTEGER: Final = re.compile(r"-?[0-9]{1,20}")
_FLOAT_NAMES: Final = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


class _Object(list[tuple[str, Any]]):
    """A JSON object with its members in order, repeated ones included."""


def parse_json(text: str | bytes, source: str) -> ModelConfig:
    """Return the config that a JSON object holds; ``source`` names it in errors.

    Raises:
        InvalidArgument: the place where the JSON breaks off, or every field that does not fit.
    """
    document = _load(text, source)
    if not isinstance(document, _Object):
        raise InvalidArgument(
            f"{source}: expected a JSON object with the fields of ModelConfig, found {_show(document)}"
        )
    binder = _Binder()
    config = None
    with suppress(faults.EnoughFaults):
        config = binder.message(document, "", (model_config_type(),))
    if binder.faults:
        raise InvalidArgument(f"{source}: {faults.summarise(binder.faults)}")
    assert isinstance(config, ModelConfig)
    return config


def _load(text: str | bytes, source: str) -> Any:
    try:
        # Not orjson: it keeps only the last of two members of one name, and the first would be lost in silence.
        return json.loads(text, object_pairs_hook=_Object)
    except json.JSONDecodeError as error:
        raise InvalidArgument(f"{source}:{error.lineno}:{error.colno}: not valid JSON: {error.msg}") from None
    except RecursionError:
        raise InvalidArgument(f"{source}: not a ModelConfig: the JSON is nested too deeply") from None
    except ValueError as error:  # not UTF-8, or an integer of thousands of digits
        raise InvalidArgument(f"{source}: not valid JSON: {error}") from None


class _Binder:
    """Turns JSON values into dataclasses and collects what does not fit."""

    def __init__(self) -> None:
        self.faults: list[str] = []

    def message(self, members: _Object, path: str, types: tuple[MessageType, ...]) -> Any:
        """Return the dataclass of a JSON object; ``types`` are its own type and those around it, nearest first."""
        mine = types[0]
        values: dict[str, Any] = {}
        chosen: dict[str, str] = {}
        where = f"{path}: " if path else ""
        for name, value in members:
            field = mine.fields.get(name) or _by_json_name(name, mine)
            if field is None:
                self._refuse(where + faults.unknown_field(name, mine, types[1:]))
            elif field.attribute in values:
                self._refuse(f"{where}field '{field.name}' in {mine.name} is given twice")
            elif value is not None:
                if field.oneof is not None and chosen.setdefault(field.oneof, field.name) != field.name:
                    self._refuse(where + faults.two_choices(field, chosen[field.oneof], mine))
                values[field.attribute] = self._value(value, field, f"{path}.{name}" if path else name, types)
        return mine.make(**values)

    def _value(self, value: Any, field: Field, path: str, types: tuple[MessageType, ...]) -> Any:
        if field.key is not None:
            return self._map(value, field, field.key, path, types)
        if not field.is_repeated:
            return self._item(value, field, path, types)
        if not isinstance(value, list) or isinstance(value, _Object):
            self._refuse(f"'{path}' expects a list, found {_show(value)}")
            return ()
        return tuple(self._item(item, field, f"{path}[{index}]", types) for index, item in enumerate(value))

    def _map(
        self, value: Any, field: Field, key_field: Field, path: str, types: tuple[MessageType, ...]
    ) -> dict[Any, Any]:
        if not isinstance(value, _Object):
            self._refuse(f"'{path}' expects an object, found {_show(value)}")
            return {}
        entries: dict[Any, Any] = {}
        for name, item in value:
            key = self._scalar(name, key_field, f"key of '{path}'")
            if key in entries:
                self._refuse(f"'{path}' has the key '{name}' twice")
            entries[key] = self._item(item, field, f"{path}.{name}", types)
        return entries

    def _item(self, value: Any, field: Field, path: str, types: tuple[MessageType, ...]) -> Any:
        if field.message is None:
            return self._scalar(value, field, f"'{path}'")
        if isinstance(value, _Object):
            return self.message(value, path, (field.message, *types))
        self._refuse(f"'{path}' expects an object ({field.message.name}), found {_show(value)}")
        return None

    def _refuse(self, message: str) -> None:
        self.faults.append(message)
        if len(self.faults) == faults.MAX_REPORTED:
            raise faults.EnoughFaults

    def _scalar(self, value: Any, field: Field, label: str) -> Any:
        try:
            return _read_scalar(value, field)
        except Misfit as misfit:
            self._refuse(f"{label} {misfit}")
            return None


def _by_json_name(name: str, message: MessageType) -> Field | None:
    return next((field for field in message.fields.values() if field.json_name == name), None)


def _read_scalar(value: Any, field: Field) -> Any:
    """Return the value of a scalar.

    Raises:
        Misfit: it does not fit the field.
    """
    kind = field.kind
    if kind in INTEGER_RANGES:
        return _read_integer(value, field)
    if kind == "enum":
        return _read_enum(value, field)
    if kind in {"float", "double"}:
        return _read_float(value, field)
    if kind == "bool" and isinstance(value, bool):
        return value
    if kind == "string" and isinstance(value, str):
        return _checked_string(value)
    raise _misfit(value, field)


def _read_integer(value: Any, field: Field) -> int:
    is_integral = isinstance(value, int) and not isinstance(value, bool)
    is_integral |= isinstance(value, float) and value.is_integer()
    is_integral |= isinstance(value, str) and _INTEGER.fullmatch(value) is not None
    if not is_integral:
        raise _misfit(value, field)
    return faults.checked_integer(int(value), field)


def _read_float(value: Any, field: Field) -> float:
    if isinstance(value, str):
        value = _FLOAT_NAMES.get(value, value)
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise _misfit(value, field)
    try:
        number = float(value)
    except (ValueError, OverflowError):
        raise _misfit(value, field) from None
    return faults.shortest_float(number) if field.kind == "float" else number


def _read_enum(value: Any, field: Field) -> str:
    if isinstance(value, str) and value.upper() in field.enum:
        return value.upper()
    if isinstance(value, int | float) and not isinstance(value, bool):
        for name, number in field.enum.items():
            if number == value:
                return name
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise _misfit(value, field)
    raise faults.unknown_enum_value(str(value), field)


def _checked_string(value: str) -> str:
    try:
        value.encode()
    except UnicodeEncodeError:
        raise Misfit("holds half a surrogate pair, which is not valid Unicode") from None
    return value


def _misfit(value: Any, field: Field) -> Misfit:
    return Misfit(f"expects {faults.expected(field)}, found {_show(value)}")


def _show(value: Any) -> str:
    if isinstance(value, _Object):
        return "an object"
    if isinstance(value, list):
        return "a list"
    text = faults.shorten(json.dumps(value))
    return f"the string {text}" if isinstance(value, str) else text
