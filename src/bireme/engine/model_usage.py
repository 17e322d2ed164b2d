"""ModelUsage: when the models of a server were last used, and how much memory they take."""

from __future__ import annotations

import os
from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from bireme.engine.model import Model


@dataclass(slots=True, eq=False)
class Usage:
    """What is known of one loaded model."""

    name: str
    last_used_ns: int
    nbytes: int = -1
    """Negative: not measured yet."""
    num_seen: int = 0
    """Requests that it had accepted when somebody last looked."""


class ModelUsage:
    """The loaded models of a server. Requests are not slowed down by it: it looks at their counters now and then."""

    def __init__(self) -> None:
        self._usages: dict[str, Usage] = {}
        self._nbytes: dict[str, int] = {}

    def observe(self, name: str, models: Iterable[Model], now_ns: int) -> Usage:
        """Look at a model that is loaded; return what is known of it."""
        usage = self._usages.get(name)
        if usage is None:
            usage = self._usages[name] = Usage(name, now_ns)
        num_accepted = 0
        is_busy = False
        for model in models:
            num_accepted += model.statistics.num_accepted
            is_busy = is_busy or is_in_use(model)
        if is_busy or num_accepted != usage.num_seen:
            usage.num_seen = num_accepted
            usage.last_used_ns = now_ns
        return usage

    def keep(self, names: Container[str]) -> None:
        """Forget all models but these; how much memory the others took is remembered for their next load."""
        for name in [name for name in self._usages if name not in names]:
            del self._usages[name]

    def measure(self, name: str, nbytes: int) -> None:
        """A model takes so much memory."""
        self._nbytes[name] = nbytes
        if name in self._usages:
            self._usages[name].nbytes = nbytes

    def expected_nbytes(self, name: str) -> int:
        """Return how much memory a model took when it was last loaded; 0: it never was."""
        return self._nbytes.get(name, 0)

    @property
    def total_nbytes(self) -> int:
        """What all loaded models take."""
        return sum(max(0, usage.nbytes) for usage in self._usages.values())

    def is_measured(self, name: str) -> bool:
        """Whether the size of a loaded model is known."""
        return name in self._usages and self._usages[name].nbytes >= 0

    def __len__(self) -> int:
        return len(self._usages)

    def __iter__(self) -> Iterator[Usage]:
        """Yield the loaded models, least recently used first."""
        return iter(sorted(self._usages.values(), key=lambda usage: usage.last_used_ns))


def is_in_use(model: Model) -> bool:
    """Whether something would miss the model this moment: requests, direct calls, sequences that have begun."""
    return bool(model.num_in_flight or model.num_sequences or model.pool.executions)


def measure(version_dirs: Iterable[Path], pids: Iterable[int]) -> int:
    """Return what a model's processes take, which hold its weights; else the size of its files. Blocking."""
    return memory_of_processes(pids) or size_of_files(version_dirs)


def size_of_files(version_dirs: Iterable[Path]) -> int:
    """Return the size of all files of these versions. Blocking."""
    return sum(path.stat().st_size for folder in version_dirs for path in folder.rglob("*") if path.is_file())


def pids_of(models: Iterable[Model]) -> set[int]:
    """Return the processes that run these models. Loop thread only."""
    instances = [slot.instance for model in models for slot in model.pool.slots]
    return {pid for instance in instances if (pid := getattr(instance, "pid", None)) is not None}


def memory_of_processes(pids: Iterable[int]) -> int:
    """Return what these processes take of the memory, shared pages in proportion; 0 where the system does not say. Blocking."""
    return sum(map(_proportional_nbytes, pids))


def _proportional_nbytes(pid: int) -> int:
    try:
        with Path(f"/proc/{pid}/smaps_rollup").open("rb") as lines:
            return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(b"Pss:")), 0)
    except OSError:
        return _resident_nbytes(pid)


def _resident_nbytes(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_bytes().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0
