"""Keepalive: whether the peer is still there, whether it asks too often, and when a connection has grown too old. Pure.

Source: gRPC core ``chttp2_transport.cc`` (keepalive), ``ping_abuse_policy.cc``, ``ping_rate_policy.cc``,
``max_age_filter.cc``; gRPC proposals A8, A9.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from bireme.frontend.grpc.options import GrpcOptions

_IDLE_PING_INTERVAL_MS: Final = 2 * 60 * 60 * 1000
"""What a client must leave between two pings while it has no call open and none are permitted then."""


class Due(Enum):
    """What a look at the clock calls for."""

    NOTHING = 0
    PING = 1
    LOST = 2
    """The peer did not answer the ping."""


class Keepalive:
    """The clocks of one connection, in milliseconds. `look` is called about once a second."""

    __slots__ = (
        "_last_ping_ms",
        "_num_strikes",
        "_options",
        "_pinged_ms",
        "_pings_without_data",
        "_seen_received",
        "_silent_since_ms",
    )

    def __init__(self, options: GrpcOptions, now_ms: int) -> None:
        self._options = options
        self._silent_since_ms = now_ms
        self._seen_received = -1
        self._pinged_ms = -1
        """When the ping that waits for its answer was sent; -1: none does."""
        self._pings_without_data = 0
        self._num_strikes = 0
        self._last_ping_ms = -1

    def look(self, now_ms: int, num_received: int, *, has_calls: bool) -> Due:
        """Return what is due. ``num_received`` is any count that grows when the peer says something."""
        options = self._options
        if num_received != self._seen_received:
            self._seen_received = num_received
            self._silent_since_ms = now_ms
            self._pinged_ms = -1
            return Due.NOTHING
        if self._pinged_ms >= 0:
            is_lost = 0 < options.keepalive_timeout_ms <= now_ms - self._pinged_ms
            return Due.LOST if is_lost else Due.NOTHING
        if not options.keepalive_time_ms or now_ms - self._silent_since_ms < options.keepalive_time_ms:
            return Due.NOTHING
        if not has_calls and not options.keepalive_permit_without_calls:
            return Due.NOTHING
        most = options.http2_max_pings_without_data
        if most and self._pings_without_data >= most:
            return Due.NOTHING
        self._pings_without_data += 1
        self._pinged_ms = now_ms
        return Due.PING

    def data_sent(self) -> None:
        """Note that a header or data frame went out: the peer may ping anew, and so may we."""
        self._pings_without_data = 0
        self._num_strikes = 0
        self._last_ping_ms = -1

    def is_ping_welcome(self, now_ms: int, *, has_calls: bool) -> bool:
        """Take note of a ping; return False when the peer has pinged too often to be borne with any longer."""
        options = self._options
        interval_ms = options.http2_min_recv_ping_interval_without_data_ms
        if not has_calls and not options.keepalive_permit_without_calls:
            interval_ms = _IDLE_PING_INTERVAL_MS
        last_ms, self._last_ping_ms = self._last_ping_ms, now_ms
        if last_ms < 0 or now_ms - last_ms >= interval_ms:
            return True
        self._num_strikes += 1
        return not options.http2_max_ping_strikes or self._num_strikes <= options.http2_max_ping_strikes
