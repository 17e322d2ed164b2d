"""Catalogue: all repositories of a server as one space of model names.

Names are unique over all repositories: one that appears twice belongs to nobody. Blocking (it reads directories): for
loading threads, except `Catalogue.list_names`, which reads no more than one listing per repository.
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
    is_model_candidate,
    list_versions,
    misnamed_config,
)
from bireme.repository.storage import Storage, open_storage
from bireme.types import NotFound

log = logging.getLogger("bireme.repository")


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What one look at all repositories found."""

    models: Mapping[str, Fingerprint]
    """By name; duplicates and unreadable models are absent."""
    duplicates: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Names found in several repositories, with those repositories."""
    unreadable: frozenset[str] = frozenset()
    """Models whose directory could not be read this time: nothing is known about them."""
    is_complete: bool = True
    """False when a repository could not be listed: then a missing name means nothing."""


class Catalogue:
    """The models of several repositories."""

    def __init__(self, storages: Iterable[Storage]) -> None:
        self.storages = list(storages)
        self._warned: set[object] = set()

    @classmethod
    def open(cls, locations: Iterable[str]) -> Catalogue:
        """Open every repository; one that is named twice counts once.

        Raises:
            InvalidArgument: a location is no directory.
            Unsupported: a location is in an object store.
        """
        opened = (open_storage(location) for location in locations)
        return cls({_identity(storage): storage for storage in opened}.values())

    def list_names(self) -> dict[str, list[Storage]]:
        """Return every model's name with the repositories that hold it, sorted; more than one means a duplicate.

        Odd directories are left out with one warning each. A repository that cannot be read is left out with an
        error in the log.
        """
        found, _ = self._list()
        return found

    def find(self, name: str) -> Storage:
        """Return the one repository that holds ``name``.

        Raises:
            NotFound: none does, or several do; says which.
        """
        storages = self.list_names().get(name, [])
        if len(storages) == 1:
            return storages[0]
        where = ", ".join(f"'{storage.location}'" for storage in storages or self.storages)
        if storages:
            raise NotFound(f"model '{name}' is not unique across all model repositories: it is in {where}")
        raise NotFound(f"model '{name}' not found in any model repository (searched {where or 'none'})")

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
                models[name] = storages[0].fingerprint(name)
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
                log.error("failed to poll model repository '%s': %s", storage.location, error)  # noqa: TRY400
                continue
            for name in names:
                if is_model_candidate(name):
                    found.setdefault(name, []).append(storage)
                else:
                    self._warn(
                        (storage.location, name), f"ignore {name!r} in '{storage.location}': no model's name"
                    )
        return dict(sorted(found.items())), is_complete

    def _warn(self, key: object, message: str) -> None:
        if key not in self._warned:
            self._warned.add(key)
            log.warning(message)

    def __repr__(self) -> str:
        return f"Catalogue({[storage.location for storage in self.storages]})"


def _identity(storage: Storage) -> str:
    """What makes two storages the same one."""
    return str(Path(storage.location).resolve())
