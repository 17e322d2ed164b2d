"""Cross-origin requests: what a browser must be told before a page of another origin may use this server.

Off unless origins are configured; then no answer carries a single byte of it. The headers depend on the request head
alone, so they are worked out once per distinct head.

Source: WHATWG Fetch, "HTTP CORS protocol". Triton has none.
"""

from __future__ import annotations

from bireme.frontend.http.head import RequestHead

_EXPOSED = b"Access-Control-Expose-Headers: Inference-Header-Content-Length, Retry-After\r\n"
_METHODS = b"Access-Control-Allow-Methods: GET, POST, OPTIONS\r\n"
_MAX_AGE = b"Access-Control-Max-Age: 7200\r\n"  # what Chromium keeps at most
_DEFAULT_HEADERS = b"Content-Type, Content-Encoding, Inference-Header-Content-Length"


class CorsPolicy:
    """Which origins may call."""

    __slots__ = ("_any", "_origins")

    def __init__(self, origins: tuple[str, ...]) -> None:
        self._any = "*" in origins
        self._origins = frozenset(origin.encode() for origin in origins)

    def headers_for(self, head: RequestHead) -> bytes:
        """Return the header lines that every answer to ``head`` carries."""
        if not self._origins:
            return b""
        if self._any:
            return b"Access-Control-Allow-Origin: *\r\n" + _EXPOSED
        origin = head.fields.get(b"origin")
        if origin not in self._origins:
            return b"Vary: Origin\r\n"
        return b"Access-Control-Allow-Origin: %s\r\nVary: Origin\r\n%s" % (origin, _EXPOSED)

    def is_preflight(self, head: RequestHead) -> bool:
        """Whether a browser asks what it may send, before it sends it."""
        return (
            bool(self._origins)
            and head.method == b"OPTIONS"
            and b"origin" in head.fields
            and b"access-control-request-method" in head.fields
        )

    def preflight_headers(self, head: RequestHead) -> bytes:
        """Return the header lines of the answer to a preflight; empty for an origin that may not call."""
        if not self._any and head.fields[b"origin"] not in self._origins:
            return b""
        wanted = head.fields.get(b"access-control-request-headers") or _DEFAULT_HEADERS
        return b"%sAccess-Control-Allow-Headers: %s\r\n%s" % (_METHODS, wanted, _MAX_AGE)
