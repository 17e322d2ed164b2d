"""Request heads: bytes → `RequestHead`, by llhttp, with a cache for heads seen before.

A head is parsed on its own, without its body, so its meaning depends on its bytes alone. A keep-alive client sends
the same bytes again and again (the official clients and perf_analyzer do for every request of one size), so parsed
heads are kept by their bytes, and with them everything derived from a head: its route, the model it names, the
negotiated encodings. A hit costs 0.2 µs; llhttp and the derivation together about 8 µs.

Source: RFC 9112 sections 2 to 6, in the strictness of llhttp's defaults (no bare LF, no folded lines, no conflicting
lengths).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from httptools import HttpParserError, HttpParserUpgrade, HttpRequestParser, parse_url

if TYPE_CHECKING:
    from bireme.frontend.http.exchange import Route

HEAD_END: Final = b"\r\n\r\n"

_MAX_CACHED_SIZE = 2 << 10
_MAX_CACHED_HEADS = 512


class RefusedRequest(Exception):
    """A request that breaks HTTP or a limit: answered with ``status``, and its connection ends.

    What follows it on the connection cannot be trusted to be a request.
    """

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


class RequestHead:
    """One parsed request line with its headers. Shared between requests: nobody changes it once it is routed."""

    __slots__ = (
        "content_length",
        "expects_continue",
        "fields",
        "headers",
        "is_chunked",
        "keep_alive",
        "method",
        "path",
        "reply_end",
        "route",
        "takes_chunks",
    )

    def __init__(
        self, method: bytes, target: bytes, version: str, headers: list[tuple[bytes, bytes]]
    ) -> None:
        self.method = method
        self.path = _path_of(target)
        """The path as received, without the query string; not percent-decoded."""
        self.headers = headers
        """Names as received, in order."""
        self.fields = _by_lower_name(headers)
        """Values by lower-case name; repeated headers are joined by a comma."""
        self.keep_alive = True
        self.is_chunked = b"transfer-encoding" in self.fields
        # llhttp has checked that there is at most one, all digits.
        self.content_length = int(self.fields.get(b"content-length", b"0"))
        self.takes_chunks = version == "1.1"
        """Whether the answer may be sent in chunks."""
        self.expects_continue = version == "1.1" and b"expect" in self.fields
        self.reply_end = b"\r\n"
        """The last headers of every answer to this head, and the empty line."""
        self.route: Route

    def text(self, lower_name: bytes) -> str | None:
        """Return a header's value as text, or None; bytes outside ASCII are kept as Latin-1."""
        value = self.fields.get(lower_name)
        return None if value is None else value.decode("latin-1")

    def __repr__(self) -> str:
        return f"RequestHead({self.method.decode()} {self.path.decode('latin-1')})"


class HeadParser:
    """Parses one head; it may be fed in pieces that end nowhere in particular, and fails at the first bad byte."""

    def __init__(self, max_url_size: int = 8 << 10) -> None:
        self._parser: HttpRequestParser | None = HttpRequestParser(self)
        self._head: RequestHead | None = None
        self._headers: list[tuple[bytes, bytes]] = []
        self._max_url_size = max_url_size
        self._url = b""

    def feed(self, data: bytes | memoryview) -> None:
        """Parse further bytes, none of them beyond the empty line that ends the head.

        Raises:
            RefusedRequest: this is not HTTP/1.x, or not as we take it, or the URL is too long.
        """
        assert self._parser is not None
        try:
            self._parser.feed_data(data)
        except HttpParserUpgrade:
            pass  # an offer that a server may pass over (RFC 9110 section 7.8): the request is answered as it is
        except HttpParserError as error:
            cause = error.__context__
            if isinstance(cause, RefusedRequest):
                raise cause from None
            raise RefusedRequest(400, f"malformed HTTP request: {error}") from None

    def finish(self) -> RequestHead:
        """Return the head, after its last byte was fed.

        Raises:
            RefusedRequest: the empty line is not where llhttp sees the end, or the framing is one we do not take.
        """
        self._parser = None  # breaks the cycle of parser and callbacks: no work for the garbage collector
        if self._head is None:
            raise RefusedRequest(400, "malformed HTTP request: no request line before the empty line")
        return self._head

    # Called by llhttp.

    def on_url(self, url: bytes) -> None:
        """Take a piece of the request target."""
        self._url += url
        if len(self._url) > self._max_url_size:
            raise RefusedRequest(414, f"URL of more than {self._max_url_size} bytes")

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header."""
        self._headers.append((name, value.strip(b" \t")))

    def on_headers_complete(self) -> None:
        """Make the head."""
        parser = self._parser
        assert parser is not None
        version = parser.get_http_version()
        if version not in ("1.1", "1.0"):
            raise RefusedRequest(505, f"HTTP version {version} is not supported, expecting 1.1 or 1.0")
        head = RequestHead(parser.get_method(), self._url, version, self._headers)
        # Only here: llhttp forgets the connection options with the end of the message.
        head.keep_alive = parser.should_keep_alive()
        if head.is_chunked:
            _check_transfer_coding(head, version)
        if head.expects_continue and head.fields[b"expect"].lower() != b"100-continue":
            raise RefusedRequest(
                417, f"unknown expectation '{head.text(b'expect')}', expecting '100-continue'"
            )
        if not head.keep_alive:
            head.reply_end = b"Connection: close\r\n\r\n"
        elif version == "1.0":
            head.reply_end = b"Connection: keep-alive\r\n\r\n"
        self._head = head


class HeadCache:
    """Parsed and routed heads by their bytes. Bounded: it starts over when it is full."""

    __slots__ = ("_heads", "get")

    def __init__(self) -> None:
        self._heads: dict[bytes, RequestHead] = {}
        self.get = self._heads.get
        """``get(bytes of a head) -> RequestHead | None``: the dictionary's own method, for the hot path."""

    def put(self, data: bytes, head: RequestHead) -> None:
        """Keep ``head``, which was parsed from ``data``, unless it is unusually long."""
        if len(data) > _MAX_CACHED_SIZE:
            return
        if len(self._heads) >= _MAX_CACHED_HEADS:
            self._heads.clear()
        self._heads[data] = head

    def __len__(self) -> int:
        return len(self._heads)


def parse_head(data: bytes, max_url_size: int = 8 << 10) -> RequestHead:
    """Parse a whole head, the empty line included.

    Raises:
        RefusedRequest: as `HeadParser`.
    """
    parser = HeadParser(max_url_size)
    parser.feed(data)
    return parser.finish()


def _check_transfer_coding(head: RequestHead, version: str) -> None:
    if version == "1.0":
        raise RefusedRequest(
            400, "malformed HTTP request: Transfer-Encoding in HTTP/1.0 (RFC 9112 section 6.1)"
        )
    if head.fields[b"transfer-encoding"].lower() != b"chunked":
        found = head.text(b"transfer-encoding")
        raise RefusedRequest(501, f"Transfer-Encoding '{found}' is not supported, expecting 'chunked'")


def _path_of(target: bytes) -> bytes:
    if not target.startswith((b"/", b"*")):  # absolute form, or CONNECT's host and port
        try:
            target = parse_url(target).path or b"/"
        except HttpParserError:
            return target
    return target.partition(b"?")[0]


def _by_lower_name(headers: list[tuple[bytes, bytes]]) -> dict[bytes, bytes]:
    fields: dict[bytes, bytes] = {}
    for name, value in headers:
        key = name.lower()
        fields[key] = value if key not in fields else fields[key] + b", " + value
    return fields
