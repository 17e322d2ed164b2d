"""ReplyStream: the form of an answer that is sent in parts, the number of which nobody knows when it begins.

To HTTP/1.1 clients it goes in chunks, to older ones up to the end of the connection. The head goes out together with the
first part, so that a whole answer in one part is one write.

Source: RFC 9112 sections 6.3 and 7.1.
"""

from __future__ import annotations

from collections.abc import Sequence

from bireme.types import Buffer

_LAST_CHUNK = b"0\r\n\r\n"


class ReplyStream:
    """Turns the parts of one answer into what is written."""

    __slots__ = ("_head", "is_chunked", "size")

    def __init__(self, head: bytes, *, is_chunked: bool) -> None:
        self._head = head
        self.is_chunked = is_chunked
        """If not, only the end of the connection tells the client that the answer is complete."""
        self.size = 0
        """Bytes to write until now, the head included."""

    def frame(self, pieces: Sequence[Buffer], size: int, *, is_last: bool) -> tuple[list[Buffer], int]:
        """Return the buffers to write for a part of ``size`` bytes, and their size. ``is_last`` ends the answer, once."""
        parts: list[Buffer] = list(pieces)
        if self.is_chunked:
            if size:
                opening, closing = b"%x\r\n" % size, b"\r\n" + _LAST_CHUNK if is_last else b"\r\n"
                parts = [opening, *parts, closing]
                size += len(opening) + len(closing)
            elif is_last:
                parts, size = [_LAST_CHUNK], len(_LAST_CHUNK)
        head, self._head = self._head, b""
        if head:
            parts.insert(0, head)
            size += len(head)
        self.size += size
        return parts, size
