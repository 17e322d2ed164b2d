"""HeaderDecoder: header blocks → requests, by the hpack library and a cache.

Decoding the dozen fields of a gRPC request costs 30 µs by the library, and 10 by `plain_fields` which comes before it:
more than all else there is to do for a small request. But a client repeats itself: grpcio sends nothing but references
to the dynamic table once that is filled; clients on nghttp2 spell out their path each time without adding it to the
table. Either way the same bytes mean the same fields for as long as the table stays as it is. So blocks are looked up
by their bytes, and forgotten whenever the table changes.
"""

from __future__ import annotations

from typing import Final

from hpack import Decoder, HPACKError
from hpack.exceptions import OversizedHeaderListError
from hpack.table import HeaderTable

from bireme.wire.http2.errors import ErrorCode, MalformedRequest, ProtocolViolation
from bireme.wire.http2.headers import Field, RequestHead, read_request
from bireme.wire.http2.limits import HARD_LIST_FACTOR
from bireme.wire.http2.plain_fields import read_plain_fields

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

    __slots__ = (
        "_decoder",
        "_hard_list_size",
        "_heads",
        "_is_repeatable",
        "_max_list_size",
        "_table",
        "find",
    )

    def __init__(self, max_list_size: int) -> None:
        self._max_list_size = max_list_size
        self._hard_list_size = HARD_LIST_FACTOR * max_list_size
        self._decoder = Decoder(self._hard_list_size)
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
        fields: list[Field] = []
        position, size = read_plain_fields(block, table, fields, self._hard_list_size)
        if position < len(block):
            rest = self._decode_rest(block, position)
            size += sum(len(name) + len(value) + 32 for name, value in rest)
            fields += rest
        self._is_repeatable = not table.is_changed
        if table.is_changed:
            table.is_changed = False
            self._heads.clear()
        self._check_size(size)
        return fields

    def _check_size(self, size: int) -> None:
        if size > self._hard_list_size:
            raise ProtocolViolation(ErrorCode.ENHANCE_YOUR_CALM, f"a header list of {size} bytes")
        if size > self._max_list_size:
            raise MalformedRequest(
                f"a header list of {size} bytes; {self._max_list_size} are accepted",
                ErrorCode.ENHANCE_YOUR_CALM,
            )

    def _decode_rest(self, block: bytes, position: int) -> list[Field]:
        """Let the library decode a block from a field on that only it can read."""
        if block[position] & 0xE0 == _SIZE_UPDATE:
            if position:
                raise ProtocolViolation(ErrorCode.COMPRESSION_ERROR, "a table's size amid header fields")
            self._table.is_changed = True
        try:
            return list(self._decoder.decode(block[position:], raw=True))
        except OversizedHeaderListError as error:
            raise ProtocolViolation(
                ErrorCode.ENHANCE_YOUR_CALM, f"a header list of more than {self._hard_list_size} bytes"
            ) from error
        except (HPACKError, IndexError) as error:
            raise ProtocolViolation(
                ErrorCode.COMPRESSION_ERROR, f"broken header block: {type(error).__name__}"
            ) from error

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
