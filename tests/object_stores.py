"""Object stores in memory, counting what is asked of them; no network."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import obstore
from obstore.store import MemoryStore

from bireme.repository.object_store.cache import StoreCache
from bireme.repository.object_store.client import StoreClient, StoredObject
from bireme.repository.object_store.location import parse_location
from bireme.repository.object_store.storage import ObjectStorage

LOCATION = "s3://bucket"
KEY = {"AWS_ACCESS_KEY_ID": "id", "AWS_SECRET_ACCESS_KEY": "secret"}


class MemoryClient(StoreClient):
    """A bucket in memory. ``faults`` are raised by the next reads of their keys, one each."""

    def __init__(self, files: dict[str, bytes] | None = None) -> None:
        self.memory = MemoryStore()
        super().__init__(parse_location(LOCATION), LOCATION, KEY, connect=lambda *_: self.memory)
        self.counts: Counter[str] = Counter()
        self.reads: list[tuple[str, int, int]] = []
        self.faults: dict[str, list[Exception]] = {}
        for path, content in (files or {}).items():
            self.put(path, content)

    def put(self, path: str, content: bytes) -> None:
        obstore.put(self.memory, path, content)

    def delete(self, path: str) -> None:
        obstore.delete(self.memory, path)

    @property
    def fetched(self) -> list[str]:
        return sorted(path for path, _, _ in self.reads)

    def forget(self) -> None:
        self.counts.clear()
        self.reads.clear()

    def list_objects(self, folder: str = "") -> list[StoredObject]:
        self.counts[f"list {folder}".strip()] += 1
        return super().list_objects(folder)

    def list_folders(self) -> list[str]:
        self.counts["folders"] += 1
        return super().list_folders()

    def read(self, found: StoredObject, start: int, end: int) -> Iterator[memoryview]:
        self.reads.append((found.path, start, end))
        faults = self.faults.get(found.path)
        if faults:
            raise faults.pop(0)
        return super().read(found, start, end)


def make_storage(cache: Path, files: dict[str, bytes], **settings: Any) -> ObjectStorage:
    """Return a repository in memory with its cache in ``cache``."""
    return ObjectStorage(LOCATION, client=MemoryClient(files), cache=StoreCache(cache), **settings)


def tree(folder: Path) -> dict[str, bytes]:
    """Return all files below ``folder``."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
