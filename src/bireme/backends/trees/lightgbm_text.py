"""The head of LightGBM's text format, and whether the trees that it announces are there. Pure.

LightGBM's own parser ends the process over a file that is cut short or damaged: its threads raise, and nobody catches that.

Source: LightGBM ``gbdt_model_text.cpp`` (SaveModelToString, LoadModelFromString).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

_END: Final = b"\nend of trees"
_PARAMETERS: Final = b"\nparameters:"
_PARAMETERS_END: Final = b"\nend of parameters"
_NUMBERS: Final = re.compile(rb"(?: *[-+]?(?:\d[-+.\deE]*|inf|nan)(?= |$))* *")
_NAME: Final = re.compile(rb"[a-z_]+")
_OF_LEAVES: Final = (b"leaf_value",)
_OF_NODES: Final = (b"split_feature", b"threshold", b"decision_type", b"left_child", b"right_child")
_EXTRAS: Final[dict[bytes, Callable[[int], int]]] = {
    **dict.fromkeys((b"leaf_weight", b"leaf_count"), lambda leaves: leaves),
    **dict.fromkeys(
        (b"split_gain", b"internal_value", b"internal_weight", b"internal_count"), lambda leaves: leaves - 1
    ),
}
"""What may be missing or empty, and how many numbers there are otherwise."""
_REQUIRED: Final = (
    "num_class",
    "num_tree_per_iteration",
    "max_feature_idx",
    "feature_names",
    "feature_infos",
)


def read_head(content: bytes) -> dict[str, str]:
    """Return the settings in front of the trees by name, such as ``objective``: ``multiclass num_class:3``."""
    head = content.partition(b"\nTree=")[0].decode("utf-8", "replace")
    pairs = (line.partition("=") for line in head.splitlines()[1:])
    return {key: value.strip() for key, equals, value in pairs if equals}


def find_damage(content: bytes) -> str:
    """Return what is wrong with a model file; empty: nothing that shows."""
    if content[:4].strip() != b"tree":
        return f"it is no model in LightGBM's text format: it begins with {content[:12]!r}, expected b'tree'"
    head = read_head(content)
    missing = [key for key in _REQUIRED if key not in head]
    if missing:
        return f"its head has no {', '.join(missing)}"
    if _END not in content:
        return f"it ends after {len(content)} bytes, before 'end of trees'"
    if _PARAMETERS in content and _PARAMETERS_END not in content:
        return f"it ends after {len(content)} bytes, in the midst of its parameters"
    # Old versions do not tell the sizes of the trees.
    lost = _find_lost_tree(content, head["tree_sizes"].split()) if "tree_sizes" in head else ""
    return lost or _find_broken_tree(content, head["max_feature_idx"])


def _find_broken_tree(content: bytes, max_feature: str) -> str:
    """Return which tree cannot be read, or would lead a run astray. A file of 12 MB takes 0.2 s, longer than its load does."""
    if not max_feature.isdecimal():
        return f"max_feature_idx is '{max_feature}', expected a number"
    start = content.find(b"\nTree=")
    trees = content[start : content.find(_END)].split(b"\nTree=")[1:] if start >= 0 else []
    for tree in trees:
        number, _, text = tree.partition(b"\n")
        try:
            _check_tree(dict(_field(line) for line in text.split(b"\n") if line), int(max_feature))
        except KeyError as error:
            return f"tree {number.decode(errors='replace')} is damaged: it has no {error}"
        except ValueError as error:
            return f"tree {number.decode(errors='replace')} is damaged: {error}"
    return ""


def _field(line: bytes) -> tuple[bytes, bytes]:
    name, _, value = line.partition(b"=")
    if not _NAME.fullmatch(name) or len(name) == len(line):
        raise ValueError(f"{line[:40]!r} is no field")
    return name, value


def _check_tree(fields: dict[bytes, bytes], max_feature: int) -> None:
    for name, value in fields.items():
        if not _NUMBERS.fullmatch(value):
            raise ValueError(f"{name!r} has something else than numbers")
    num_leaves = int(fields[b"num_leaves"])
    if num_leaves < 1:
        raise ValueError(f"it has {num_leaves} leaves")
    counts = dict.fromkeys(_OF_LEAVES, num_leaves)
    if num_leaves > 1:
        counts |= dict.fromkeys(_OF_NODES, num_leaves - 1)
        counts |= {name: count(num_leaves) for name, count in _EXTRAS.items() if fields.get(name)}
    for name, count in counts.items():
        if len(fields[name].split()) != count:
            raise ValueError(f"{name!r} does not have as many numbers as the tree has leaves")
    for name in (b"left_child", b"right_child") if num_leaves > 1 else ():
        for node, child in enumerate(map(int, fields[name].split())):
            if not (node < child < num_leaves - 1 or -num_leaves <= child < 0):
                raise ValueError(f"{name!r} leads to {child}")
    features = fields[b"split_feature"].split() if num_leaves > 1 else ()
    if any(not 0 <= feature <= max_feature for feature in map(int, features)):
        raise ValueError("it asks for a feature that there is not")
    _check_categories(fields)
    if fields.get(b"is_linear") == b"1":
        _check_linear(fields, num_leaves)


def _check_linear(fields: dict[bytes, bytes], num_leaves: int) -> None:
    sizes = list(map(int, fields[b"num_features"].split()))
    counts = {b"num_features": num_leaves, b"leaf_const": num_leaves}
    counts |= dict.fromkeys((b"leaf_features", b"leaf_coeff"), sum(sizes))
    for name, count in counts.items():
        if len(fields[name].split()) != count or min(sizes) < 0:
            raise ValueError(f"{name!r} does not have {count} numbers")


def _check_categories(fields: dict[bytes, bytes]) -> None:
    num_categories = int(fields[b"num_cat"])
    if num_categories:
        bounds = list(map(int, fields[b"cat_boundaries"].split()))
        is_ordered = bounds == sorted(bounds) and bounds[:1] == [0]
        if len(bounds) != num_categories + 1 or not is_ordered:
            raise ValueError("'cat_boundaries' are no ranges")
        if len(fields[b"cat_threshold"].split()) != bounds[-1]:
            raise ValueError("'cat_threshold' is not as long as 'cat_boundaries' say")


def _find_lost_tree(content: bytes, sizes: list[str]) -> str:
    at = content.find(b"\nTree=") + 1
    for number, size in enumerate(sizes):
        if not content.startswith(b"Tree=%d\n" % number, at) or not size.isdecimal():
            return f"tree {number} of {len(sizes)} is not at byte {at}, where the head says that it is"
        at += int(size)
    if not content.startswith(_END, at - 1):
        return f"its {len(sizes)} trees end before or after byte {at}, where the head says that they do"
    return ""
