"""SharedLibrary: a library with weights in it that gives their memory back when it is closed.

Libraries of C++ are rarely unmapped by ``dlclose``: unique symbols and objects of threads, which are destroyed when their thread
ends, keep them where they are. What is large in them are weights, a read-only segment of the file, and nobody reads those
any more. So that part of the file is made a hole, which frees its pages in memory and on the disk.

Source: ``elf.h`` (Elf64_Ehdr, Elf64_Phdr); Linux ``fallocate(2)``.
"""

from __future__ import annotations

import ctypes
import os
import struct
import sys
from _ctypes import dlclose
from pathlib import Path
from typing import Any, Final

_WORTH_NBYTES: Final = 1 << 20
_LOAD: Final = 1
_READ_ONLY: Final = 4
_KEEP_SIZE: Final = 1
_PUNCH_HOLE: Final = 2


class SharedLibrary:
    """A library that is loaded. Its file may be removed, but must not be used by others."""

    def __init__(self, path: Path) -> None:
        """Load it.

        Raises:
            OSError: it cannot be loaded.
        """
        self.functions = ctypes.CDLL(str(path))
        """Its functions, as attributes."""
        self._file = os.open(path, os.O_RDWR | os.O_CLOEXEC)

    def close(self) -> None:
        """Unload it, or its weights. Nothing of it runs, and nothing refers to its memory."""
        dlclose(self.functions._handle)  # noqa: SLF001 - ctypes itself never unloads what it loads
        try:
            if sys.platform.startswith("linux"):
                for start, size in find_weights(os.pread(self._file, 1 << 16, 0)):
                    _punch(self._file, start, size)
        finally:
            os.close(self._file)


def find_weights(head: bytes) -> list[tuple[int, int]]:
    """Return offset and size of the large read-only parts of a library whose first bytes are ``head``. Pure.

    The part with the tables of symbols, which is at the beginning, is none of them: the linker goes on to read it.
    """
    if not head.startswith(b"\x7fELF\x02\x01"):  # 64 bits, little endian
        return []
    (table,) = struct.unpack_from("<Q", head, 32)
    entry_size, count = struct.unpack_from("<HH", head, 54)
    parts = []
    for position in range(table, min(table + count * entry_size, len(head) - 55), entry_size):
        kind, flags, offset, _, _, size = struct.unpack_from("<IIQQQQ", head, position)
        if kind == _LOAD and flags == _READ_ONLY and offset and size >= _WORTH_NBYTES:
            parts.append((offset, size))
    return parts


def _punch(file: int, start: int, size: int) -> None:
    """Make a part of a file a hole. File systems that cannot do that keep it as it is."""
    fallocate: Any = ctypes.CDLL(None).fallocate
    fallocate(file, _PUNCH_HOLE | _KEEP_SIZE, ctypes.c_long(start), ctypes.c_long(size))
