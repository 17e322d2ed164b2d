"""The call specification of a ``.pt2`` file: its nested arguments and results as flat lists of paths. Pure.

torch writes it as JSON: ``[version, {"type": …, "context": …, "children_spec": […]}]``. A leaf has no type; the context of a
dictionary is the list of its keys, itself written as JSON.

The names follow Triton: ``ARGS[0]``, ``ARGS[1][key]`` and ``KWARGS[name]`` for arguments, ``RESULT``, ``RESULT[0]`` and
``RESULT[key]`` for results, and ``INPUT__0`` and ``OUTPUT__0`` by position.

Source: Triton ``pytorch_backend`` README ("AOT Inductor Support"), ``src/pt2/call_spec.cc``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from bireme.types import InvalidArgument

Names = tuple[str, ...]


def argument_names(text: str) -> tuple[Names, ...]:
    """Return the names of each input tensor, the usual one last but for ``INPUT__<position>``.

    Raises:
        InvalidArgument: it is no call specification.
    """
    paths = [_argument_path(path) for path in _paths(_root(text))]
    return tuple((path, f"INPUT__{index}") for index, path in enumerate(paths))


def result_names(text: str) -> tuple[Names, ...]:
    """Return the names of each output tensor, the usual one first: the key of a dictionary, else ``OUTPUT__<position>``.

    Raises:
        InvalidArgument: it is no call specification.
    """
    root = _root(text)
    names = []
    for index, path in enumerate(_paths(root)):
        by_position = f"OUTPUT__{index}"
        full = "RESULT" + "".join(f"[{key}]" for key in path)
        is_key = _keys(root) is not None and len(path) == 1
        names.append((path[0], by_position, full) if is_key else (by_position, full))
    return tuple(names)


def _argument_path(path: tuple[str, ...]) -> str:
    """Return the name of a leaf of ``(args, kwargs)``."""
    kind, *rest = path
    return ("ARGS" if kind == "0" else "KWARGS") + "".join(f"[{key}]" for key in rest)


def _root(text: str) -> dict[str, Any]:
    try:
        _, root = json.loads(text)
    except (ValueError, TypeError):
        root = None
    if not isinstance(root, dict):
        raise InvalidArgument(f"the call specification of the model file cannot be read: {text:.200}")
    return root


def _paths(node: dict[str, Any]) -> Iterator[tuple[str, ...]]:
    if not node.get("type"):
        yield ()
        return
    children = node.get("children_spec") or []
    keys = _keys(node) or [str(index) for index in range(len(children))]
    for key, child in zip(keys, children, strict=False):
        for path in _paths(child):
            yield (key, *path)


def _keys(node: dict[str, Any]) -> list[str] | None:
    """Return the keys of a dictionary; None: it is none, or one without keys."""
    context = node.get("context")
    if isinstance(context, str):
        try:
            context = json.loads(context)
        except ValueError:
            return None
    children = node.get("children_spec") or []
    is_keys = isinstance(context, list) and context and len(context) == len(children)
    return [str(key) for key in context] if is_keys and isinstance(context, list) else None
