"""What can be set on the gRPC front end.

Source: Triton ``--grpc-*``, whose defaults of the keep-alive settings are those of gRPC core; the others are our own.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from bireme.frontend.options import ListenOptions, Restriction
from bireme.types import InvalidArgument
from bireme.wire.http2.limits import Http2Limits

COMPRESSION_LEVELS = ("none", "low", "medium", "high")


@dataclass(frozen=True, slots=True)
class GrpcOptions(ListenOptions):
    """Settings of the gRPC front end. A time of 0 is none, unless it says otherwise."""

    port: int = 8001
    """0: any free port."""
    header_forward_pattern: str = ""
    """Unanchored regular expression, case-insensitive; matching metadata become request parameters."""
    restricted_protocols: tuple[Restriction | tuple[tuple[str, ...], str, str], ...] = ()
    """Categories that answer only calls whose metadata hold ``triton-grpc-protocol-<header>`` with exactly ``value``;
    the header is given here without that prefix."""
    response_compression_level: str = "none"
    """``none``, ``low``, ``medium`` or ``high``; of inference responses, to clients that accept an encoding."""
    access_log: str = ""
    """File to which a line per call is appended; ``-``: standard output; empty: none."""
    access_log_json: bool = False

    # Keep-alive. Millisecond settings are Triton's.
    keepalive_time_ms: int = 7_200_000
    """A connection that has been silent for so long is pinged."""
    keepalive_timeout_ms: int = 20_000
    """A ping that is not answered within this time ends the connection."""
    keepalive_permit_without_calls: bool = False
    """Whether pings go out, and a client's are welcome, while no call is open."""
    http2_max_pings_without_data: int = 2
    """Pings sent in a row without a data or header frame in between; 0: any number."""
    http2_min_recv_ping_interval_without_data_ms: int = 300_000
    """A client that pings sooner than this, without data in between, gets a strike."""
    http2_max_ping_strikes: int = 2
    """More strikes than this end the connection by GOAWAY ``too_many_pings``; 0: any number is tolerated."""
    max_connection_age_ms: int = 0
    """After this age, give or take 10 %, a connection is asked to end (GOAWAY)."""
    max_connection_age_grace_ms: int = 0
    """So long after that it is cut; 0: its calls may take what they need."""

    # Bounds
    max_message_size: int = (1 << 31) - 1
    """Bytes of a message, compressed or not. Triton: ``INT32_MAX``."""
    max_receive_bytes: int = 0
    """Bytes that the received messages of all connections may hold together; 0: half of the machine's memory."""
    max_unsent_bytes: int = 64 << 20
    """Bytes of finished and of expected responses that a connection's client has not taken, from which on no further request
    of that connection begins. See `GrpcApi.expected_size` for what is expected."""
    max_held_requests: int = 128
    """Requests of one `ModelStreamInfer` call in the engine or waiting for their response's turn, from which on further
    ones wait."""
    stall_timeout_s: float = 60.0
    """Time without one byte of progress while a message is received or a response is sent."""
    idle_timeout_s: float = 3600.0
    """Time without a call after which a client is asked to end its connection (GOAWAY); it connects anew for its next
    call. gRPC core's default is for ever, and so a client that has vanished would hold its descriptor for ever."""
    sweep_interval_s: float = 1.0
    """All timeouts but a call's deadline are counted in sweeps of this length, by one timer for all connections."""
    http2: Http2Limits = field(default_factory=Http2Limits)

    def check(self) -> None:
        """Raise `InvalidArgument` for a value that means nothing; names the setting, what came and what is expected."""
        if self.response_compression_level not in COMPRESSION_LEVELS:
            raise InvalidArgument(
                f"response_compression_level: expected one of {', '.join(COMPRESSION_LEVELS)}, got "
                f"{self.response_compression_level!r}"
            )
