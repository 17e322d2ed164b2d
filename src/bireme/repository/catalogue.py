"""Catalogue: all repositories of a server as one space of models.

Models are told apart by their keys (`bireme.repository.model_key`). Without namespaces these are names, and a name that appears in
two repositories belongs to nobody. Blocking (it reads directories): for loading threads, except `Catalogue.list_names`,
which reads no more than one listing per repository.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from bireme.repository.fingerprint import Fingerprint
from bireme.repository.layout import (
    CONFIG_FILE,
    VersionDirs,
    check_model_name,
    is_model_candidate,
    list_versions,
    misnamed_config,
)
from bireme.repository.model_key import make_key, name_of, namespace_of
from bireme.repository.object_store.location import is_remote
from bireme.repository.storage import DEFAULT_CACHE, Storage, StoreCacheOptions, identify, open_storage
from bireme.types import AlreadyExists, InvalidArgument, NotFound, Unavailable

log = logging.getLogger("bireme.repository")


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What one look at all repositories found."""

    models: Mapping[str, Fingerprint]
    """By key; duplicates and unreadable models are absent."""
    duplicates: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Names found in several repositories, with those repositories."""
    unreadable: frozenset[str] = frozenset()
    """Models whose directory could not be read this time: nothing is known about them."""
    is_complete: bool = True
    """False when a repository could not be listed: then a missing name means nothing."""


class Catalogue:
    """The models of several repositories."""

    def __init__(
        self,
        storages: Iterable[Storage],
        *,
        has_namespaces: bool = False,
        cache: StoreCacheOptions = DEFAULT_CACHE,
    ) -> None:
        """``has_namespaces``: each repository has its own names. ``cache`` is for repositories in object stores."""
        self.storages = list(storages)
        self.has_namespaces = has_namespaces
        self._cache = cache
        self._warned: set[object] = set()
        self._faults: dict[str, str] = {}
        """Why a repository could not be read the last time, by its location."""
        self._last_names: dict[str, list[str]] = {}
        """What a repository held the last time, by its location."""

    @classmethod
    def open(
        cls,
        locations: Iterable[str],
        *,
        has_namespaces: bool = False,
        cache: StoreCacheOptions = DEFAULT_CACHE,
    ) -> Catalogue:
        """Open every repository; one that is named twice counts once. Of object stores each is listed, as a test.

        Raises:
            InvalidArgument: a location is no directory, or cannot be listed; or its credentials are wrong.
            Unsupported: the library for object stores is not installed.
        """
        opened = [open_storage(location, cache=cache) for location in locations]
        storages = {storage.identity: storage for storage in opened}
        for storage in storages.values():
            if storage.is_remote:
                _check_remote(storage)
        return cls(storages.values(), has_namespaces=has_namespaces, cache=cache)

    def listed(self, *, whole: bool = False) -> Catalogue:
        """Return the catalogue for one round of looks and loads: see `Storage.listed`."""
        if not self.has_remote:
            return self
        view = Catalogue(
            [storage.listed(whole=whole) for storage in self.storages],
            has_namespaces=self.has_namespaces,
            cache=self._cache,
        )
        # What was said once is not said again, whoever says it.
        view._warned, view._faults, view._last_names = self._warned, self._faults, self._last_names
        return view

    @property
    def has_remote(self) -> bool:
        """Whether to look at the repositories takes a network, so that the loop must not wait for it."""
        return any(storage.is_remote for storage in self.storages)

    def register(self, location: str, mapping: Mapping[str, str]) -> None:
        """Add a repository. Any thread; what is being read meanwhile doesn't see it yet.

        ``mapping`` gives names to directories of it, which lose their own; the other directories keep theirs.

        Raises:
            InvalidArgument: the location is no directory. (An object store is not asked before the first load.)
            AlreadyExists: the repository is there already, or one of the names is in a mapping.
            Unsupported: the library for object stores is not installed.
        """
        try:
            storage = open_storage(location, mapping, self._cache)
        except InvalidArgument as error:
            why = f": {error.message}" if is_remote(location) else ""
            raise InvalidArgument(f"failed to register '{location}', repository not found{why}") from error
        for other in self.storages:
            if other.identity == storage.identity:
                raise AlreadyExists(f"model repository '{location}' has already been registered")
            taken = next((name for name in mapping if other.is_mapped(name)), None)
            if taken is not None and not self.has_namespaces:
                raise AlreadyExists(
                    f"failed to register '{taken}', there is a conflicting mapping for '{taken}' in '{other.location}'"
                )
        self.storages = [*self.storages, storage]

    def unregister(self, location: str) -> None:
        """Remove a repository. Models that were loaded from it stay. Any thread.

        Raises:
            InvalidArgument: no repository has this location.
        """
        rest = [storage for storage in self.storages if not _is_at(storage, location)]
        if len(rest) == len(self.storages):
            raise InvalidArgument(f"failed to unregister '{location}', repository not found")
        self.storages = rest

    def check_name(self, name: str) -> None:
        """Check a model's name that a client gave; with namespaces it may be a key.

        Raises:
            InvalidArgument: as `check_model_name`.
        """
        is_key = self.has_namespaces and any(each.location == namespace_of(name) for each in self.storages)
        check_model_name(name_of(name) if is_key else name)

    def keys_of(self, name: str) -> list[str]:
        """Return the keys of all models called ``name``; where there are none, the name: nobody has it."""
        if not self.has_namespaces:
            return [name]
        holders = [storage for storage in self.storages if self._holds(storage, name)]
        return sorted(make_key(storage.location, name) for storage in holders) or [name]

    def list_names(self) -> dict[str, list[Storage]]:
        """Return every model's key with the repositories that hold it, sorted; more than one means a duplicate.

        Odd directories are left out with one warning each. A repository that cannot be read is left out with an
        error in the log.
        """
        found, _ = self._list()
        return found

    def find(self, name: str) -> Storage:
        """Return the one repository that holds the model with key ``name``.

        Raises:
            NotFound: none does, or several do; says which.
            Unavailable: none does that could be read, and one could not.
        """
        namespace = namespace_of(name) if self.has_namespaces else ""
        searched = [each for each in self.storages if not self.has_namespaces or each.location == namespace]
        storages = [storage for storage in searched if self._holds(storage, name_of(name))]
        if len(storages) == 1:
            return storages[0]
        where = ", ".join(f"'{storage.location}'" for storage in storages or self.storages)
        if storages:
            raise NotFound(f"model '{name}' is not unique across all model repositories: it is in {where}")
        for storage in searched:
            if fault := self._faults.get(storage.location):
                raise Unavailable(f"model '{name}' cannot be looked for in '{storage.location}': {fault}")
        raise NotFound(f"model '{name}' not found in any model repository (searched {where or 'none'})")

    def knows(self, name: str) -> bool:
        """Whether a repository has the model with key ``name``: a remote one as it was last listed, so never a long call."""
        found: set[str] = set()
        for storage in self.storages:
            names = self._last_names.get(storage.location, []) if storage.is_remote else storage.list_names()
            found.update(make_key(storage.location, each) if self.has_namespaces else each for each in names)
        return name in found

    def take_snapshot(self) -> Snapshot:
        """Look at every file of every model."""
        found, is_complete = self._list()
        models: dict[str, Fingerprint] = {}
        duplicates: dict[str, tuple[str, ...]] = {}
        unreadable: set[str] = set()
        for name, storages in found.items():
            if len(storages) > 1:
                duplicates[name] = tuple(storage.location for storage in storages)
                continue
            try:
                models[name] = storages[0].fingerprint(name_of(name))
            except OSError as error:
                unreadable.add(name)
                self._warn(("unreadable", name, str(error)), f"cannot read model '{name}': {error}")
        return Snapshot(models, duplicates, frozenset(unreadable), is_complete)

    def list_versions(self, model_dir: Path) -> VersionDirs:
        """As `layout.list_versions`, and warn once of every odd directory and of a config file by another name."""
        found = list_versions(model_dir)
        for name in found.odd:
            self._warn(
                model_dir / name,
                f"ignore '{model_dir / name}': a version directory is a positive integer without leading zero",
            )
        misnamed = misnamed_config(model_dir)
        if misnamed:
            path = model_dir / misnamed
            self._warn(path, f"ignore '{path}': a config file is called {CONFIG_FILE}")
        return found

    def _list(self) -> tuple[dict[str, list[Storage]], bool]:
        found: dict[str, list[Storage]] = {}
        is_complete = True
        for storage in self.storages:
            try:
                names = storage.list_names()
            except OSError as error:
                is_complete = False
                self._note_fault(storage, str(error))
                continue
            self._note_fault(storage, "")
            self._last_names[storage.location] = names
            for name in names:
                if is_model_candidate(name):
                    key = make_key(storage.location, name) if self.has_namespaces else name
                    found.setdefault(key, []).append(storage)
                else:
                    self._warn(
                        (storage.location, name), f"ignore {name!r} in '{storage.location}': no model's name"
                    )
        return dict(sorted(found.items())), is_complete

    def _holds(self, storage: Storage, name: str) -> bool:
        if not is_model_candidate(name):
            return False
        try:
            holds = storage.holds(name)
        except OSError as error:
            self._note_fault(storage, str(error))
            return False
        self._note_fault(storage, "")
        return holds

    def _note_fault(self, storage: Storage, fault: str) -> None:
        """Say that a repository cannot be read, or can again ("" is no fault): once, not at every look."""
        before = self._faults.pop(storage.location, "")
        if fault:
            self._faults[storage.location] = fault
            if fault != before:
                log.error("failed to poll model repository '%s': %s", storage.location, fault)
        elif before:
            log.info("model repository '%s' can be read again", storage.location)

    def _warn(self, key: object, message: str) -> None:
        if key not in self._warned:
            self._warned.add(key)
            log.warning(message)

    def __repr__(self) -> str:
        return f"Catalogue({[storage.location for storage in self.storages]})"


def _check_remote(storage: Storage) -> None:
    try:
        storage.list_names()
    except OSError as error:
        raise InvalidArgument(f"cannot read the model repository '{storage.location}': {error}") from error


def _is_at(storage: Storage, location: str) -> bool:
    return storage.location == location or storage.identity == identify(location)
