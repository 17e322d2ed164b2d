"""Imports programs of the examples, which are no package."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"


def load(path: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Import a program by its path in ``examples``; those beside it can be imported from it."""
    file = EXAMPLES / path
    monkeypatch.syspath_prepend(str(file.parent))
    for name in [name for name, module in list(sys.modules.items()) if _is_example(module)]:
        monkeypatch.delitem(sys.modules, name)  # other examples have a build, a client … too
    spec = importlib.util.spec_from_file_location(f"example_{file.stem}", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    return module


def _is_example(module: ModuleType) -> bool:
    return (getattr(module, "__file__", None) or "").startswith(str(EXAMPLES))
