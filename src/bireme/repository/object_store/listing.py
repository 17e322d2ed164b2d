"""Listing: what one look at a repository in an object store has seen, as models with files. Pure.

A store has keys and no directories. A name before the first slash is a model; a key that ends in a slash stands for an empty
directory (the library gives it without the slash and with no bytes), and one that is also the beginning of others cannot be
a file beside them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from bireme.repository.fingerprint import Fingerprint, Mark
from bireme.repository.layout import is_leftover, parse_version
from bireme.repository.object_store.client import StoredObject
from bireme.repository.object_store.faults import StoreError

_LONGEST_NAME: Final = 255
"""Bytes that a file's name may have."""


class Listing:
    """The objects of some models, by model and path."""

    def __init__(self, objects: Iterable[StoredObject]) -> None:
        self._models: dict[str, dict[str, StoredObject]] = {}
        for found in objects:
            model, slash, path = found.path.partition("/")
            if slash and path:
                self._models.setdefault(model, {})[path] = found

    @property
    def names(self) -> list[str]:
        """The models, unsorted."""
        return list(self._models)

    def __contains__(self, name: str) -> bool:
        return name in self._models

    def replace(self, name: str, other: Listing) -> None:
        """Take what a later look at one model has seen."""
        self._models.pop(name, None)
        if name in other._models:
            self._models[name] = other._models[name]

    def files(self, name: str) -> Mapping[str, StoredObject]:
        """Return the files of a model by path in its directory, without what tools leave behind.

        Raises:
            FileNotFoundError: there is no such model.
            StoreError: an object's key cannot be the path of a file; names it.
        """
        objects = self._objects(name)
        files: dict[str, StoredObject] = {}
        above = _directories_of(objects)
        for path, found in objects.items():
            if path in above or _is_marker(path, found):
                continue
            check_path(path, found.path)
            if not any(map(is_leftover, path.split("/")[:-1])):
                files[path] = found
        return files

    def directories(self, name: str) -> set[str]:
        """Return the paths of all directories of a model, the empty ones included."""
        objects = self._objects(name)
        markers = {path for path, found in objects.items() if _is_marker(path, found)}
        return {
            path for path in _directories_of(objects) | markers if not any(map(is_leftover, path.split("/")))
        }

    def fingerprint(self, name: str) -> Fingerprint:
        """Return the state of a model: a file is its ETag, its time and its size. Raises as `files`."""
        marks: dict[str, Mark] = {f"{path}/": (0, 0) for path in self.directories(name)}
        newest_ns = 0
        for path, found in self.files(name).items():
            if not is_leftover(path.rpartition("/")[2]):
                marks[path] = (found.modified_ns, found.size, found.etag)
                newest_ns = max(newest_ns, found.modified_ns)
        return Fingerprint(marks, newest_ns)

    def _objects(self, name: str) -> Mapping[str, StoredObject]:
        if name not in self._models:
            raise FileNotFoundError(f"there is no object below '{name}/'")
        return self._models[name]

    def __repr__(self) -> str:
        return f"Listing({len(self._models)} models)"


def check_path(path: str, key: str) -> None:
    """Check that a key's path stays in its directory and is one that a file may have.

    Raises:
        StoreError: names the key.
    """
    for part in path.split("/"):
        if part in {"", ".", ".."} or "\0" in part:
            raise StoreError(f"the key {key!r} cannot be a file's path (an empty part, '.' or '..')")
        if len(part.encode("utf-8", "surrogateescape")) > _LONGEST_NAME:
            raise StoreError(f"the key {key!r} has a part of more than {_LONGEST_NAME} bytes")


def _is_marker(path: str, found: StoredObject) -> bool:
    """Whether an object stands for an empty directory: nothing else would be called like a version and be empty."""
    return found.size == 0 and parse_version(path) is not None


def _directories_of(paths: Iterable[str]) -> set[str]:
    return {parent for path in paths for parent in _parents(path)}


def _parents(path: str) -> Iterator[str]:
    while "/" in path:
        path = path.rpartition("/")[0]
        yield path
