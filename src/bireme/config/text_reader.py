"""``config.pbtxt`` in, `ModelConfig` out. All faults that can be told apart are reported at once, each with its place.

Strictness is Triton's (protobuf's ``TextFormat``): an unknown field, a repeated scalar and two members of one oneof are
errors.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any, Final

from bireme.config import faults
from bireme.config.model_config import ModelConfig
from bireme.config.schema import INTEGER_RANGES, Field, MessageType, model_config_type
from bireme.config.text_syntax import Entry, Node, position, read_tree
from bireme.types.errors import InvalidArgument

_BOOLS: Final = {
    "true": True,
    "True": True,
    "t": True,
    "1": True,
    "false": False,
    "False": False,
    "f": False,
    "0": False,
}
_SHOWN_CHARACTERS: Final = 40


def parse_text(text: str, path: str | Path) -> ModelConfig:
    """Return the config that protobuf text holds; ``path`` names it in errors.

    Raises:
        InvalidArgument: every fault, as ``path:line:column: what``, in the order of the text.
    """
    tree, syntax_fault = read_tree(text)
    binder = _Binder()
    config = binder.message(tree, (model_config_type(),))
    found = binder.faults
    if syntax_fault is not None:
        found.append((syntax_fault.offset, syntax_fault.message))
    if found:
        lines = [_place(text, path, offset) + message for offset, message in sorted(found)]
        raise InvalidArgument(faults.summarise(lines))
    assert isinstance(config, ModelConfig)
    return config


def _place(text: str, path: str | Path, offset: int) -> str:
    line, column = position(text, offset)
    return f"{path}:{line}:{column}: "


class _Wrong(Exception):
    """A value does not fit its field."""


class _Binder:
    """Turns trees into dataclasses and collects what does not fit, as (offset, message)."""

    def __init__(self) -> None:
        self.faults: list[tuple[int, str]] = []

    def message(self, node: Node, types: tuple[MessageType, ...]) -> Any:
        """Return the dataclass of a message node; ``types`` are its own type and those around it, nearest first."""
        mine = types[0]
        values: dict[str, Any] = {}
        choices: dict[str, Entry] = {}
        lists: defaultdict[str, list[Any]] = defaultdict(list)
        for entry in node.entries:
            field = mine.fields.get(entry.name)
            if field is None:
                self._add(entry, faults.unknown_field(entry.name, mine, types[1:]))
            elif field.key_kind is not None or field.is_repeated:
                for item in entry.value.items if entry.value.kind == "list" else [entry.value]:
                    lists[field.name].append(self._value(item, field, types))
            else:
                self._check_single(entry, field, mine, values, choices)
                values[field.attribute] = self._value(entry.value, field, types)
        for name, items in lists.items():
            field = mine.fields[name]
            values[field.attribute] = tuple(items) if field.is_repeated else dict(filter(None, items))
        return mine.make(**values)

    def _check_single(
        self, entry: Entry, field: Field, mine: MessageType, values: dict[str, Any], choices: dict[str, Entry]
    ) -> None:
        # As in protobuf, a plain scalar may be given again as long as it still has its default.
        if values.get(field.attribute, field.default) != field.default:
            self._add(entry, f"field '{field.name}' in {mine.name} is given twice")
        elif field.oneof is not None:
            other = choices.setdefault(field.oneof, entry)
            if other.name != field.name:
                self._add(entry, faults.two_choices(field, other.name, mine))

    def _value(self, node: Node, field: Field, types: tuple[MessageType, ...]) -> Any:
        try:
            if field.key_kind is not None:
                return self._map_entry(node, field, field.key_kind, types)
            return self._plain_value(node, field, types)
        except _Wrong as wrong:
            self.faults.append((node.offset, str(wrong)))
            return None

    def _map_entry(
        self, node: Node, field: Field, key_kind: str, types: tuple[MessageType, ...]
    ) -> tuple[Any, Any] | None:
        if node.kind != "message":
            raise _Wrong(f"'{field.name}' expects entries {{ key: … value: … }}, found {_show(node)}")
        given: dict[str, Node] = {}
        for entry in node.entries:
            if entry.name not in {"key", "value"}:
                self._add(
                    entry, f"unknown field '{entry.name}' in an entry of '{field.name}'; it has: key, value"
                )
            elif entry.name in given:
                self._add(entry, f"'{entry.name}' is given twice in an entry of '{field.name}'")
            given[entry.name] = entry.value
        if "key" not in given:
            raise _Wrong(f"an entry of '{field.name}' has no 'key'")
        key = _scalar(given["key"], field, key_kind)
        if "value" in given:
            return key, self._plain_value(given["value"], field, types)
        return key, field.message.make() if field.message is not None else ""

    def _plain_value(self, node: Node, field: Field, types: tuple[MessageType, ...]) -> Any:
        if field.message is not None:
            if node.kind != "message":
                raise _Wrong(f"'{field.name}' expects {faults.expected(field)} in {{ }}, found {_show(node)}")
            return self.message(node, (field.message, *types))
        return _scalar(node, field, field.kind)

    def _add(self, entry: Entry, message: str) -> None:
        self.faults.append((entry.offset, message))


def _scalar(node: Node, field: Field, kind: str) -> Any:
    """Return the value of a scalar node."""
    if kind in INTEGER_RANGES:
        return _integer(node, field, kind)
    if kind == "enum":
        return _enum(node, field)
    if kind == "string" and node.kind == "string":
        return node.text
    if kind == "bool" and node.kind in {"name", "number"} and node.text in _BOOLS:
        return _BOOLS[node.text]
    if kind in {"float", "double"} and node.kind in {"name", "number"}:
        return _float(node, field, kind)
    hint = "; put it in quotes" if kind == "string" and node.kind in {"name", "number"} else ""
    hint = hint or ("; write it without quotes" if node.kind == "string" and node.text in _BOOLS else "")
    raise _unexpected(node, field, hint)


def _integer(node: Node, field: Field, kind: str) -> int:
    try:
        if node.kind != "number":
            raise ValueError
        sign, digits = (-1, node.text[1:]) if node.text.startswith("-") else (1, node.text)
        is_octal = digits.startswith("0") and digits.isdecimal() and len(digits) > 1
        value = sign * int(digits, 8 if is_octal else 0)
    except ValueError:
        hint = (
            "; write it without quotes" if node.kind == "string" and node.text.lstrip("-").isdecimal() else ""
        )
        raise _unexpected(node, field, hint) from None
    if not faults.is_in_range(value, kind):
        raise _Wrong(faults.out_of_range(value, field, kind))
    return value


def _float(node: Node, field: Field, kind: str) -> float:
    text = node.text.lower()
    named = text.lstrip("-") in {"inf", "infinity", "nan"}
    if node.kind == "name" and not named:
        raise _unexpected(node, field)
    try:
        value = float(int(text, 16)) if "0x" in text else float(text if named else text.removesuffix("f"))
    except (ValueError, OverflowError):
        raise _unexpected(node, field) from None
    return faults.shortest_float(value) if kind == "float" else value


def _enum(node: Node, field: Field) -> str:
    if node.kind == "name":
        if node.text in field.enum:
            return node.text
        raise _Wrong(faults.unknown_enum_value(node.text, field))
    if node.kind == "number":
        for name, number in field.enum.items():
            if str(number) == node.text:
                return name
        raise _Wrong(faults.unknown_enum_value(node.text, field))
    quoted = node.kind == "string" and node.text in field.enum
    raise _unexpected(node, field, "; write it without quotes" if quoted else "")


def _unexpected(node: Node, field: Field, hint: str = "") -> _Wrong:
    return _Wrong(f"'{field.name}' expects {faults.expected(field)}, found {_show(node)}{hint}")


def _show(node: Node) -> str:
    if node.kind == "message":
        return "a message in { }"
    if node.kind == "list":
        return "a list in [ ]"
    text = node.text if len(node.text) <= _SHOWN_CHARACTERS else node.text[:_SHOWN_CHARACTERS] + "…"
    return f'the string "{text}"' if node.kind == "string" else f"'{text}'"
