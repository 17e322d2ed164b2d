"""Newcomers: keeping further clients out of a port that is about to close.

Who has connected, but was not accepted yet, is reset when the port closes, with the request that is on its way. So the last
ones are accepted first; and for that to come to an end, nobody may connect meanwhile.
"""

from __future__ import annotations

import ctypes
import os
import socket
import struct
import sys
from contextlib import suppress
from typing import Final

_SO_ATTACH_FILTER: Final = 26
_DROP_SYN: Final = struct.pack(
    "HBBI" * 4, *(0x30, 0, 0, 13, 0x45, 0, 1, 0x02, 0x06, 0, 0, 0, 0x06, 0, 0, 0xFFFFFFFF)
)
"""Classic BPF over a TCP header: flags = [13]; SYN among them: drop; else pass. Source: Linux ``filter.h``."""


def keep_out(listening: int) -> None:
    """Let the system drop what would begin a connection to the TCP port with this file number, where it can (Linux).

    The client tries again after a second, and then finds the port closed: refused, before it has sent anything.
    """
    if not sys.platform.startswith("linux"):
        return
    program = ctypes.create_string_buffer(_DROP_SYN)
    with suppress(OSError), socket.socket(fileno=os.dup(listening)) as port:
        if port.family != socket.AF_UNIX:
            port.setsockopt(
                socket.SOL_SOCKET,
                _SO_ATTACH_FILTER,
                struct.pack("HP", len(_DROP_SYN) // 8, ctypes.addressof(program)),
            )
