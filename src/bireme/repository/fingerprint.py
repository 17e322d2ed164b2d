"""Fingerprint: whether anything in a model directory has changed, and what.

Contents are not read: a file is what its path, modification time (ns) and size say. That is what makes it cheap enough
for every poll, and it is the rule the original follows.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from bireme.repository.layout import is_leftover, parse_version

Mark = tuple[int, int] | tuple[int, int, str]
"""Modification time in ns, and size in bytes; zeros for a directory. An object in a store has its ETag as well."""


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """The state of a whole model directory. Two equal ones mean that nothing has changed."""

    files: Mapping[str, Mark]
    """By path relative to the model directory, ``/``-separated; a directory's path ends in ``/``."""
    newest_change_ns: int = field(default=0, compare=False)
    """Wall-clock time of the latest change of any of them (``st_ctime_ns``, which no copy program can set back)."""

    def changed_paths(self, other: Fingerprint) -> list[str]:
        """Return the paths that are new, gone or different in ``other``, sorted."""
        changed = self.files.items() ^ other.files.items()
        return sorted({path for path, _ in changed})

    def __repr__(self) -> str:
        return f"Fingerprint({len(self.files)} paths)"


def take_fingerprint(model_dir: Path) -> Fingerprint:
    """Look at everything in ``model_dir``; symbolic links are followed, tools' leftovers are ignored.

    Raises:
        OSError: the directory or one below it cannot be read.
    """
    files: dict[str, Mark] = {}
    newest_ns = 0
    for path, status, is_dir in _walk(model_dir, "", set()):
        files[path] = (0, 0) if is_dir else (status.st_mtime_ns, status.st_size)
        newest_ns = max(newest_ns, status.st_ctime_ns)
    return Fingerprint(files, newest_ns)


def version_of_path(path: str) -> int | None:
    """Return the version whose directory holds ``path`` (as in `Fingerprint.files`), None for any other file."""
    first, slash, _ = path.partition("/")
    return parse_version(first) if slash else None


def _walk(
    directory: Path, prefix: str, above: set[tuple[int, int]]
) -> Iterator[tuple[str, os.stat_result, bool]]:
    own = directory.stat()
    identity = (own.st_dev, own.st_ino)
    if identity in above:  # a symbolic link that leads back up
        return
    above.add(identity)
    with os.scandir(directory) as entries:
        for entry in entries:
            if is_leftover(entry.name):
                continue
            try:
                status = entry.stat()
                is_dir = entry.is_dir()
            except (
                FileNotFoundError
            ):  # a dangling link, or gone since the listing: then it is simply not there
                continue
            path = prefix + entry.name
            yield (f"{path}/" if is_dir else path), status, is_dir
            if is_dir:
                yield from _walk(directory / entry.name, f"{path}/", above)
    above.discard(identity)
