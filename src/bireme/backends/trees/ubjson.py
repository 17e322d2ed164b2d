"""Checks that a UBJSON file is whole. Pure.

XGBoost's own parser reads beyond the end of a file that is cut short, and then often ends the process. This one skips
over the content, of which the long parts are arrays with a size: 1000 trees take 50 ms.

Source: UBJSON specification, draft 12 ("Value Types", "Container Types", "Optimized Format").
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Final

_SIZES: Final = MappingProxyType(
    {
        b"Z": 0,
        b"N": 0,
        b"T": 0,
        b"F": 0,
        b"C": 1,
        b"i": 1,
        b"U": 1,
        b"I": 2,
        b"l": 4,
        b"L": 8,
        b"d": 4,
        b"D": 8,
    }
)
"""Bytes of the values that have a fixed size, by their marker."""
_INTEGERS: Final = frozenset(b"iUIlL")
_MAX_DEPTH: Final = 64


def find_damage(content: bytes) -> str:
    """Return what is wrong with a UBJSON object, and where; empty: nothing."""
    walk = _Walk(content)
    try:
        if walk.take(1) != b"{":
            return "it does not begin with an object"
        walk.skip_object(0)
    except _DamageError as damage:
        return str(damage)
    return ""


class _DamageError(Exception):
    """The content does not follow the format."""


class _Walk:
    def __init__(self, content: bytes) -> None:
        self._content = content
        self._at = 0

    def take(self, size: int) -> bytes:
        start, end = self._at, self._at + size
        if end > len(self._content):
            raise _DamageError(f"it ends after {len(self._content)} bytes, in the midst of a value")
        self._at = end
        return self._content[start:end]

    def skip(self, size: int) -> None:
        if self._at + size > len(self._content):
            raise _DamageError(f"it ends after {len(self._content)} bytes, in the midst of a value")
        self._at += size

    def skip_object(self, depth: int) -> None:
        kind, count = self._header()
        while count is None or count > 0:
            if count is None and self._is_next(b"}"):
                return
            self.skip(self._length())  # the key
            self._skip_value(kind or self.take(1), depth + 1)
            count = None if count is None else count - 1

    def _skip_array(self, depth: int) -> None:
        kind, count = self._header()
        if count is not None and kind in _SIZES:
            self.skip(_SIZES[kind] * count)
            return
        while count is None or count > 0:
            if count is None and self._is_next(b"]"):
                return
            self._skip_value(kind or self.take(1), depth + 1)
            count = None if count is None else count - 1

    def _skip_value(self, kind: bytes, depth: int) -> None:
        size = _SIZES.get(kind)
        if size is not None:
            self.skip(size)
        elif kind in {b"S", b"H"}:
            self.skip(self._length())
        elif depth > _MAX_DEPTH:
            raise _DamageError(f"its values are nested more than {_MAX_DEPTH} deep")
        elif kind == b"{":
            self.skip_object(depth)
        elif kind == b"[":
            self._skip_array(depth)
        else:
            raise _DamageError(f"byte {self._at - 1} is {kind!r}, which begins no value")

    def _header(self) -> tuple[bytes, int | None]:
        """Return the type and the number of a container's elements, where they are told once for all."""
        kind = self.take(1) if self._is_next(b"$") else b""
        count = self._length() if self._is_next(b"#") else None
        if kind and count is None:
            raise _DamageError(f"byte {self._at} should give the size of a container")
        return kind, count

    def _length(self) -> int:
        kind = self.take(1)
        if kind[0] not in _INTEGERS:
            raise _DamageError(f"byte {self._at - 1} is {kind!r}, where a length should begin")
        length = int.from_bytes(self.take(_SIZES[kind]), "big", signed=kind != b"U")
        if length < 0:
            raise _DamageError(f"a length before byte {self._at} is negative")
        return length

    def _is_next(self, marker: bytes) -> bool:
        """Whether ``marker`` is next, which then is passed."""
        if self._content[self._at : self._at + 1] != marker:
            return False
        self._at += 1
        return True
