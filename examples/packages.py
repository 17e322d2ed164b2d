"""Files out of installed packages: where the examples have their models from."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path


def package_file(package: str, path: str) -> Path:
    """Return a file of an installed package, without importing it: the models' own code is not needed.

    Raises:
        SystemExit: there is no such package.
    """
    spec = find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit(
            f"error: package '{package}' is not installed. It is in the requirements-models.txt of the example; "
            "the example's README says how to install it"
        )
    return Path(spec.submodule_search_locations[0], path)


def make(target: Path, write: Callable[[Path], object]) -> None:
    """Have ``target`` written in one go: an interrupted run leaves no half a file, and no server reads one."""
    target.parent.mkdir(parents=True, exist_ok=True)
    unfinished = target.with_name(f".{target.name}")
    write(unfinished)
    unfinished.rename(target)


def run_build(build: Callable[[Callable[[str], object]], int], models: Path) -> None:
    """Run an example's ``build``, which reports each file and returns how many it made; with --quiet, say nothing."""
    quiet = "--quiet" in sys.argv[1:]
    if not build(len if quiet else print) and not quiet:
        print(f"everything is there: {models}")
