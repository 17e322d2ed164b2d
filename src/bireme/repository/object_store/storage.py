"""ObjectStorage: a repository in an object store, as the `Storage` that the rest of the server knows.

A model's directory is made in two steps, as a load goes: `check_out` fetches its config files and gives every other file its
name and its size, without content (a hole: no room, no traffic); `ModelDirectory.complete` fetches the files of the versions that
the config selects and those that all versions share, and takes the other versions away.
"""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import Final

from bireme.repository.fingerprint import Fingerprint, version_of_path
from bireme.repository.layout import CONFIG_FILE, NAMED_CONFIGS_DIR
from bireme.repository.object_store.cache import (
    DEFAULT_MAX_NBYTES,
    StoreCache,
    open_cache,
    remove_directory,
)
from bireme.repository.object_store.client import StoreClient, StoredObject
from bireme.repository.object_store.download import fetch_files
from bireme.repository.object_store.faults import BadKey, ObjectChanged, StoreError
from bireme.repository.object_store.listing import Listing
from bireme.repository.object_store.location import parse_location
from bireme.repository.storage import ModelDirectory

_MOUNTS: Final = {
    "s3": "TRITON_AWS_MOUNT_DIRECTORY",
    "gs": "TRITON_GCS_MOUNT_DIRECTORY",
    "as": "TRITON_AZURE_MOUNT_DIRECTORY",
}
_TRIES: Final = 3
"""Looks at a model whose files change while they are fetched."""


class ObjectStorage:
    """A repository in an object store. Each call looks at the store anew; `listed` gives one that remembers."""

    is_remote = True

    def __init__(
        self,
        location: str,
        mapping: Mapping[str, str] = MappingProxyType({}),
        *,
        client: StoreClient,
        cache: StoreCache,
    ) -> None:
        """``location`` as the user gave it; ``mapping`` gives names to directories, which lose their own."""
        self.location = location
        self.identity = client.location.identity
        self.client = client
        self.cache = cache
        self._mapping = dict(mapping)

    def is_mapped(self, name: str) -> bool:
        """See `Storage.is_mapped`."""
        return name in self._mapping

    def list_names(self) -> list[str]:
        """Return the names of all models: one request for a thousand of them."""
        return self.name_models(self.client.list_folders())

    def holds(self, name: str) -> bool:
        """See `Storage.holds`: one request."""
        return self.listed().holds(name)

    def fingerprint(self, name: str) -> Fingerprint:
        """See `Storage.fingerprint`: one request for a thousand files of the model."""
        return self.listed().fingerprint(name)

    def check_out(self, name: str) -> ModelDirectory:
        """See `Storage.check_out`."""
        return self.listed().check_out(name)

    def listed(self, *, whole: bool = False) -> ListedStorage:
        """See `Storage.listed`."""
        return ListedStorage(self, whole=whole)

    def directory_of(self, name: str) -> str:
        """Return the store's name of a model, "" if it is hidden behind another one."""
        if name in self._mapping:
            return self._mapping[name]
        return "" if name in self._mapping.values() else name

    def name_models(self, directories: Iterable[str]) -> list[str]:
        """Return the names of the models in these directories."""
        present = set(directories)
        hidden = {*self._mapping, *self._mapping.values()}
        mapped = [name for name, directory in self._mapping.items() if directory in present]
        return [*(present - hidden), *mapped]

    def __repr__(self) -> str:
        return f"ObjectStorage({self.location!r})"


class ListedStorage:
    """A repository as it was when it was first asked for: what it says of one model comes from one listing. Any thread."""

    is_remote = True

    def __init__(self, storage: ObjectStorage, *, whole: bool) -> None:
        """``whole``: the first question lists all models at once; else each model is listed when it is asked for."""
        self.location = storage.location
        self.identity = storage.identity
        self._storage = storage
        self._is_whole = whole
        self._lock = threading.Lock()
        self._listing: Listing | None = None
        self._known: set[str] = set()
        """Directories that were listed one by one."""
        self._forgotten: set[str] = set()
        """Those that have changed since the listing of all."""

    def is_mapped(self, name: str) -> bool:
        """See `Storage.is_mapped`."""
        return self._storage.is_mapped(name)

    def list_names(self) -> list[str]:
        """See `Storage.list_names`."""
        listing = self._look("") if self._is_whole else None
        if listing is None or not self._is_whole:
            return self._storage.list_names()
        return self._storage.name_models(listing.names)

    def holds(self, name: str) -> bool:
        """See `Storage.holds`."""
        directory = self._storage.directory_of(name)
        return bool(directory) and directory in self._look(directory)

    def fingerprint(self, name: str) -> Fingerprint:
        """See `Storage.fingerprint`."""
        directory = self._storage.directory_of(name)
        return self._look(directory).fingerprint(directory)

    def check_out(self, name: str) -> ModelDirectory:
        """Return a directory with the model's config files; the others come with `ModelDirectory.complete`."""
        directory = self._storage.directory_of(name)
        for num_tries in range(1, _TRIES + 1):
            listing = self._look(directory)
            checkout = _Checkout(
                self._storage, name, listing.files(directory), listing.directories(directory)
            )
            try:
                return checkout.begin(self._storage.is_mapped(name), partial(self.forget, directory))
            except ObjectChanged:
                self.forget(directory)
                if num_tries == _TRIES:
                    raise
        raise AssertionError

    def listed(self, *, whole: bool = False) -> ListedStorage:  # noqa: ARG002 - the interface
        """Return itself: what it has seen stays."""
        return self

    def forget(self, directory: str) -> None:
        """Look at one model again when it is next asked for: it has changed."""
        with self._lock:
            self._known.discard(directory)
            self._forgotten.add(directory)

    def _look(self, directory: str) -> Listing:
        client = self._storage.client
        with self._lock:
            if self._listing is None:
                self._listing = self._look_at_all() if self._is_whole else Listing(())
            is_covered = self._is_whole and directory not in self._forgotten
            if directory and directory not in self._known and not is_covered:
                self._listing.replace(directory, Listing(client.list_objects(directory)))
                self._known.add(directory)
            return self._listing

    def _look_at_all(self) -> Listing:
        try:
            return Listing(self._storage.client.list_objects())
        except BadKey:  # then the others are looked at one by one, and the model with that key says so
            self._is_whole = False
            return Listing(())

    def __repr__(self) -> str:
        return f"ListedStorage({self.location!r})"


class _Checkout:
    """One model's files on their way into a directory."""

    def __init__(
        self, storage: ObjectStorage, name: str, files: Mapping[str, StoredObject], directories: Iterable[str]
    ) -> None:
        self._storage = storage
        self._name = name
        self._files = files
        self._directories = directories
        self._root = Path()

    def begin(self, is_renamed: bool, forget: Callable[[], None]) -> ModelDirectory:  # noqa: FBT001
        """Return the model's directory with its config files and the names of all others. Raises as `fetch_files`."""
        parent = self._storage.cache.new_directory()
        self._root = parent / self._name
        directory = ModelDirectory(
            self._root,
            partial(_remove, parent, os.getpid()),
            is_renamed=is_renamed,
            origin=f"{self._storage.identity}/{self._storage.directory_of(self._name)}",
            fetch=partial(self._fetch_versions, forget),
        )
        try:
            self._root.mkdir()
            for path in sorted(self._directories):
                (self._root / path).mkdir(parents=True, exist_ok=True)
            configs = {path: found for path, found in self._files.items() if _is_config(path)}
            for path, found in self._files.items():
                if path not in configs:
                    _write_hole(self._root / path, found.size)
            self._fetch(configs)
        except OSError as error:
            directory.close()
            if isinstance(error, StoreError):
                raise
            raise StoreError(f"cannot make a directory of '{directory.origin}': {error}") from error
        return directory

    def _fetch_versions(self, forget: Callable[[], None], versions: frozenset[int] | None) -> None:
        wanted = {
            path: found
            for path, found in self._files.items()
            if not _is_config(path)
            and (versions is None or (version := version_of_path(path)) is None or version in versions)
        }
        try:
            self._fetch(wanted)
        except ObjectChanged:
            forget()
            raise
        for path in self._directories:
            version = version_of_path(f"{path}/")
            if versions is not None and version is not None and version not in versions:
                shutil.rmtree(self._root / path, ignore_errors=True)

    def _fetch(self, files: Mapping[str, StoredObject]) -> None:
        what = f"model '{self._name}' from '{self._storage.location}'"
        fetch_files(self._storage.client, self._storage.cache, files, self._root, what)


def open_object_store(
    location: str,
    mapping: Mapping[str, str] = MappingProxyType({}),
    *,
    cache_directory: str = "",
    max_nbytes: int = DEFAULT_MAX_NBYTES,
    environ: Mapping[str, str] = os.environ,
) -> ObjectStorage:
    """Return the repository at ``location``; nothing is asked of the store yet. ``max_nbytes``: of the cache; 0 is no limit.

    Raises:
        InvalidArgument: the location or its credentials are wrong.
        Unsupported: the library is not installed.
    """
    place = parse_location(location)
    mount = environ.get(_MOUNTS[place.scheme], "")
    root = Path(mount or cache_directory or _default_cache(environ)).expanduser().absolute()
    client = StoreClient(place, location, environ)
    return ObjectStorage(location, mapping, client=client, cache=open_cache(root, max_nbytes))


def _default_cache(environ: Mapping[str, str]) -> Path:
    base = environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if base else Path.home() / ".cache") / "bireme" / "object-stores"


def _is_config(path: str) -> bool:
    parts = PurePosixPath(path)
    return path == CONFIG_FILE or (str(parts.parent) == NAMED_CONFIGS_DIR and parts.suffix == ".pbtxt")


def _write_hole(path: Path, size: int) -> None:
    with path.open("xb") as file:
        file.truncate(size)


def _remove(parent: Path, pid: int, _path: Path) -> None:
    remove_directory(parent, pid)
