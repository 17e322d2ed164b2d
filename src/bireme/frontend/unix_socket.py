"""UnixSocket: a listening UNIX domain socket and the file that stands for it.

The file outlives a process that was killed, and then stands in the way of the next one. So a file that nobody listens
on is removed; one that somebody listens on is not, nor is anything that is no socket.

Permissions are those that the umask leaves: with 022 only the owner may connect, with 007 the group may, too.
"""

from __future__ import annotations

import errno
import os
import socket
import stat
import sys
from contextlib import suppress
from pathlib import Path

from bireme.types import Unavailable

_MAX_PATH_SIZE = 107 if sys.platform == "linux" else 103
"""Bytes of a path; ``sun_path`` has one more for the zero at its end. Source: unix(7)."""


class UnixSocket:
    """Bound to ``path`` from the start; whoever takes `socket` listens on it and closes it."""

    __slots__ = ("_identity", "path", "socket")

    def __init__(self, path: str) -> None:
        """Bind.

        Raises:
            Unavailable: the path is too long, taken, or cannot be written.
        """
        self.path = path
        _check_length(path)
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._bind()
        except BaseException:
            self.socket.close()
            raise
        self._identity = _identify(path)

    def _bind(self) -> None:
        try:
            try:
                self.socket.bind(self.path)
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise
                _remove_stale(self.path)
                self.socket.bind(self.path)
        except OSError as error:
            raise Unavailable(f"cannot listen on 'unix:{self.path}': {error.strerror or error}") from error

    def unlink(self) -> None:
        """Remove the file, unless another one has taken its place. Call this before the socket is closed.

        Until then nobody can take the file for a stale one, and its inode number goes to no other.
        """
        with suppress(OSError):
            if _identify(self.path) == self._identity:
                Path(self.path).unlink()


def _check_length(path: str) -> None:
    size = len(os.fsencode(path))
    if size > _MAX_PATH_SIZE:
        raise Unavailable(
            f"cannot listen on 'unix:{path}': the path has {size} bytes, and a UNIX domain socket's may have "
            f"{_MAX_PATH_SIZE}"
        )


def _identify(path: str) -> tuple[int, int]:
    found = os.lstat(path)
    return found.st_dev, found.st_ino


def _remove_stale(path: str) -> None:
    """Remove the socket file that nobody listens on.

    Raises:
        OSError: somebody does, or it is no socket.
    """
    if not stat.S_ISSOCK(os.lstat(path).st_mode):
        raise OSError(errno.EADDRINUSE, "a file that is no socket is in the way")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)  # a full backlog would make it wait
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            Path(path).unlink()
            return
        except BlockingIOError:
            pass
    raise OSError(errno.EADDRINUSE, "already in use, another process listens there")
