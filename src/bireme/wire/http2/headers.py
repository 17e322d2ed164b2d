"""Header fields: what makes a list of them a request (RFC 9113 sections 8.2 and 8.3), and blocks for answers."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Final

from hpack.table import HeaderTable

from bireme.wire.http2.errors import MalformedRequest

Field = tuple[bytes, bytes]

_is_name = re.compile(rb"[!#$%&'*+\-.^_`|~0-9a-z]+").fullmatch
_is_pseudo_value = re.compile(rb"(?![ \t])[^\0\r\n]*(?<![ \t])").fullmatch
_is_value = re.compile(rb"[^\0\r\n]*").fullmatch
"""Blanks around a value are let through, against RFC 9113 section 8.2.1: gRPC allows them in metadata, and its clients
send them. Source: gRPC over HTTP/2 ("ASCII-Value")."""
_is_number = re.compile(rb"[0-9]{1,18}").fullmatch
_PSEUDO_NAMES: Final = (b":method", b":scheme", b":path", b":authority")
_CONNECTION_FIELDS: Final = frozenset(
    (
        b"connection",
        b"keep-alive",
        b"proxy-connection",
        b"transfer-encoding",
        b"upgrade",
    )
)
_MEANINGFUL_NAMES: Final = frozenset((b"content-length", b"host", b"te"))
_MAX_NAMES: Final = 512
_MAX_NAME_SIZE: Final = 128

_sound_names: set[bytes] = set()
"""Names that were checked before, by any connection."""


class RequestHead:
    """What a request's header block says.

    Shared between the requests of one connection that sent the same block: never changed once it is routed.
    """

    __slots__ = ("authority", "content_length", "headers", "method", "path", "route", "scheme")

    def __init__(self, pseudo: dict[bytes, bytes], headers: list[Field]) -> None:
        self.method = pseudo[b":method"]
        self.path = pseudo.get(b":path", b"")
        self.scheme = pseudo.get(b":scheme", b"")
        self.authority = pseudo.get(b":authority", b"")
        self.headers = headers
        """Regular fields in their order, with lower-case names."""
        self.content_length = -1
        """-1: none was given."""
        self.route: Any = None
        """The front end keeps here what it derived from the head."""

    def __repr__(self) -> str:
        return f"RequestHead({self.method!r} {self.path!r})"


def read_request(fields: list[Field]) -> RequestHead:
    """Return the request that a decoded header block describes.

    Raises:
        MalformedRequest: it describes none.
    """
    pseudo: dict[bytes, bytes] = {}
    for name, value in fields:
        if not name.startswith(b":"):
            break
        if name not in _PSEUDO_NAMES:
            raise MalformedRequest(f"pseudo-header {name!r}")
        if name in pseudo:
            raise MalformedRequest(f"two pseudo-headers {name!r}")
        if _is_pseudo_value(value) is None:
            raise MalformedRequest(f"pseudo-header {name!r} with the value {value!r}")
        pseudo[name] = value
    headers = fields[len(pseudo) :]
    _check_target(pseudo)
    head = RequestHead(pseudo, headers)
    _check_fields(headers, head)
    return head


def check_trailers(fields: list[Field]) -> None:
    """Check what came behind a request's body.

    Raises:
        MalformedRequest: those are no trailers.
    """
    _check_fields(fields, None)


def _check_target(pseudo: dict[bytes, bytes]) -> None:
    """Check that the pseudo-headers name a target. Source: RFC 9113 sections 8.3.1 and 8.5."""
    method = pseudo.get(b":method")
    if not method:
        raise MalformedRequest("no method")
    path = pseudo.get(b":path")
    authority = pseudo.get(b":authority")
    if method == b"CONNECT":
        if path is not None or b":scheme" in pseudo or not authority:
            raise MalformedRequest("CONNECT takes an authority and nothing else")
        return
    if not pseudo.get(b":scheme"):
        raise MalformedRequest("no scheme")
    if not path or not (path.startswith(b"/") or (path == b"*" and method == b"OPTIONS")):
        raise MalformedRequest(f"path {path!r}")
    if authority is not None and b"@" in authority:
        raise MalformedRequest("authority with user information")


def _check_fields(fields: list[Field], head: RequestHead | None) -> None:
    """Check regular fields; those of a head also tell it their meaning for the protocol."""
    for name, value in fields:
        if _is_value(value) is None:
            raise MalformedRequest(f"header {name!r} with the value {value!r}")
        if name not in _sound_names:
            _check_name(name, value)
            if head is not None and name == b"content-length":
                _take_content_length(head, value)
            elif head is not None and name == b"host":
                _take_host(head, value)


def _check_name(name: bytes, value: bytes) -> None:
    """Check the name of a field, and remember it if nothing depends on the field's value."""
    if _is_name(name) is None:
        raise MalformedRequest(f"header name {name!r}")
    if name in _CONNECTION_FIELDS or (name == b"te" and value != b"trailers"):
        raise MalformedRequest(f"header {name!r}, which HTTP/2 does not have")
    if name not in _MEANINGFUL_NAMES and len(name) <= _MAX_NAME_SIZE:
        if len(_sound_names) >= _MAX_NAMES:
            _sound_names.clear()
        _sound_names.add(name)


def _take_content_length(head: RequestHead, value: bytes) -> None:
    if _is_number(value) is None or head.content_length not in (-1, int(value)):
        raise MalformedRequest(f"content-length {value!r}")
    head.content_length = int(value)


def _take_host(head: RequestHead, value: bytes) -> None:
    if not head.authority:
        head.authority = value
    elif head.authority.lower() != value.lower():
        raise MalformedRequest(f"host {value!r} is not the authority {head.authority!r}")


def encode_block(pairs: Iterable[Field]) -> bytes:
    """Return an HPACK block that leaves the peer's table as it is, so that it may be kept and sent on any connection."""
    return b"".join(_encode_field(name, value) for name, value in pairs)


_search_static = HeaderTable().search


def _encode_field(name: bytes, value: bytes) -> bytes:
    """Encode by the static table where it helps. Source: RFC 7541 sections 6.1 and 6.2.2."""
    match = _search_static(name, value)
    if match is None:
        return b"\0" + _encode_text(name) + _encode_text(value)
    index, _, matched_value = match
    if matched_value is not None:
        return _encode_number(index, 0x80, 7)
    return _encode_number(index, 0, 4) + _encode_text(value)


def _encode_text(text: bytes) -> bytes:
    return _encode_number(len(text), 0, 7) + text


def _encode_number(number: int, first: int, num_bits: int) -> bytes:
    """Encode an integer behind the bits ``first``. Source: RFC 7541 section 5.1."""
    most = (1 << num_bits) - 1
    if number < most:
        return bytes((first | number,))
    number -= most
    encoded = bytearray((first | most,))
    while number >= 0x80:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)
