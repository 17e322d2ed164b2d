"""Operators that torch itself does not have: libraries that the config names, and those of torchvision.

They are loaded into the process for good, and are there for all of its models.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from importlib import import_module
from typing import Final, TypeVar

from bireme.backends.interface import ModelContext
from bireme.backends.model_file import find_named_file
from bireme.backends.pytorch.errors import one_line
from bireme.backends.pytorch.runtime import log, quiet, torch
from bireme.types import InvalidArgument, Unsupported

T = TypeVar("T")

_MISSING: Final = re.compile(r"(?:Unknown builtin op|Could not find schema for|operator)[: ]+'?(\w+)::\w+")
_PACKAGES: Final = frozenset({"torchvision", "torchaudio", "torchtext"})
"""Packages whose import brings the operators of that name."""


def load_libraries(ctx: ModelContext) -> None:
    """Load the libraries of ``model_operations``; a relative path is looked up in the version and model directories.

    Raises:
        InvalidArgument: names the library and what is wrong with it.
    """
    operations = ctx.config.model_operations
    for filename in operations.op_library_filename if operations is not None else ():
        try:
            torch.ops.load_library(str(find_named_file(ctx, filename) or filename))
        except OSError as error:
            raise InvalidArgument(
                f"model '{ctx.name}': model_operations: operator library '{filename}' cannot be loaded: {one_line(error.__cause__ or error)}"
            ) from error


def with_operators(model: str, load: Callable[[], T]) -> T:
    """Return what ``load`` does; where it misses operators of a package that is installed, it's imported and ``load`` runs again.

    Raises:
        Unsupported: the package is not installed.
        Exception: whatever else ``load`` raises.
    """
    try:
        return load()
    except RuntimeError as error:
        found = _MISSING.search(str(error))
        package = found[1] if found else ""
        if package not in _PACKAGES:
            raise
        _import_package(model, package)
    return load()


def _import_package(model: str, package: str) -> None:
    try:
        with quiet():
            import_module(package)
    except ImportError as error:
        raise Unsupported(
            f"unable to load model '{model}': it needs operators of {package}, which cannot be imported ({error}); install it "
            f"with: pip install {package}"
        ) from None
    log.info("model '%s': %s is imported for its operators", model, package)
