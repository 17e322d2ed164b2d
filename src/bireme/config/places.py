"""Where in a config file a rule is broken: the place that a fault's text speaks of.

A fault names what it is about, as a path (``dynamic_batching.preferred_batch_size[1]``), a field or a tensor; this finds
it in the file, so that an editor can jump there.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path

from bireme.config.text_syntax import Entry, Node, position, read_tree

_STEP = r"[A-Za-z_][A-Za-z0-9_]*(?:\[\d+\])?"
_PATH = re.compile(rf"{_STEP}(?:\.{_STEP})*")
_TENSOR = re.compile(r"model (input|output) '([^']+)'")
_GROUP = re.compile(r"instance group \S+_(\d+) ")


class Places:
    """The places of one config file, whose text must be without syntax errors."""

    def __init__(self, path: Path, text: str) -> None:
        self.path = path
        self._text = text

    @cached_property
    def _root(self) -> Node:
        root, _ = read_tree(self._text)  # only once there is a fault: good configs are read once
        return root

    def knows(self, fault: str) -> bool:
        """Whether ``fault`` speaks of something that stands in the file."""
        return self._find(fault) is not None

    def prefix(self, fault: str) -> str:
        """Return ``path:line:column: `` for what ``fault`` speaks of; without line where it speaks of no place."""
        offset = self._find(fault)
        if offset is None:
            return f"{self.path}: "
        line, column = position(self._text, offset)
        return f"{self.path}:{line}:{column}: "

    def _find(self, fault: str) -> int | None:
        tensor = _TENSOR.search(fault)
        if tensor:
            return self._find_tensor(tensor[1], tensor[2], fault)
        group = _GROUP.search(fault)
        if group:
            return _offset(self._walk(f"instance_group[{group[1]}]"))
        if "directory name must equal model name" in fault:
            return _offset(self._walk("name"))
        found = [place for path in _PATH.findall(fault) if (place := self._walk(path))]
        return _offset(max(found, key=len, default=()))

    def _find_tensor(self, kind: str, name: str, fault: str) -> int | None:
        """Return where the tensor's field stands that the fault names, else its name; the last of several tensors."""
        for message in reversed(list(_items(self._root, kind))):
            entries = {entry.name: entry for entry in message.entries}
            if "name" in entries and entries["name"].value.text == name:
                words = re.findall(r"\w+", fault.split(f"'{name}'", 1)[1])
                field = next((entries[word] for word in words if word in entries), entries["name"])
                return field.offset
        return None

    def _walk(self, path: str) -> tuple[Entry | Node, ...]:
        """Return the entries and values along ``path``, as far as it leads; empty when it starts nowhere."""
        way: list[Entry | Node] = []
        node = self._root
        for step in path.split("."):
            name, _, index = step.rstrip("]").partition("[")
            entries = [entry for entry in node.entries if entry.name == name]
            if not entries:
                break
            if not index:
                way.append(entries[-1])
                node = entries[-1].value
                continue
            values = list(_items(node, name))
            if int(index) >= len(values):
                way.append(entries[-1])
                break
            node = values[int(index)]
            way.append(node)
        return tuple(way)


def _items(node: Node, name: str) -> Iterator[Node]:
    """Yield every value of a repeated field, given one by one or as a list."""
    for entry in node.entries:
        if entry.name == name:
            yield from entry.value.items if entry.value.kind == "list" else [entry.value]


def _offset(way: tuple[Entry | Node, ...]) -> int | None:
    return way[-1].offset if way else None
