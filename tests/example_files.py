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
    monkeypatch.delitem(sys.modules, "build", raising=False)  # other examples have one of that name, too
    spec = importlib.util.spec_from_file_location(f"example_{file.stem}", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    return module
