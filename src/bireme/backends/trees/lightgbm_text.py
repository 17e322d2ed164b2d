"""The head of LightGBM's text format, and whether the trees that it announces are there. Pure.

LightGBM's own parser ends the process over a file that is cut short.

Source: LightGBM ``gbdt_model_text.cpp`` (SaveModelToString, LoadModelFromString).
"""

from __future__ import annotations

from typing import Final

_END: Final = b"\nend of trees"
_PARAMETERS: Final = b"\nparameters:"
_PARAMETERS_END: Final = b"\nend of parameters"
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
    return _find_lost_tree(content, head["tree_sizes"].split()) if "tree_sizes" in head else ""


def _find_lost_tree(content: bytes, sizes: list[str]) -> str:
    at = content.find(b"\nTree=") + 1
    for number, size in enumerate(sizes):
        if not content.startswith(b"Tree=%d\n" % number, at) or not size.isdecimal():
            return f"tree {number} of {len(sizes)} is not at byte {at}, where the head says that it is"
        at += int(size)
    if not content.startswith(_END, at - 1):
        return f"its {len(sizes)} trees end before or after byte {at}, where the head says that they do"
    return ""
