"""Model directories that a client sends along with a load call (``file:<path>`` parameters)."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping
from functools import partial
from pathlib import Path, PurePosixPath

from bireme.repository.storage import ModelDirectory
from bireme.types import InvalidArgument

FILE_PREFIX = "file:"


def write_override(name: str, files: Mapping[str, bytes]) -> ModelDirectory:
    """Write ``files`` into a fresh temporary directory that acts as the directory of model ``name``.

    Keys are paths relative to the model directory, ``/``-separated, with or without ``file:`` in front. Nothing is
    written unless every path is right. The directory is removed with the returned object.

    Raises:
        InvalidArgument: a path leads out of the directory, names no file, or needs another one's file as directory.
    """
    targets = {_check_path(path): content for path, content in files.items()}
    _check_conflicts(targets)
    root = Path(tempfile.mkdtemp(prefix=f"bireme-{_printable(name)}-"))
    directory = ModelDirectory(root, partial(shutil.rmtree, ignore_errors=True))
    try:
        for relative, content in targets.items():
            target = root / relative
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)
    except OSError as error:
        directory.close()
        raise InvalidArgument(f"cannot write the override files of model '{name}': {error}") from error
    return directory


def _check_path(key: str) -> PurePosixPath:
    """Return the relative path that ``key`` names. No link exists in a fresh directory, so names decide alone."""
    text = key.removeprefix(FILE_PREFIX)
    path = PurePosixPath(text)
    if path.is_absolute() or ".." in path.parts or "\\" in text or "\0" in text:
        raise InvalidArgument(f"Invalid file parameter {key!r}: the path must stay within model directory.")
    if not path.parts or text.endswith("/"):
        raise InvalidArgument(
            f"Invalid file parameter {key!r}: the path must name a file, as in 'file:1/model.onnx'."
        )
    return path


def _check_conflicts(targets: Mapping[PurePosixPath, bytes]) -> None:
    for path in targets:
        for parent in path.parents:
            if parent in targets:
                raise InvalidArgument(
                    f"Invalid file parameter 'file:{path}', directory has been created as a file: 'file:{parent}'"
                )


def _printable(name: str) -> str:
    """Return a part for a directory's name that tells a person whose it is."""
    return "".join(character if character.isalnum() else "_" for character in name)[:40]
