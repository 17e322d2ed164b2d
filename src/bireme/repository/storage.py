"""Where models lie: one `Storage` per repository. Local directories now; an object store is one more class here.

A storage lists model names, says cheaply whether a model has changed, and hands out a local directory with the
model's files. All methods may block: they are for loading threads.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Protocol

from bireme.repository.fingerprint import Fingerprint, take_fingerprint
from bireme.types import InvalidArgument, Unsupported

_REMOTE_PREFIXES = ("gs://", "s3://", "as://")


class ModelDirectory:
    """A local directory with a model's files. It lives as long as somebody references it.

    Every loaded version of the model holds a reference, so that a backend may read from it until the last of them is
    closed; only then is a temporary one removed.
    """

    __slots__ = ("__weakref__", "_remove", "is_renamed", "path")

    def __init__(
        self, path: Path, remove: Callable[[Path], object] | None = None, *, is_renamed: bool = False
    ) -> None:
        """Wrap ``path``; ``remove(path)`` is called once, when the last reference is gone or the program ends."""
        self.path = path
        self.is_renamed = is_renamed
        """Whether the repository calls the model otherwise than its own files do."""
        self._remove = None if remove is None else weakref.finalize(self, remove, path)

    def close(self) -> None:
        """Remove a temporary directory now; nothing happens to a repository's own."""
        if self._remove is not None:
            self._remove()

    def __repr__(self) -> str:
        return f"ModelDirectory({str(self.path)!r}, temporary={self._remove is not None})"


class Storage(Protocol):
    """One repository."""

    location: str
    """As the user named it; for messages, and as namespace."""

    def is_mapped(self, name: str) -> bool:
        """Whether ``name`` was given to a directory that is called otherwise."""

    def list_names(self) -> list[str]:
        """Return the names of all direct sub-directories, odd ones included, unsorted.

        Raises:
            OSError: the repository cannot be read.
        """

    def fingerprint(self, name: str) -> Fingerprint:
        """Return the state of the model's directory.

        Raises:
            OSError: it is not there or cannot be read.
        """

    def check_out(self, name: str) -> ModelDirectory:
        """Return a local directory with the model's files, fetched if need be."""


class LocalStorage:
    """A repository in the local file system."""

    def __init__(self, path: Path, mapping: Mapping[str, str] = MappingProxyType({})) -> None:
        """``mapping`` gives names to directories, which lose their own."""
        self.path = path
        self.location = str(path)
        self._mapping = dict(mapping)

    def is_mapped(self, name: str) -> bool:
        """See `Storage.is_mapped`."""
        return name in self._mapping

    def list_names(self) -> list[str]:
        """Return the names of all direct sub-directories; files beside them are ignored."""
        with os.scandir(self.path) as entries:
            directories = [entry.name for entry in entries if entry.is_dir()]
        if not self._mapping:
            return directories
        hidden = {*self._mapping, *self._mapping.values()}
        mapped = [name for name, directory in self._mapping.items() if (self.path / directory).is_dir()]
        return [name for name in directories if name not in hidden] + mapped

    def fingerprint(self, name: str) -> Fingerprint:
        """Look at every file of the model."""
        return take_fingerprint(self._directory(name))

    def check_out(self, name: str) -> ModelDirectory:
        """Return the model's own directory."""
        return ModelDirectory(self._directory(name), is_renamed=name in self._mapping)

    def _directory(self, name: str) -> Path:
        return self.path / self._mapping.get(name, name)

    def __repr__(self) -> str:
        return f"LocalStorage({self.location!r})"


def open_storage(location: str, mapping: Mapping[str, str] = MappingProxyType({})) -> Storage:
    """Return the storage for a repository path as given on the command line; ``mapping`` gives names to directories.

    Raises:
        InvalidArgument: a local path that is no directory.
        Unsupported: an object store.
    """
    for prefix in _REMOTE_PREFIXES:
        if location.startswith(prefix):
            raise Unsupported(
                f"{prefix} file-system not supported: this build reads local directories only, got '{location}'"
            )
    path = Path(location).expanduser().absolute()
    if not path.is_dir():
        found = "a file" if path.exists() else "nothing"
        raise InvalidArgument(f"repository path is not a valid directory: '{location}' ({found} is there)")
    return LocalStorage(path, mapping)
