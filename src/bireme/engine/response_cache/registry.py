"""Finds the cache that a configuration names: one of ours, or an entry point of the group ``bireme.caches``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from importlib.metadata import entry_points
from typing import Final

from bireme.engine.response_cache.interface import CacheFactory, ResponseCache
from bireme.engine.response_cache.local import LocalCache
from bireme.types import InvalidArgument

ENTRY_POINTS: Final = "bireme.caches"
"""Each names a `CacheFactory`."""

CacheSettings = Mapping[str, Mapping[str, str | int | float | bool]]
"""The settings of the one cache, by its name."""


def open_cache(config: CacheSettings) -> ResponseCache | None:
    """Open the cache that ``config`` names; None: it names none. Nothing is waited for.

    Raises:
        InvalidArgument: it names several, or none that is there; or a setting is wrong.
    """
    if not config:
        return None
    if len(config) > 1:
        raise InvalidArgument(
            f"cache_config names {' and '.join(map(repr, config))}: there can be only one cache"
        )
    ((name, settings),) = config.items()
    cache = _find(name)({key: _text(value) for key, value in settings.items()})
    if not isinstance(cache, ResponseCache):
        raise InvalidArgument(f"cache '{name}' is no ResponseCache, but {type(cache).__name__}")
    return cache


def _find(name: str) -> CacheFactory:
    if name == "local":
        return LocalCache.open
    if name == "redis":
        # Imported here: the client is an optional dependency.
        from bireme.engine.response_cache.redis_cache import RedisCache

        return RedisCache.open
    others = {point.name: point for point in entry_points(group=ENTRY_POINTS)}
    if name not in others:
        names = ", ".join(repr(known) for known in ("local", "redis", *others))
        raise InvalidArgument(f"there is no cache '{name}', expected one of {names}")
    try:
        factory: CacheFactory = others[name].load()
    except Exception as error:
        raise InvalidArgument(
            f"cache '{name}' ({others[name].value}) cannot be imported: {type(error).__name__}: {error}"
        ) from error
    return factory


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def parse_settings(texts: Iterable[str]) -> dict[str, dict[str, str]]:
    """Return the settings that ``--cache-config`` values give, each ``<cache>,<setting>=<value>``; a later one wins.

    A value may hold commas and equals signs, and several settings may stand in one text where none does.

    Raises:
        InvalidArgument: a text has another form.
    """
    config: dict[str, dict[str, str]] = {}
    for text in texts:
        name, comma, rest = text.partition(",")
        if not name or "=" in name or (comma and "=" not in rest):
            raise InvalidArgument(
                f"--cache-config option format is <cache name>,<setting>=<value>. Got {text}"
            )
        settings = config.setdefault(name, {})
        for pair in _pairs(rest):
            key, _, value = pair.partition("=")
            settings[key] = value
    return config


def _pairs(text: str) -> list[str]:
    """Cut ``a=1,b=2`` into its pairs; a piece without an equals sign belongs to the value before it."""
    pairs: list[str] = []
    for piece in text.split(",") if text else ():
        if "=" in piece or not pairs:
            pairs.append(piece)
        else:
            pairs[-1] += f",{piece}"
    return pairs
