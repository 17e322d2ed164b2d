"""Trace settings: those of the server, those of single models above them, and which request is sampled. Pure.

A setting is replaced, never changed, so that traces under way keep theirs; only its counts move.

Source: Triton ``tracer.cc`` (``UpdateTraceSettingInternal``, ``SampleTrace``), ``http_server.cc`` (``HandleTrace``).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from bireme.telemetry.tracing.options import LEVELS, OFF, TraceMode, TraceOptions, batch_settings
from bireme.types import InvalidArgument, Unsupported

Values = Mapping[str, Any]
"""``trace_level`` (a tuple; empty: off), ``trace_rate``, ``trace_count``, ``log_frequency``; in changes, None takes back."""

_INT_MAX: Final = 2**31 - 1
_RANGES: Final = {
    "trace_rate": (0, 2**32 - 1),
    "trace_count": (-1, _INT_MAX),
    "log_frequency": (0, 2**32 - 1),
}
"""What the messages call the range. What is taken ends at `_INT_MAX`, as in Triton."""
_NUMBER: Final = re.compile(r"\s*[+-]?[0-9]+")
_REFUSAL: Final = "Attempting to set invalid trace setting :"


class TraceSetting:
    """What is valid for one model, or for all that have none of their own."""

    __slots__ = (
        "__weakref__",
        "_num_seen",
        "count",
        "fault",
        "level",
        "log_frequency",
        "num_sampled",
        "rate",
        "specified",
    )

    def __init__(self, values: Values, specified: frozenset[str], *, mode: TraceMode, file: str) -> None:
        self.level: tuple[str, ...] = values["trace_level"]
        self.rate: int = values["trace_rate"]
        self.count: int = values["trace_count"]
        """How many traces are still wanted; -1: any number."""
        self.log_frequency: int = values["log_frequency"]
        self.specified = specified
        """The keys that are this one's own; the others come from the one above."""
        self.fault = ""
        """Why nothing is sampled."""
        if not self.level:
            self.fault = "tracing is disabled"
        elif not self.rate:
            self.fault = "sample rate must be non-zero"
        elif mode is TraceMode.TRITON and not file:
            self.fault = "trace file name is not given"
        self.num_sampled = 0
        self._num_seen = 0

    def values(self) -> dict[str, Any]:
        """Return the values; the count is what is left of it."""
        return {
            "trace_level": self.level,
            "trace_rate": self.rate,
            "trace_count": self.count,
            "log_frequency": self.log_frequency,
        }

    @property
    def samples_any(self) -> bool:
        """Whether a request may be sampled that does not ask for it."""
        return not self.fault and self.count != 0

    def sample(self, *, is_forced: bool = False) -> bool:
        """Count a request, and tell whether it is traced: every ``rate``-th one, while the count lasts, and who forces it."""
        if not self.rate or not (self.samples_any or is_forced):
            return is_forced
        self._num_seen += 1
        if self._num_seen % self.rate or not self.count:
            return is_forced
        if self.count > 0:
            self.count -= 1
        self.num_sampled += 1
        return True

    def __repr__(self) -> str:
        return (
            f"TraceSetting({self.level}, rate {self.rate}, count {self.count}, own: {sorted(self.specified)})"
        )


class TraceSettings:
    """The settings of a server and of its models."""

    __slots__ = ("_default", "current", "models", "options")

    def __init__(self, options: TraceOptions) -> None:
        self.options = options
        self._default: Values = {
            "trace_level": options.level,
            "trace_rate": options.rate,
            "trace_count": options.count,
            "log_frequency": options.log_frequency,
        }
        self.current = self._make(self._default, frozenset())
        """Of all models that have none of their own."""
        self.models: dict[str, TraceSetting] = {}

    def _make(self, values: Values, specified: frozenset[str]) -> TraceSetting:
        return TraceSetting(values, specified, mode=self.options.mode, file=self.options.file)

    def find(self, model: str) -> TraceSetting:
        """Return what is valid for ``model``."""
        return self.models.get(model, self.current)

    def all(self) -> Iterator[TraceSetting]:
        """Yield every setting."""
        yield self.current
        yield from self.models.values()

    def update(self, model: str, changes: Values) -> list[TraceSetting]:
        """Change the setting of ``model`` (empty: of the server); return those that are valid no more.

        Raises:
            InvalidArgument: traces would be wanted and could not be made; nothing is changed then.
        """
        before = list(self.all())
        if model:
            changed = self._derive(self.models.get(model), self.current.values(), changes)
            if changed.specified:
                self.models[model] = changed
            else:
                self.models.pop(model, None)
        else:
            current = self._derive(self.current, self._default, changes)
            above = current.values()
            models = {name: self._derive(setting, above, {}) for name, setting in self.models.items()}
            self.current, self.models = current, models
        valid = set(self.all())
        return [setting for setting in before if setting not in valid]

    def _derive(self, setting: TraceSetting | None, above: Values, changes: Values) -> TraceSetting:
        """Return ``setting`` (None: none yet) with ``changes``; what is not its own is as ``above``."""
        own = {} if setting is None else {key: setting.values()[key] for key in setting.specified}
        own.update(changes)
        own = {key: value for key, value in own.items() if value is not None}
        derived = self._make({**above, **own}, frozenset(own))
        # A count that has run out is no fault of a change to the server's setting, which its models follow without one.
        if derived.level and (derived.fault or (changes and not derived.count)):
            raise InvalidArgument(_REFUSAL + (derived.fault or "trace count must be non-zero"))
        return derived

    def describe(self, model: str) -> dict[str, list[str]]:
        """Return what is valid for ``model`` as both protocols tell it: texts by key, one of each but for the level."""
        setting = self.find(model)
        told = {
            "trace_level": list(setting.level) or [OFF],
            "trace_rate": [str(setting.rate)],
            "trace_count": [str(setting.count)],
        }
        options = self.options
        if options.mode is TraceMode.TRITON:
            told["log_frequency"] = [str(setting.log_frequency)]
            told["trace_file"] = [options.file]
            told["trace_mode"] = [options.mode.value]
            return told
        told["trace_mode"] = [options.mode.value]
        for key, value in options.opentelemetry:
            told.setdefault(key, []).append(value)
        for key, number in batch_settings(options.opentelemetry).items():
            told[key] = [str(number)]
        return told


def read_changes(texts: Mapping[str, Sequence[str] | None]) -> dict[str, Any]:
    """Return the changes that a client asks for by ``texts``; None takes back. Other keys have no effect.

    Raises:
        InvalidArgument: a value cannot be read.
        Unsupported: the file is to be changed.
    """
    if "trace_file" in texts:
        raise Unsupported("trace file location can not be updated through network protocol")
    changes: dict[str, Any] = {}
    if "trace_level" in texts:
        names = texts["trace_level"]
        level = None if names is None else _read_level(names)
        if level != ():
            changes["trace_level"] = () if level == (OFF,) else level
    for key in _RANGES:
        if key in texts:
            values = texts[key]
            changes[key] = None if values is None else _read_number(key, values)
    return changes


def _read_level(names: Sequence[str]) -> tuple[str, ...]:
    """Return the known levels among ``names``; Triton takes others without a word, so that they change nothing."""
    if OFF in names:
        if len(names) > 1:
            raise InvalidArgument("Expect only one trace level 'OFF' is specified")
        return (OFF,)
    return tuple(level for level in LEVELS if level in names)


def _read_number(key: str, values: Sequence[str]) -> int:
    if len(values) != 1:
        raise InvalidArgument(f"expect only 1 value for '{key}'")
    text = values[0]
    if _NUMBER.fullmatch(text) is None:
        raise InvalidArgument(f"Unable to parse '{key}', got: {text}")
    number = int(text) if len(text) < 40 else _INT_MAX + 1
    least, most = _RANGES[key]
    if key == "trace_count" and -_INT_MAX - 1 <= number < least:
        raise InvalidArgument(f"Unable to parse '{key}'. Expecting value >= {least}, got: {text}")
    if not least <= number <= _INT_MAX:
        raise InvalidArgument(
            f"Unable to parse '{key}', value is out of range [ {least}, {most} ], got: {text}"
        )
    return number
