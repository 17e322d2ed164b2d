"""Custom operators: the files of ``model_operations``, before a session is opened.

A library is given to ONNX Runtime as it is. A ``.py`` file is run, and its function ``register_operators`` gets the
``onnxruntime.SessionOptions``: there it can define operators in Python (with the package onnxruntime-extensions) and register the
library that calls them.
"""

from __future__ import annotations

from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any, Final

from bireme.backends.interface import ModelContext
from bireme.backends.model_file import find_named_file

FUNCTION: Final = "register_operators"


def register_operators(ctx: ModelContext, filename: str, options: Any) -> None:
    """Register what ``filename`` has; a relative path is looked up in the version and model directories.

    Raises:
        Exception: whatever the library or the file's own code fails with.
    """
    path = find_named_file(ctx, filename) or Path(filename)
    if path.suffix != ".py":
        options.register_custom_ops_library(str(path))
        return
    spec = spec_from_file_location("bireme_operators", path)
    assert spec is not None  # the name ends with .py
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    function = getattr(module, FUNCTION, None)
    if not callable(function):
        raise TypeError(f"it has no function {FUNCTION}(session_options)")
    function(options)
