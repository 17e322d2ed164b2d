"""How the text of a flag becomes a value. Pure; a wrong text raises ValueError with what was expected and found.

Source: Triton ``command_line_parser.cc`` (``ParseOption``, ``Parse…ConfigOption``).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

RESTRICTED_CATEGORIES = (
    "health",
    "metadata",
    "inference",
    "shared-memory",
    "model-config",
    "model-repository",
    "statistics",
    "trace",
    "logging",
)
"""The groups of routes and methods that ``--http-restricted-api`` and ``--grpc-restricted-protocol`` can guard."""


@dataclass(frozen=True, slots=True)
class ValueType:
    """What a flag takes: the word that stands for it in the help, and the parser of its text."""

    metavar: str
    parse: Callable[[str], Any]


class RestrictedGroup(NamedTuple):
    """One group of categories that need this header with this value."""

    categories: tuple[str, ...]
    header: str
    value: str


class BackendSetting(NamedTuple):
    """One ``--backend-config``; without a backend it is meant for all of them."""

    backend: str
    key: str
    value: str


class RateLimitResource(NamedTuple):
    """One ``--rate-limit-resource``; without a device it counts for each of them."""

    name: str
    copies: int
    device: int | None


def _bool(text: str) -> bool:
    lowered = text.lower()
    if lowered in {"true", "on", "1", "yes"}:
        return True
    if lowered in {"false", "off", "0", "no"}:
        return False
    raise ValueError(f"expected true/on/1 or false/off/0, got {text!r}")


def _verbosity(text: str) -> int:
    """``--log-verbose`` is a level; true and false are 1 and 0."""
    if text.lower() in {"true", "false"}:
        return int(text.lower() == "true")
    return _integer(text, 0, None)


def _integer(text: str, minimum: int | None, maximum: int | None) -> int:
    limits = {
        (False, False): "",
        (True, False): f" of at least {minimum}",
        (False, True): f" of at most {maximum}",
        (True, True): f" from {minimum} to {maximum}",
    }[minimum is not None, maximum is not None]
    # int() alone would take "1_000" and "١"
    found = int(text) if re.fullmatch(r"[+-]?[0-9]+", text.strip()) else None
    out_of_range = found is not None and (
        (minimum is not None and found < minimum) or (maximum is not None and found > maximum)
    )
    if found is None or out_of_range:
        raise ValueError(f"expected an integer{limits}, got {text!r}")
    return found


def _milliseconds(text: str) -> float:
    try:
        found = float(text)
    except ValueError:
        found = -1.0
    if not 0 < found < float("inf"):
        raise ValueError(f"expected milliseconds above 0, got {text!r}")
    return found


def _pattern(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise ValueError(f"not a regular expression: {error}, in {text!r}") from None
    return text


def _config_name(text: str) -> str:
    if not text or re.search(r"\s", text):
        raise ValueError(f"expected a name without spaces, got {text!r}")
    return text


def _restricted_group(text: str, what: str) -> RestrictedGroup:
    categories_text, colon, header_text = text.partition(":")
    header, equals, value = header_text.partition("=")
    if not (categories_text and colon and header and equals and value):
        raise ValueError(f"expected <{what}>[,<{what}>…]:<key>=<value>, got {text!r}")
    categories = tuple(categories_text.split(","))
    for category in categories:
        if category not in RESTRICTED_CATEGORIES:
            known = ", ".join(RESTRICTED_CATEGORIES)
            raise ValueError(f"unknown restricted {what} {category!r}, expected one of {known}")
    return RestrictedGroup(categories, header, value)


def _backend_setting(text: str) -> BackendSetting:
    # As in Triton: the first comma ends the backend's name, unless it belongs to the value.
    name, equals, value = text.partition("=")
    owner, comma, key = name.partition(",")
    if not comma:
        owner, key = "", name
    if not (key and equals and value) or (comma and not owner):
        raise ValueError(f"expected [<backend>,]<setting>=<value>, got {text!r}")
    return BackendSetting(owner, key, value)


def _resource(text: str) -> RateLimitResource:
    name, _, rest = text.partition(":")
    count, colon, device = rest.partition(":")
    try:
        if name:
            return RateLimitResource(
                name, _integer(count, 0, None), _integer(device, 0, None) if colon else None
            )
    except ValueError:
        pass
    raise ValueError(f"expected <name>:<count>[:<device>], got {text!r}")


def integer(minimum: int | None = None, maximum: int | None = None, metavar: str = "N") -> ValueType:
    """Return the type of a whole number within limits, both included."""
    return ValueType(metavar, lambda text: _integer(text, minimum, maximum))


def choice(*names: str) -> ValueType:
    """Return the type of one of ``names``, taken in any case and given back as written here."""
    by_lowered = {name.lower(): name for name in names}

    def parse(text: str) -> str:
        found = by_lowered.get(text.lower())
        if found is None:
            raise ValueError(f"expected one of {', '.join(names)}, got {text!r}")
        return found

    return ValueType("|".join(names), parse)


BOOL = ValueType("BOOL", _bool)
TEXT = ValueType("TEXT", str)
PATH = ValueType("PATH", str)
PORT = integer(0, 65535, "PORT")
VERBOSITY = ValueType("LEVEL", _verbosity)
MILLISECONDS = ValueType("MS", _milliseconds)
PATTERN = ValueType("REGEX", _pattern)
CONFIG_NAME = ValueType("NAME", _config_name)
RESTRICTED_APIS = ValueType("API[,API…]:HEADER=VALUE", lambda text: _restricted_group(text, "api"))
RESTRICTED_PROTOCOLS = ValueType(
    "PROTOCOL[,PROTOCOL…]:KEY=VALUE", lambda text: _restricted_group(text, "protocol")
)
BACKEND_SETTING = ValueType("[BACKEND,]KEY=VALUE", _backend_setting)
RESOURCE = ValueType("NAME:COUNT[:DEVICE]", _resource)
SWITCH = ValueType("", _bool)
"""A flag that takes no value: it is there or not."""
