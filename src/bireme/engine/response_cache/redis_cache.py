"""RedisCache: responses in a Redis, for several servers, and for longer than any of them lives.

A Redis that is slow, full or gone costs hits, never a request: what does not come within the time-outs is a miss. After a
failure it is left alone for a while, so that requests do not wait for one time-out each. Which entries go when it is full is
its own affair (``maxmemory-policy``).

Settings are those of Triton's Redis cache, with time-outs by default, and ``prefix`` and ``ttl``.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from bireme.engine.response_cache.encoding import Unreadable, read, write
from bireme.engine.response_cache.interface import CachedResponse
from bireme.telemetry.cache_metrics import CacheStatistics
from bireme.types import InvalidArgument

try:
    import redis
    from redis.backoff import NoBackoff
    from redis.retry import Retry
except ImportError as error:
    raise InvalidArgument(
        f"cache 'redis' needs the package 'redis' ({error}); install it with: pip install redis"
    ) from error

log = logging.getLogger("bireme.engine")

_now_ns = time.monotonic_ns

_TIMEOUT_MS: Final = 500
_FIRST_PAUSE_S: Final = 1.0
_LONGEST_PAUSE_S: Final = 30.0
_MAX_NBYTES: Final = 512 << 20
"""Of a value. Source: Redis, ``proto-max-bulk-len``."""

_KNOWN: Final = (
    "host",
    "port",
    "user",
    "password",
    "db",
    "connect_timeout",
    "socket_timeout",
    "pool_size",
    "wait_timeout",
    "tls_enabled",
    "cert",
    "key",
    "cacert",
    "prefix",
    "ttl",
)


class RedisCache:
    """A cache in a Redis. Any thread; calls block up to the time-outs."""

    may_block = True
    is_shared = True

    def __init__(self, client: redis.Redis, *, place: str, prefix: str = "bireme:", ttl_s: int = 0) -> None:
        """``place`` says where it is, for people. ``ttl_s``: how long entries live; 0: until Redis needs the room."""
        self._client = client
        self._place = place
        self._prefix = prefix
        self._ttl_s = ttl_s or None
        self._lock = threading.Lock()
        self._away_until_ns = 0
        self._pause_s = 0.0
        """How long it is left alone after its last failure; 0: it works."""
        self._complaints: set[str] = set()
        self._num_hits = self._num_misses = self._num_insertions = self._num_rejected = self._num_errors = 0
        self._lookup_ns = self._insertion_ns = 0

    @classmethod
    def open(cls, settings: Mapping[str, str]) -> RedisCache:
        """Return the cache that ``settings`` describe; it connects when it is first asked.

        Raises:
            InvalidArgument: a setting is missing, unknown or cannot be read.
        """
        for name in settings:
            if name not in _KNOWN:
                raise InvalidArgument(
                    f"cache 'redis': unknown setting '{name}', expected one of {', '.join(_KNOWN)}"
                )
        for name in ("host", "port"):
            if not settings.get(name):
                raise InvalidArgument(
                    f"cache 'redis': '{name}' is missing, as in redis,host=localhost,port=6379"
                )
        host, port = settings["host"], _number(settings, "port", 6379)
        client = redis.Redis(
            host=host,
            port=port,
            db=_number(settings, "db", 0),
            username=settings.get("user") or os.environ.get("TRITONCACHE_REDIS_USERNAME"),
            password=settings.get("password") or os.environ.get("TRITONCACHE_REDIS_PASSWORD"),
            socket_connect_timeout=_seconds(settings, "connect_timeout"),
            socket_timeout=_seconds(settings, "socket_timeout"),
            # Once, for a connection that Redis has closed meanwhile. What is slow is not asked again.
            retry=Retry(NoBackoff(), 1, supported_errors=(redis.ConnectionError,)),
            **_tls(settings),
        )
        prefix = settings.get("prefix", "bireme:")
        return cls(client, place=f"{host}:{port}", prefix=prefix, ttl_s=_number(settings, "ttl", 0))

    @property
    def is_away(self) -> bool:
        """Whether it is left alone, after a failure."""
        return _now_ns() < self._away_until_ns

    def get(self, key: bytes) -> CachedResponse | None:
        """Return what is there under ``key``; None also if that cannot be found out or read."""
        start_ns = _now_ns()
        found = None
        data = self._call(self._client.get, self._name(key))
        if isinstance(data, bytes):
            try:
                found = read(data)
            except Unreadable as error:
                self._fail("an entry is damaged", error)
        with self._lock:
            self._lookup_ns += _now_ns() - start_ns
            if found is None:
                self._num_misses += 1
            else:
                self._num_hits += 1
        return found

    def put(self, key: bytes, response: CachedResponse) -> None:
        """Write ``response``, if that is possible now."""
        if self.is_away:
            return
        start_ns = _now_ns()
        is_too_large = response.nbytes > _MAX_NBYTES
        is_kept = False
        if not is_too_large:
            is_kept = (
                self._call(self._client.set, self._name(key), write(response), ex=self._ttl_s) is not None
            )
        with self._lock:
            self._insertion_ns += _now_ns() - start_ns
            self._num_rejected += is_too_large
            self._num_insertions += is_kept

    def _name(self, key: bytes) -> str:
        return self._prefix + key.hex()

    def _call(self, command: Callable[..., object], *arguments: object, **options: object) -> object:
        """Return what Redis answers, or None: it is left alone, or it failed."""
        if self.is_away:
            return None
        try:
            answer = command(*arguments, **options)
        except (redis.ConnectionError, redis.TimeoutError, OSError) as error:
            self._leave_alone(error)
            return None
        # It is there, and refuses this one: out of memory, read-only, no permission.
        except Exception as error:  # noqa: BLE001 (logged)
            self._fail(f"{command.__name__} failed", error)
            return None
        if self._pause_s:
            self._come_back()
        return answer

    def _leave_alone(self, error: Exception) -> None:
        with self._lock:
            self._num_errors += 1
            if self.is_away:
                return  # another thread was faster
            is_new = self._pause_s == 0
            self._pause_s = min(self._pause_s * 2, _LONGEST_PAUSE_S) if self._pause_s else _FIRST_PAUSE_S
            self._away_until_ns = _now_ns() + int(self._pause_s * 1e9)
        if is_new:
            log.warning(
                "response cache: Redis at %s does not answer (%s): requests run their models until it is back",
                self._place,
                error,
            )

    def _come_back(self) -> None:
        with self._lock:
            was_away, self._pause_s = self._pause_s, 0.0
        if was_away:
            log.info("response cache: Redis at %s answers again", self._place)

    def _fail(self, what: str, error: Exception) -> None:
        """Count a failure that says nothing about the next call; one of each kind is logged."""
        kind = f"{what}: {type(error).__name__}"
        with self._lock:
            self._num_errors += 1
            is_new = kind not in self._complaints
            self._complaints.add(kind)
        if is_new:
            log.warning(
                "response cache: Redis at %s: %s: %s; said once, as it costs hits alone",
                self._place,
                what,
                error,
            )

    def statistics(self) -> CacheStatistics:
        """Return the counts of this server; how full Redis is, it says itself."""
        with self._lock:
            return CacheStatistics(
                num_hits=self._num_hits,
                num_misses=self._num_misses,
                num_insertions=self._num_insertions,
                num_rejected=self._num_rejected,
                num_errors=self._num_errors,
                lookup_ns=self._lookup_ns,
                insertion_ns=self._insertion_ns,
            )

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def __repr__(self) -> str:
        return f"RedisCache({self._place}, prefix {self._prefix!r})"


def _number(settings: Mapping[str, str], name: str, default: int) -> int:
    text = settings.get(name, str(default))
    if not text.isascii() or not text.isdigit():
        raise InvalidArgument(f"cache 'redis': {name} is '{text}', expected a whole number from 0 on")
    return int(text)


def _seconds(settings: Mapping[str, str], name: str) -> float | None:
    """Return a time-out given in milliseconds; None: it waits for ever."""
    return _number(settings, name, _TIMEOUT_MS) / 1e3 or None


def _tls(settings: Mapping[str, str]) -> dict[str, Any]:
    if settings.get("tls_enabled", "false").lower() != "true":
        return {}
    options: dict[str, Any] = {"ssl": True}
    for name, option in (("cert", "ssl_certfile"), ("key", "ssl_keyfile"), ("cacert", "ssl_ca_certs")):
        if settings.get(name):
            options[option] = settings[name]
    return options
