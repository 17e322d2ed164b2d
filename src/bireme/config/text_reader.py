"""``config.pbtxt`` in, `ModelConfig` out. All faults that can be told apart are reported at once, each with its place.

Strictness is that of Triton (protobuf's ``TextFormat``): an unknown field, a scalar given twice and two members of one
oneof are errors.
"""

from __future__ import annotations

from collections import defaultdict
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from bireme.config import faults
from bireme.config.faults import Misfit
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


_MAX_DIGITS: Final = 100  # far beyond 64 bits, far below what takes long to convert


def parse_text(text: str, path: str | Path) -> ModelConfig:
    """Return the config that protobuf text holds; ``path`` names it in errors.

    Raises:
        InvalidArgument: every fault, as ``path:line:column: what``, in the order of the text.
    """
    tree, syntax_fault = read_tree(text)
    binder = _Binder()
    config = None
    with suppress(faults.EnoughFaults):
        config = binder.message(tree, (model_config_type(),))
    found = binder.faults
    if syntax_fault is not None:
        found.append((syntax_fault.offset, syntax_fault.message))
    if found:
        found.sort(key=lambda fault: fault[0])
        raise InvalidArgument(faults.summarise([_place(text, path, at) + message for at, message in found]))
    assert isinstance(config, ModelConfig)
    return config


def _place(text: str, path: str | Path, offset: int) -> str:
    line, column = position(text, offset)
    return f"{path}:{line}:{column}: "


class _Binder:
    """Turns trees into dataclasses and collects what does not fit, as (offset, message)."""

    def __init__(self) -> None:
        self.faults: list[tuple[int, str]] = []

    def message(self, node: Node, types: tuple[MessageType, ...]) -> Any:
        """Return the dataclass of a message node; ``types`` are its own type and those around it, nearest first."""
        mine = types[0]
        values: dict[str, Any] = {}
        chosen: dict[str, str] = {}
        lists: defaultdict[str, list[Any]] = defaultdict(list)
        for entry in node.entries:
            field = mine.fields.get(entry.name)
            if field is None:
                self._refuse(entry, faults.unknown_field(entry.name, mine, types[1:]))
            elif field.key is not None or field.is_repeated:
                for item in entry.value.items if entry.value.kind == "list" else [entry.value]:
                    lists[field.name].append(self._item(item, field, types))
            else:
                self._check_single(entry, field, mine, values, chosen)
                values[field.attribute] = self._item(entry.value, field, types)
        for name, items in lists.items():
            field = mine.fields[name]
            values[field.attribute] = tuple(items) if field.is_repeated else dict(items)
        return mine.make(**values)

    def _check_single(
        self, entry: Entry, field: Field, mine: MessageType, values: dict[str, Any], chosen: dict[str, str]
    ) -> None:
        # As in protobuf, a plain scalar may be given again as long as it still has its default.
        if values.get(field.attribute, field.default) != field.default:
            self._refuse(entry, f"field '{field.name}' in {mine.name} is given twice")
        elif field.oneof is not None and chosen.setdefault(field.oneof, field.name) != field.name:
            self._refuse(entry, faults.two_choices(field, chosen[field.oneof], mine))

    def _item(self, node: Node, field: Field, types: tuple[MessageType, ...]) -> Any:
        """Return one value of a field; of a map, one entry as (key, value)."""
        if field.key is not None:
            return self._map_entry(node, field, field.key, types)
        return self._plain(node, field, f"'{field.name}'", types)

    def _map_entry(
        self, node: Node, field: Field, key_field: Field, types: tuple[MessageType, ...]
    ) -> tuple[Any, Any]:
        if node.kind != "message":
            self._refuse(node, f"'{field.name}' expects entries {{ key: … value: … }}, found {_show(node)}")
            return None, None
        given: dict[str, Node] = {}
        for entry in node.entries:
            if entry.name not in {"key", "value"}:
                name = faults.shorten(entry.name)
                self._refuse(
                    entry, f"unknown field '{name}' in an entry of '{field.name}'; it has: key, value"
                )
            elif entry.name in given:
                self._refuse(entry, f"'{entry.name}' is given twice in an entry of '{field.name}'")
            given[entry.name] = entry.value
        # As everywhere, what is not written has its default: "" or 0, and an empty message.
        key: Any = "" if key_field.kind == "string" else 0
        value: Any = "" if field.message is None else field.message.make()
        if "key" in given:
            key = self._plain(given["key"], key_field, f"key of '{field.name}'", types)
        if "value" in given:
            value = self._plain(given["value"], field, f"value in '{field.name}'", types)
        return key, value

    def _plain(self, node: Node, field: Field, label: str, types: tuple[MessageType, ...]) -> Any:
        """Return a message or a scalar; a fault calls the field by ``label``."""
        if field.message is not None:
            if node.kind == "message":
                return self.message(node, (field.message, *types))
            self._refuse(node, f"{label} expects {{ … }} ({field.message.name}), found {_show(node)}")
            return None
        try:
            return _read_scalar(node, field)
        except Misfit as misfit:
            self._refuse(node, f"{label} {misfit}")
            return None

    def _refuse(self, at: Entry | Node, message: str) -> None:
        self.faults.append((at.offset, message))
        if len(self.faults) == faults.MAX_REPORTED:
            raise faults.EnoughFaults


def _read_scalar(node: Node, field: Field) -> Any:
    """Return the value of a scalar node.

    Raises:
        Misfit: it does not fit the field.
    """
    kind = field.kind
    if kind in INTEGER_RANGES:
        return _read_integer(node, field)
    if kind == "enum":
        return _read_enum(node, field)
    if kind == "string" and node.kind == "string":
        return node.text
    if kind == "bool" and node.kind in {"name", "number"} and node.text in _BOOLS:
        return _BOOLS[node.text]
    if kind in {"float", "double"} and node.kind in {"name", "number"}:
        return _read_float(node, field)
    if kind == "string" and node.kind in {"name", "number"}:
        raise _misfit(node, field, "; put it in quotes")
    raise _misfit(node, field, _quotes_hint(node, would_fit=node.text in _BOOLS))


def _read_integer(node: Node, field: Field) -> int:
    digits = node.text.removeprefix("-")
    if node.kind != "number" or len(digits) > _MAX_DIGITS:
        raise _misfit(node, field, _quotes_hint(node, would_fit=digits.isdecimal()))
    is_octal = digits.isdecimal() and digits.startswith("0") and len(digits) > 1
    try:
        value = int(digits, 8 if is_octal else 0)
    except ValueError:
        raise _misfit(node, field, "; a leading 0 makes it octal" if is_octal else "") from None
    return faults.checked_integer(-value if node.text.startswith("-") else value, field)


def _read_float(node: Node, field: Field) -> float:
    text = node.text.lower()
    is_named = text.removeprefix("-") in {"inf", "infinity", "nan"}
    if node.kind == "name" and not is_named:
        raise _misfit(node, field)
    try:
        value = float(int(text, 16)) if "0x" in text else float(text if is_named else text.removesuffix("f"))
    except (ValueError, OverflowError):
        raise _misfit(node, field) from None
    return faults.shortest_float(value) if field.kind == "float" else value


def _read_enum(node: Node, field: Field) -> str:
    if node.kind == "name" and node.text in field.enum:
        return node.text
    if node.kind == "number":
        for name, number in field.enum.items():
            if str(number) == node.text:
                return name
    if node.kind in {"name", "number"}:
        raise faults.unknown_enum_value(node.text, field)
    raise _misfit(node, field, _quotes_hint(node, would_fit=node.text in field.enum))


def _misfit(node: Node, field: Field, hint: str = "") -> Misfit:
    return Misfit(f"expects {faults.expected(field)}, found {_show(node)}{hint}")


def _quotes_hint(node: Node, *, would_fit: bool) -> str:
    return "; write it without quotes" if node.kind == "string" and would_fit else ""


def _show(node: Node) -> str:
    if node.kind == "message":
        return "a message in { }"
    if node.kind == "list":
        return "a list in [ ]"
    text = faults.shorten(node.text)
    return f'the string "{text}"' if node.kind == "string" else f"'{text}'"
