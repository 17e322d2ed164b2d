"""HeaderDecoder: header blocks → requests, by the hpack library and a cache.

Decoding the dozen fields of a gRPC request costs tens of µs in pure Python, several times the rest of its framing. But a client
repeats itself: grpcio sends nothing but references to the dynamic table once that is filled; clients on nghttp2 spell
out their path each time without adding it to the table. Either way the same bytes mean the same fields for
as long as the table stays as it is. So blocks are looked up by their bytes, and forgotten whenever the table changes.
"""

from __future__ import annotations

from typing import Final

from hpack import Decoder, HPACKError
from hpack.exceptions import OversizedHeaderListError
from hpack.table import HeaderTable

from bireme.wire.http2.errors import ErrorCode, MalformedRequest, ProtocolViolation
from bireme.wire.http2.headers import Field, RequestHead, read_request

_MAX_ENTRIES: Final = 128
_MAX_BLOCK_SIZE: Final = 1024
_MAX_FIELDS: Final = 64
"""Blocks of more are not kept: with the two above, a connection's cache takes less than a megabyte whatever it sends."""

_SIZE_UPDATE: Final = 0x20
"""The top three bits of a first byte that resizes the table (RFC 7541 section 6.3)."""


class _WatchedTable(HeaderTable):
    """A dynamic table that knows whether it was changed."""

    def __init__(self) -> None:
        super().__init__()
        self.is_changed = False

    def add(self, name: bytes, value: bytes) -> None:
        """Add an entry, which moves all others."""
        self.is_changed = True
        super().add(name, value)


class HeaderDecoder:
    """The receiving side's HPACK state of one connection."""

    __slots__ = ("_decoder", "_heads", "_is_repeatable", "_max_list_size", "_table", "find")

    def __init__(self, max_list_size: int) -> None:
        self._max_list_size = max_list_size
        self._decoder = Decoder(2 * max_list_size)
        self._decoder.header_table = self._table = _WatchedTable()
        self._is_repeatable = False
        """Whether the block decoded last left the table as it was, and so means the same if it comes again."""
        self._heads: dict[bytes, RequestHead] = {}
        self.find = self._heads.get
        """Return the request that a block is known to describe, or None. It need not be decoded then."""

    def decode(self, block: bytes) -> list[Field]:
        """Return a block's fields. Must be called for each block that `find` does not find, in their order.

        Raises:
            MalformedRequest: the list is longer than announced; the connection can go on.
            ProtocolViolation: the block is broken, or its list much too long.
        """
        table = self._table
        try:
            fields: list[Field] = list(self._decoder.decode(block, raw=True))
        except OversizedHeaderListError as error:
            raise ProtocolViolation(
                ErrorCode.ENHANCE_YOUR_CALM, f"a header list of more than {2 * self._max_list_size} bytes"
            ) from error
        except (HPACKError, IndexError) as error:
            raise ProtocolViolation(ErrorCode.COMPRESSION_ERROR, f"broken header block: {error}") from error
        self._is_repeatable = not table.is_changed and (block[0] if block else 0) & 0xE0 != _SIZE_UPDATE
        if not self._is_repeatable:
            table.is_changed = False
            self._heads.clear()
        self._check_size(fields)
        return fields

    def decode_request(self, block: bytes) -> RequestHead:
        """Return the request that a block describes, and remember it if it may come again.

        Raises:
            MalformedRequest: it describes none.
            ProtocolViolation: as `decode`.
        """
        fields = self.decode(block)
        head = read_request(fields)
        if self._is_repeatable and len(block) <= _MAX_BLOCK_SIZE and len(fields) <= _MAX_FIELDS:
            if len(self._heads) >= _MAX_ENTRIES:
                self._heads.clear()
            self._heads[block] = head
        return head

    def _check_size(self, fields: list[Field]) -> None:
        size = sum(len(name) + len(value) + 32 for name, value in fields)
        if size > self._max_list_size:
            raise MalformedRequest(
                f"a header list of {size} bytes; {self._max_list_size} are accepted",
                ErrorCode.ENHANCE_YOUR_CALM,
            )
