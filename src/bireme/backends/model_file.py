"""Finds the files of a version, and says why one cannot be opened."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from bireme.backends.interface import ModelContext
from bireme.backends.signature import quoted
from bireme.types import NotFound

_GIT_LFS: Final = b"version https://git-lfs"


def find_model_file(ctx: ModelContext, default_names: Sequence[str]) -> Path:
    """Return the model file: ``default_model_filename``, else the first of ``default_names`` that there is.

    Where that is a folder, it is the file in it that has one of ``default_names``.

    Raises:
        NotFound: names the file and lists what the version directory holds.
    """
    filename = ctx.config.default_model_filename
    names = (filename,) if filename else default_names
    for name in names:
        path = ctx.version_dir / name
        candidates = [path / inner for inner in default_names] if path.is_dir() else [path]
        for candidate in candidates:
            if candidate.is_file():
                return candidate
    path = ctx.version_dir / names[0]
    folder = path if path.is_dir() else ctx.version_dir
    raise missing_file(ctx.name, path / default_names[0] if path.is_dir() else path, folder)


def find_named_file(ctx: ModelContext, filename: str) -> Path | None:
    """Return another file that the config names, in the version directory or else the model's; None: in neither."""
    places = (ctx.version_dir / filename, ctx.model_dir / filename)
    return next((place for place in places if place.is_file()), None)


def missing_file(model: str, wanted: Path, folder: Path) -> NotFound:
    """Return the error of a model file that is not there; lists what ``folder`` holds."""
    found = sorted(entry.name for entry in folder.iterdir()) if folder.is_dir() else []
    return NotFound(
        f"unable to find '{wanted}' for model '{model}'; '{folder}' holds {quoted(found) if found else 'nothing'}"
    )


def explain_failure(path: Path, reason: str) -> str:
    """Say in one line why the file at ``path`` cannot be opened; ``reason`` is what the framework said."""
    try:
        with path.open("rb") as file:
            start = file.read(len(_GIT_LFS))
    except IsADirectoryError:
        return reason
    except OSError as unreadable:
        return str(unreadable.strerror)
    if not start:
        return "the file is empty"
    if start == _GIT_LFS:
        return "the file is a Git LFS pointer, not the model itself; fetch it with: git lfs pull"
    return reason
