"""StoreCache: what was fetched from object stores, on local disk, for the next load, the next start and other servers.

    blobs/ab/abcd…      one object each, read-only, named by a hash of its bucket, key, ETag and size
    live/ID.lock        held by the process that owns live/ID as long as it lives
    live/ID/…           its model directories, made of hard links to blobs; and files that are still on their way

A blob comes into being by a rename, so it is whole or not there, whoever looks. Model directories of a process that was killed
are removed by the next one that opens the cache. When the blobs take more room than allowed, those go that were used
least recently; one that a model directory uses is left, as its room would not come back.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import itertools
import logging
import math
import os
import shutil
import threading
import time
import uuid
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from bireme.repository.object_store.client import StoredObject
from bireme.repository.object_store.faults import StoreError

try:
    import fcntl
except ImportError:  # Windows: what a killed process leaves behind stays
    fcntl = None  # type: ignore[assignment]

log = logging.getLogger("bireme.repository")

DEFAULT_MAX_NBYTES: Final = 64 << 30
_MARGIN: Final = 64 << 20
"""Bytes that stay free on the disk."""
_FRESH_S: Final = 10.0
_FULL: Final = 0.9
"""How long, and up to which part of what is allowed, a count of all blobs is good for; other servers add some, too."""
_LOCK_TRIES: Final = 3
_NS: Final = 1_000_000_000


class StoreCache:
    """One cache directory. Any thread may use it, and any number of processes."""

    def __init__(self, root: Path, max_nbytes: int = DEFAULT_MAX_NBYTES) -> None:
        """``max_nbytes``: of all blobs together; 0 is no limit. Nothing is written before something is fetched."""
        self.root = root
        self.max_nbytes = max_nbytes
        self._lock = threading.Lock()
        self._workspace: Path | None = None
        self._numbers = itertools.count(1)
        self._estimate = 0
        """Bytes of all blobs, as last counted, and of those to come since."""
        self._estimated_s = -math.inf

    def new_directory(self) -> Path:
        """Return a fresh directory; its owner removes it (`remove_directory`).

        Raises:
            StoreError: the cache cannot be written.
        """
        number = str(next(self._numbers))
        with self._lock:
            path = self._own_locked() / number
            try:
                path.mkdir()
            except FileNotFoundError:  # somebody has emptied the cache
                log.warning("'%s' was removed by somebody: it is made anew", self._workspace)
                self._workspace = None
                path = self._own_locked() / number
                path.mkdir()
            except OSError as error:
                raise self._fault(error) from error
        return path

    def new_part(self) -> Path:
        """Return where a file that is on its way may be written."""
        return self._own() / f"{next(self._numbers)}.part"

    def blob_path(self, root: str, found: StoredObject) -> Path:
        """Return where an object of the bucket ``root`` is kept. Without an ETag it is told by its time."""
        state = found.etag or str(found.modified_ns)
        # Its own name is in it, so that nothing depends on how a store makes its ETags.
        text = "\n".join((root, found.path, state, str(found.size)))
        name = hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()
        return self.root / "blobs" / name[:2] / name

    def place(self, blob: Path, found: StoredObject, target: Path) -> bool:
        """Put a blob at ``target``, which may be there; False: the blob is not here, or somebody has changed it."""
        try:
            status = blob.stat()
            if status.st_size != found.size or status.st_mtime_ns // _NS != found.modified_ns // _NS:
                log.warning(
                    "'%s' was changed by somebody, or the object was put again: fetching %s", blob, found.path
                )
                blob.unlink()
                return False
            target.unlink(missing_ok=True)
            _link(blob, target)
            with contextlib.suppress(OSError):  # another user's: then it looks older than it is
                os.utime(blob, ns=(time.time_ns(), status.st_mtime_ns))
        except FileNotFoundError:
            return False
        return True

    def keep(self, part: Path, blob: Path, found: StoredObject, target: Path) -> None:
        """Make a blob of a file that has arrived whole, and put it at ``target``, which may be there.

        At once: between the two, another server that needs room could remove it.
        """
        part.chmod(0o444)
        os.utime(part, ns=(time.time_ns(), found.modified_ns))
        target.unlink(missing_ok=True)
        _link(part, target)
        blob.parent.mkdir(parents=True, exist_ok=True)
        part.replace(blob)

    def make_room(self, nbytes: int) -> None:
        """Let ``nbytes`` more be kept: remove what was used least recently, as far as there is too much.

        Raises:
            StoreError: the disk has no room for them.
        """
        with self._lock:
            free = shutil.disk_usage(self._own_locked()).free
            if free >= nbytes + _MARGIN and self._is_far_from_full(nbytes):
                return
            blobs = sorted(self._blobs())
            total = sum(blob.size for blob in blobs)
            self._estimate, self._estimated_s = total + nbytes, time.monotonic()
            excess = total + nbytes - self.max_nbytes if self.max_nbytes else 0
            wanted = max(excess, nbytes + _MARGIN - free)
            num_removed = 0
            for blob in blobs:
                if wanted <= 0:
                    break
                if not blob.is_used:
                    blob.path.unlink(missing_ok=True)
                    wanted -= blob.size
                    free += blob.size
                    num_removed += 1
        if num_removed:
            log.info("removed %d files from the cache of object stores in '%s'", num_removed, self.root)
        if free < nbytes:
            raise StoreError(
                f"'{self.root}' has no room for {nbytes / 1e6:.1f} MB from an object store: {free / 1e6:.1f} MB are free"
            )

    def _is_far_from_full(self, nbytes: int) -> bool:
        """Whether nobody needs to look at all blobs again, as far as this process knows: there may be many thousands."""
        if not self.max_nbytes:
            return True
        self._estimate += nbytes
        is_fresh = time.monotonic() - self._estimated_s < _FRESH_S
        return is_fresh and self._estimate < self.max_nbytes * _FULL

    def _blobs(self) -> Iterator[_Blob]:
        for folder in _scan(self.root / "blobs"):
            for entry in _scan(Path(folder.path)):
                with contextlib.suppress(FileNotFoundError):
                    status = entry.stat()
                    yield _Blob(status.st_atime_ns, Path(entry.path), status.st_size, status.st_nlink > 1)

    def _own(self) -> Path:
        with self._lock:
            return self._own_locked()

    def _own_locked(self) -> Path:
        """Return this process's directory in the cache, made when it is first needed."""
        if self._workspace is None:
            try:
                self._workspace = self._open_workspace()
            except OSError as error:
                raise self._fault(error) from error
        return self._workspace

    def _open_workspace(self) -> Path:
        live = self.root / "live"
        self.root.mkdir(parents=True, exist_ok=True, mode=0o700)
        live.mkdir(exist_ok=True)
        _sweep(live)
        for _ in range(_LOCK_TRIES):
            name = f"{os.getpid()}-{uuid.uuid4().hex[:8]}"
            lock = _take_lock(live / f"{name}.lock")
            if lock is not None:
                break
        else:  # a file system without locks
            log.warning("files in '%s' cannot be locked: what a killed server leaves there stays", live)
        workspace = live / name
        workspace.mkdir()
        weakref.finalize(self, _remove_workspace, workspace, lock, os.getpid())
        return workspace

    def _fault(self, error: OSError) -> StoreError:
        return StoreError(
            f"cannot use '{self.root}' as the cache of object stores: {error.strerror or error}"
        )

    def __repr__(self) -> str:
        return f"StoreCache({str(self.root)!r})"


class _Blob(NamedTuple):
    used_ns: int
    path: Path
    size: int
    is_used: bool


@functools.cache
def open_cache(root: Path, max_nbytes: int) -> StoreCache:
    """Return this process's one object for a cache directory."""
    return StoreCache(root, max_nbytes)


def remove_directory(path: Path, pid: int) -> None:
    """Remove a model directory that process ``pid`` has made; a process forked from it has nothing to remove."""
    if os.getpid() == pid:
        shutil.rmtree(path, ignore_errors=True)


def _link(blob: Path, target: Path) -> None:
    try:
        os.link(blob, target)
    except FileNotFoundError:
        raise
    except OSError:  # no hard links here, or another user's file
        shutil.copyfile(blob, target)


def _scan(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except (FileNotFoundError, NotADirectoryError):
        return []


def _sweep(live: Path) -> None:
    """Remove what processes that are no more have left."""
    for entry in _scan(live):
        if not entry.name.endswith(".lock"):
            continue
        lock = _take_lock(Path(entry.path))
        if lock is not None:
            shutil.rmtree(live / entry.name.removesuffix(".lock"), ignore_errors=True)
            Path(entry.path).unlink(missing_ok=True)
            os.close(lock)


def _take_lock(path: Path) -> int | None:
    """Return the descriptor that holds the lock; None: somebody else has it, or has just removed the file; or nobody can."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        if fcntl is not None:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if path.stat().st_ino != os.fstat(descriptor).st_ino:
                raise FileNotFoundError(path)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor


def _remove_workspace(workspace: Path, lock: int | None, pid: int) -> None:
    if os.getpid() == pid:
        shutil.rmtree(workspace, ignore_errors=True)
        workspace.with_name(f"{workspace.name}.lock").unlink(missing_ok=True)
        if lock is not None:
            os.close(lock)
