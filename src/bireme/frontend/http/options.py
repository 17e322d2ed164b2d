"""What can be set on the HTTP front end, and the limits that every connection keeps."""

from __future__ import annotations

from dataclasses import dataclass, field

from bireme.frontend.options import ListenOptions, Restriction


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """Bounds on what one connection may hold or wait for. A timeout of 0 is none.

    Beside each default stand the ones it was weighed against.
    """

    max_header_size: int = 64 << 10
    """Bytes of request line and headers together; more is 431. nginx 32 KB, Node.js 16 KB, Go 1 MB."""
    max_url_size: int = 8 << 10
    """Bytes of the request target; more is 414. nginx 8 KB, RFC 9110 asks for at least 8000."""
    max_pipelined: int = 32
    """Requests of one connection that may be in flight before reading stops (a client's leaving then goes unseen)."""
    max_chunks: int = 1 << 16
    """Non-empty chunks of one request; more is 400. Triton ``kMaxChunkedChunks``."""
    keepalive_timeout_s: float = 600.0
    """Idle time between two requests. Long, since the official clients do not retry on a closed connection and load
    balancers keep theirs for 60 to 350 s."""
    header_timeout_s: float = 30.0
    """Time from the first byte of a head to its last. nginx 60 s, Apache 20 s."""
    stall_timeout_s: float = 60.0
    """Time without one byte of progress while a body is received or a response is sent. nginx 60 s."""
    linger_timeout_s: float = 2.0
    """Time that a refused client has to stop sending, so that it sees the answer instead of a reset."""
    sweep_interval_s: float = 1.0
    """All timeouts are counted in sweeps of this length, by one timer for all connections."""


@dataclass(frozen=True, slots=True)
class HttpOptions(ListenOptions):
    """Settings of the inference front end. Source: Triton ``--http-*``; the CORS origins are our own."""

    header_forward_pattern: str = ""
    """Unanchored regular expression, case-insensitive; matching headers become request parameters."""
    max_input_size: int = 64 << 20
    """Bytes of a JSON part, of a raw request and of a decompressed body; binary tensors are not counted."""
    max_body_size: int = (1 << 31) - 1
    """Bytes of a whole body. Triton's content length is an ``int32``."""
    restricted_apis: tuple[Restriction | tuple[tuple[str, ...], str, str], ...] = ()
    cors_origins: tuple[str, ...] = ()
    """Origins whose pages may call this server from a browser; ``*`` for any; none: no CORS headers at all."""
    access_log: str = ""
    """File to which a line per request is appended; ``-``: standard output; empty: none."""
    access_log_json: bool = False
    offload_size: int = 256 << 10
    """Bytes of JSON from which on it is parsed in a process of its own, so that the loop never waits for it."""
    max_unsent_bytes: int = 64 << 20
    """Bytes of one answer in parts that its client has not taken, beyond which its request is cancelled and its connection
    ends. From a quarter of it on the model is made to wait, if it can be."""
    limits: ConnectionLimits = field(default_factory=ConnectionLimits)
