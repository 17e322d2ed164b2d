"""POSIX shared memory objects as clients make them, for tests: each is gone when its test is."""

from __future__ import annotations

import _posixshmem
import mmap
import os
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Self

from bireme.types import InvalidArgument
from bireme.wire.regions import Place, region_not_found


class ShmObject:
    """An object of ``size`` bytes and the client's own mapping of it."""

    def __init__(self, size: int) -> None:
        self.key = f"/bireme_test_{uuid.uuid4().hex}"
        self.fd = _posixshmem.shm_open(self.key, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        os.ftruncate(self.fd, size)
        self.memory = mmap.mmap(self.fd, size)

    def unlink(self) -> None:
        with suppress(FileNotFoundError):
            _posixshmem.shm_unlink(self.key)

    def is_mapped(self) -> bool:
        """Whether this process maps the object beside the client's own mapping."""
        lines = Path("/proc/self/maps").read_text().splitlines()
        return sum(self.key.lstrip("/") in line for line in lines) > 1

    def close(self) -> None:
        self.unlink()
        self.memory.close()
        os.close(self.fd)


class ShmObjects:
    """Makes objects; all are gone when its block ends."""

    def __init__(self) -> None:
        self._made: list[ShmObject] = []

    def make(self, size: int = 4096) -> ShmObject:
        self._made.append(ShmObject(size))
        return self._made[-1]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for shm in self._made:
            shm.close()


class FakeRegions:
    """Regions in plain memory, by name; remembers what was asked for."""

    def __init__(self, **sizes: int) -> None:
        self.memory = {name: bytearray(size) for name, size in sizes.items()}
        self.asked: list[tuple[str, int, int]] = []

    def __len__(self) -> int:
        return len(self.memory)

    def slice(self, region: str, offset: int, byte_size: int) -> memoryview:
        self.asked.append((region, offset, byte_size))
        if region not in self.memory:
            raise region_not_found(region)
        if offset + byte_size > len(self.memory[region]):
            raise InvalidArgument(f"Invalid offset + byte size for shared memory region: '{region}'")
        return memoryview(self.memory[region])[offset : offset + byte_size]

    def overlap(self, first: Place, second: Place) -> bool:
        start, other = first.offset, second.offset
        return (
            first.region == second.region
            and start < other + second.byte_size
            and other < start + first.byte_size
        )
