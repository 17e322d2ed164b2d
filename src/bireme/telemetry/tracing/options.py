"""TraceOptions: what the server traces from its start on, as ``--trace-config`` says it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from bireme.types import InvalidArgument

LEVELS: Final = ("TIMESTAMPS", "TENSORS")
OFF: Final = "OFF"
_LEVEL_TEXTS: Final[Mapping[str, str]] = {
    "false": OFF,
    "off": OFF,
    "true": "TIMESTAMPS",
    "on": "TIMESTAMPS",
    "min": "TIMESTAMPS",
    "max": "TIMESTAMPS",
    "timestamps": "TIMESTAMPS",
    "tensors": "TENSORS",
}
_BATCHES: Final[Mapping[str, int]] = {
    "bsp_max_queue_size": 2048,
    "bsp_schedule_delay": 5000,
    "bsp_max_export_batch_size": 512,
}
"""Settings of OpenTelemetry's batch processor, and what they are unless ``OTEL_BSP_…`` says otherwise."""


class TraceMode(StrEnum):
    """Where traces go."""

    TRITON = "triton"  # to JSON files
    OPENTELEMETRY = "opentelemetry"  # to a collector, by OTLP


@dataclass(frozen=True, slots=True)
class TraceOptions:
    """What is traced from the start on; each field has the meaning of the setting of ``--trace-config``."""

    level: tuple[str, ...] = ()
    """Of ``TIMESTAMPS`` and ``TENSORS``. None: nothing is traced."""
    rate: int = 1000
    """Every so many-th request is traced. 0: only those that bring an OpenTelemetry context."""
    count: int = -1
    """How many traces there will be; -1: any number."""
    mode: TraceMode = TraceMode.TRITON
    file: str = ""
    log_frequency: int = 0
    """Traces per file, of files that are numbered; 0: all go into one."""
    opentelemetry: tuple[tuple[str, str], ...] = ()
    """(setting, value) in the order given: ``url``, ``resource`` (any number), ``bsp_…``."""

    @classmethod
    def parse(cls, settings: Iterable[str]) -> TraceOptions:
        """Return the options of ``--trace-config`` values, each ``[<mode>,]<setting>=<value>``; a later one wins.

        Source: Triton ``command_line_parser.cc`` (``ParseTraceConfigOption``, ``PostProcessTraceArgs``); unlike there, an
        unknown setting is an error.

        Raises:
            InvalidArgument: a value has not that form, or names no setting, or its value cannot be read.
        """
        reader = _Reader()
        for setting in settings:
            reader.read(setting)
        return reader.options()

    def check(self) -> None:
        """Check what no type can say.

        Raises:
            InvalidArgument: names the setting, its value and what is expected.
        """
        for level in self.level:
            if level not in LEVELS:
                raise InvalidArgument(f"trace level is '{level}', expected {' or '.join(LEVELS)}")
        for name, value, least in (
            ("rate", self.rate, 0),
            ("count", self.count, -1),
            ("log-frequency", self.log_frequency, 0),
        ):
            if value < least:
                raise InvalidArgument(f"trace {name} is {value}, expected {least} or more")
        batches = batch_settings(self.opentelemetry)
        size, room = batches["bsp_max_export_batch_size"], batches["bsp_max_queue_size"]
        if size > room:
            raise InvalidArgument(
                f"bsp_max_export_batch_size is {size}, expected at most bsp_max_queue_size, which is {room}"
            )


class _Reader:
    """Takes one ``--trace-config`` after the other."""

    def __init__(self) -> None:
        self._levels: list[str] = []
        self._numbers: dict[str, int] = {}
        self._mode = TraceMode.TRITON
        self._file = ""
        self._opentelemetry: list[tuple[str, str]] = []

    def read(self, setting: str) -> None:
        name, equals, value = setting.partition("=")
        mode, comma, key = name.rpartition(",")
        if not equals or not key or not value or (comma and not mode):
            raise InvalidArgument(
                f"--trace-config option format is '<trace mode>,<setting>=<value>' or '<setting>=<value>'. Got {setting}"
            )
        where = f"--trace-config {name}"
        match mode.lower(), key:
            case "", "level":
                self._levels.append(_read_level(where, value))
            case "", "mode":
                self._mode = _read_mode(where, value)
            case ("", "rate" | "count") | ("triton", "log-frequency"):
                self._numbers[key.replace("-", "_")] = _read_number(where, value)
            case "triton", "file":
                self._file = value
            case "opentelemetry", "url" | "resource":
                if key == "resource" and "=" not in value:
                    raise InvalidArgument(f"{where}: expected <key>=<value>, found '{value}'")
                self._give(key, value)
            case "opentelemetry", _ if key in _BATCHES:
                self._give(key, str(_read_positive(where, value)))
            case _:
                raise InvalidArgument(_unknown(where, mode))

    def _give(self, key: str, value: str) -> None:
        if key != "resource":
            self._opentelemetry = [pair for pair in self._opentelemetry if pair[0] != key]
        self._opentelemetry.append((key, value))

    def options(self) -> TraceOptions:
        level = () if OFF in self._levels else tuple(name for name in LEVELS if name in self._levels)
        return TraceOptions(
            level,
            mode=self._mode,
            file=self._file,
            opentelemetry=tuple(self._opentelemetry),
            **self._numbers,
        )


def _unknown(where: str, mode: str) -> str:
    known = {
        "": "level, rate, count, mode",
        "triton": "file, log-frequency",
        "opentelemetry": f"url, resource, {', '.join(_BATCHES)}",
    }.get(mode.lower())
    if known is None:
        return f"{where}: unknown trace mode '{mode}', expected triton or opentelemetry"
    return f"{where}: unknown setting, expected one of {known}"


def _read_level(where: str, value: str) -> str:
    level = _LEVEL_TEXTS.get(value.lower())
    if level is None:
        raise InvalidArgument(f"{where}: expected OFF, TIMESTAMPS or TENSORS, found '{value}'")
    return level


def _read_mode(where: str, value: str) -> TraceMode:
    try:
        return TraceMode(value.lower())
    except ValueError:
        raise InvalidArgument(f"{where}: expected triton or opentelemetry, found '{value}'") from None


def _read_number(where: str, value: str) -> int:
    try:
        return int(value)
    except ValueError:
        raise InvalidArgument(f"{where}: expected a whole number, found '{value}'") from None


def _read_positive(where: str, value: str) -> int:
    number = _read_number(where, value)
    if number < 1:
        raise InvalidArgument(f"{where}: expected 1 or more, found '{value}'")
    return number


def batch_settings(settings: Iterable[tuple[str, str]]) -> dict[str, int]:
    """Return the settings of the batch processor: as given, else as the environment says, else the usual ones.

    Raises:
        InvalidArgument: a variable of the environment is no number.
    """
    given = dict(settings)
    found: dict[str, int] = {}
    for name, usual in _BATCHES.items():
        variable = f"OTEL_{name.upper()}"
        if name in given:
            found[name] = int(given[name])
        else:
            found[name] = _read_positive(variable, os.environ.get(variable) or str(usual))
    return found
