"""EnvironmentCache: a directory of environments that were built or unpacked once, shared by loads and servers.

An environment is made in its final place, as scripts within it hold its path; a mark written last says that it is
complete. What has no mark is half-made, by a build that was killed, and is made again.

Each environment has two file locks. Whoever wants it holds the one on its use, shared, until the process ends; what nobody
holds and a newer environment of the same origin replaces is removed. The other lets one build at a time, and is held only for that.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import shutil
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from bireme.types import InvalidArgument

log = logging.getLogger("bireme.backends.python")

CACHE_VARIABLE: Final = "BIREME_CACHE_DIR"

_MARK: Final = "bireme-complete"
_USE_SUFFIX: Final = ".use"
_BUILD_SUFFIX: Final = ".build"

_in_use: dict[Path, int] = {}
"""Descriptors of the locked files of the environments that this process uses: until it ends, as nobody knows when a worker ends."""
_in_use_lock: Final = threading.Lock()


class EnvironmentCache:
    """The environments below one directory. Any thread may use it; everything blocks."""

    def __init__(self, root: Path) -> None:
        self.root = root

    @classmethod
    def of_user(cls) -> EnvironmentCache:
        """Return the cache that the user's variables name: ``$BIREME_CACHE_DIR``, else that of XDG."""
        chosen = os.environ.get(CACHE_VARIABLE)
        if chosen:
            return cls(Path(chosen).absolute() / "environments")
        base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        return cls(Path(base).absolute() / "bireme" / "environments")

    def unwritable(self, error: OSError, where: str) -> InvalidArgument:
        """Return the error that says what to do where the cache cannot be written."""
        return InvalidArgument(
            f"{where}: cannot keep an environment in '{self.root}': {error.strerror}; {CACHE_VARIABLE} names another "
            f"directory"
        )

    def get(self, key: str, origin: str, make: Callable[[Path], None], *, where: str) -> Path:
        """Return the environment of ``key``, made by ``make`` in the directory that it gets if there is none.

        ``origin`` names the file that it is made from: an older environment of the same origin goes when nobody uses it.

        Raises:
            InvalidArgument: the cache cannot be written. And whatever ``make`` raises; nothing stays behind then.
        """
        prefix = self.root / hashlib.sha256(key.encode()).hexdigest()[:32]
        with _in_use_lock:
            if prefix in _in_use and (prefix / _MARK).is_file():
                return prefix
        try:
            self.root.mkdir(parents=True, exist_ok=True, mode=0o700)
            lock = _open(prefix, _USE_SUFFIX)
        except OSError as error:
            if (prefix / _MARK).is_file():  # in a read-only image, where nobody removes it
                return prefix
            raise self.unwritable(error, where) from error
        try:
            fcntl.flock(lock, fcntl.LOCK_SH)  # from here on nobody removes it
            if not (prefix / _MARK).is_file():
                self._make_once(prefix, origin, make, where=where)
        except BaseException:
            os.close(lock)
            raise
        with _in_use_lock:
            if prefix in _in_use:
                os.close(_in_use[prefix])
            _in_use[prefix] = lock
        return prefix

    def _make_once(self, prefix: Path, origin: str, make: Callable[[Path], None], *, where: str) -> None:
        """Make the environment unless another load does so first."""
        lock = _open(prefix, _BUILD_SUFFIX)
        try:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                log.info("%s: waiting for another load that makes the same environment", where)
                fcntl.flock(lock, fcntl.LOCK_EX)
            if not (prefix / _MARK).is_file():
                self._make(prefix, origin, make, where=where)
        finally:
            os.close(lock)

    def _make(self, prefix: Path, origin: str, make: Callable[[Path], None], *, where: str) -> None:
        shutil.rmtree(prefix, ignore_errors=True)
        started_s = time.monotonic()
        try:
            make(prefix)
            (prefix / _MARK).write_text(origin, "utf-8")
        except OSError as error:
            shutil.rmtree(prefix, ignore_errors=True)
            raise InvalidArgument(f"{where}: cannot make the environment '{prefix}': {error}") from error
        except BaseException:
            shutil.rmtree(prefix, ignore_errors=True)
            raise
        log.info("%s: environment ready after %.1f s: '%s'", where, time.monotonic() - started_s, prefix)
        self._remove_older(prefix, origin)

    def _remove_older(self, prefix: Path, origin: str) -> None:
        """Remove what ``prefix`` replaces, and what was left half-made, as far as nobody uses it."""
        for other in self.root.iterdir():
            mark = other / _MARK
            if other == prefix or not _beside(other, _USE_SUFFIX).is_file():
                continue
            if mark.is_file() and mark.read_text("utf-8") != origin:
                continue
            lock = _open(other, _USE_SUFFIX)
            with suppress(OSError):
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                mark.unlink(missing_ok=True)
                shutil.rmtree(other)
            os.close(lock)


def _beside(prefix: Path, suffix: str) -> Path:
    return prefix.with_name(prefix.name + suffix)


def _open(prefix: Path, suffix: str) -> int:
    return os.open(_beside(prefix, suffix), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
