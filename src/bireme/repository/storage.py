"""Where models lie: one `Storage` per repository; here those in local directories (`object_store` has the others).

A storage lists model names, says cheaply whether a model has changed, and hands out a local directory with the
model's files. All methods may block: they are for loading threads.
"""

from __future__ import annotations

import asyncio
import os
import weakref
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final, Protocol

from bireme.repository.fingerprint import Fingerprint, take_fingerprint
from bireme.repository.object_store.location import is_remote, parse_location
from bireme.types import InvalidArgument


class ChangedMeanwhile(OSError):
    """A model's files are others than the look that a load began with has seen."""


class ModelDirectory:
    """A local directory with a model's files. It lives as long as somebody references it.

    Every loaded version of the model holds a reference, so that a backend may read from it until the last of them is
    closed; only then is a temporary one removed.
    """

    __slots__ = ("__weakref__", "_fetch", "_remove", "is_renamed", "origin", "path")

    def __init__(
        self,
        path: Path,
        remove: Callable[[Path], object] | None = None,
        *,
        is_renamed: bool = False,
        origin: str = "",
        fetch: Callable[[frozenset[int] | None], None] | None = None,
    ) -> None:
        """Wrap ``path``; ``remove(path)`` is called once, when the last reference is gone or the program ends.

        ``origin`` says where the files come from if that is elsewhere, and ``fetch`` brings those of some versions.
        """
        self.path = path
        self.is_renamed = is_renamed
        """Whether the repository calls the model otherwise than its own files do."""
        self.origin = origin or str(path)
        """The same for every directory that is made of the same model of a repository."""
        self._fetch = fetch
        self._remove = None if remove is None else weakref.finalize(self, _aside, remove, path)

    def complete(self, versions: Iterable[int] | None = None) -> None:
        """Let every file be there that these versions need (None: all files); until then only config files have content.

        Blocking. What a local repository holds is there anyway.

        Raises:
            ChangedMeanwhile: the model has changed since it was checked out.
            OSError: a file cannot be fetched; names it.
        """
        if self._fetch is not None:
            self._fetch(None if versions is None else frozenset(versions))

    def call_by_origin(self, text: str) -> str:
        """Return a message with the names that the repository has for its files, instead of those of a copy."""
        return text.replace(str(self.path), self.origin)

    def close(self) -> None:
        """Remove a temporary directory now; nothing happens to a repository's own."""
        if self._remove is not None:
            self._remove()

    def __repr__(self) -> str:
        return f"ModelDirectory({str(self.path)!r}, temporary={self._remove is not None})"


def _aside(remove: Callable[[Path], object], path: Path) -> None:
    """Call ``remove``, but not on the thread of an event loop: thousands of files take their time.

    The collector may call this anywhere, also where an executor holds its own lock: it is asked later.
    """
    try:
        loop = asyncio.get_running_loop()
        loop.call_soon(_hand_over, loop, remove, path)
    except RuntimeError:  # there is no loop here, or it is closed
        remove(path)


def _hand_over(loop: asyncio.AbstractEventLoop, remove: Callable[[Path], object], path: Path) -> None:
    try:
        loop.run_in_executor(None, remove, path)
    except RuntimeError:  # the loop ends, and its executor is gone
        remove(path)


class Storage(Protocol):
    """One repository."""

    location: str
    """As the user named it; for messages, and as namespace."""
    identity: str
    """The same for two storages that are the same repository."""
    is_remote: bool
    """Whether to look at it takes a network."""

    def is_mapped(self, name: str) -> bool:
        """Whether ``name`` was given to a directory that is called otherwise."""

    def list_names(self) -> list[str]:
        """Return the names of all direct sub-directories, odd ones included, unsorted.

        Raises:
            OSError: the repository cannot be read.
        """

    def holds(self, name: str) -> bool:
        """Whether ``name`` is among `list_names`. Raises as that."""

    def fingerprint(self, name: str) -> Fingerprint:
        """Return the state of the model's directory.

        Raises:
            OSError: it is not there or cannot be read.
        """

    def check_out(self, name: str) -> ModelDirectory:
        """Return a local directory with the model's files. Those of a remote repository come with `ModelDirectory.complete`.

        Raises:
            OSError: it cannot be read.
        """

    def listed(self, *, whole: bool = False) -> Storage:
        """Return the storage for one round of looks and loads: a remote one remembers there what it has seen.

        ``whole``: most models are going to be asked for, so that they are best looked at together.
        """


class LocalStorage:
    """A repository in the local file system."""

    is_remote = False

    def __init__(self, path: Path, mapping: Mapping[str, str] = MappingProxyType({})) -> None:
        """``mapping`` gives names to directories, which lose their own."""
        self.path = path
        self.location = str(path)
        self.identity = str(path.resolve())
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

    def holds(self, name: str) -> bool:
        """See `Storage.holds`."""
        return name in self.list_names()

    def fingerprint(self, name: str) -> Fingerprint:
        """Look at every file of the model."""
        return take_fingerprint(self._directory(name))

    def check_out(self, name: str) -> ModelDirectory:
        """Return the model's own directory."""
        return ModelDirectory(self._directory(name), is_renamed=name in self._mapping)

    def listed(self, *, whole: bool = False) -> LocalStorage:  # noqa: ARG002 - the interface
        """Return itself: a look at a directory costs next to nothing."""
        return self

    def _directory(self, name: str) -> Path:
        return self.path / self._mapping.get(name, name)

    def __repr__(self) -> str:
        return f"LocalStorage({self.location!r})"


@dataclass(frozen=True, slots=True)
class StoreCacheOptions:
    """Where files of object stores are kept."""

    directory: str = ""
    """Empty: in the user's cache directory. The environment may name another one for each kind of store."""
    max_nbytes: int = 64 << 30
    """Above it what was used least recently is removed; 0: nothing is."""


DEFAULT_CACHE: Final = StoreCacheOptions()


def open_storage(
    location: str,
    mapping: Mapping[str, str] = MappingProxyType({}),
    cache: StoreCacheOptions = DEFAULT_CACHE,
) -> Storage:
    """Return the storage for a repository path as given on the command line; ``mapping`` gives names to directories.

    Nothing is asked of an object store yet.

    Raises:
        InvalidArgument: a local path that is no directory, or a location or credentials of an object store that are wrong.
        Unsupported: the library for object stores is not installed.
    """
    if is_remote(location):
        from bireme.repository.object_store.storage import open_object_store

        return open_object_store(
            location, mapping, cache_directory=cache.directory, max_nbytes=cache.max_nbytes
        )
    path = Path(location).expanduser().absolute()
    if not path.is_dir():
        found = "a file" if path.exists() else "nothing"
        raise InvalidArgument(f"repository path is not a valid directory: '{location}' ({found} is there)")
    return LocalStorage(path, mapping)


def identify(location: str) -> str:
    """Return the `Storage.identity` of what ``location`` means. Raises InvalidArgument for one that means nothing."""
    if is_remote(location):
        return parse_location(location).identity
    return str(Path(location).expanduser().resolve())
