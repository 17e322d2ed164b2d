"""The flags of tracing: ``--trace-config``, and the older ones that say the same.

Source: Triton ``command_line_parser.cc`` (``PostProcessTraceArgs``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from bireme.telemetry.tracing import TraceMode, TraceOptions

OLDER: Final = {
    "trace-level": "level",
    "trace-rate": "rate",
    "trace-count": "count",
    "trace-file": "triton,file",
    "trace-log-frequency": "triton,log-frequency",
}
"""What the older flags are called in ``--trace-config``."""


def trace_options(values: Mapping[str, Any]) -> TraceOptions:
    """Return what the flags say; where both say something, ``--trace-config`` wins.

    Raises:
        InvalidArgument: a setting is unknown or wrong.
    """
    newer: tuple[str, ...] = values["trace-config"]
    named = {setting.partition("=")[0] for setting in newer}
    older = (
        f"{name}={value}"
        for flag, name in OLDER.items()
        if name not in named
        for value in _given(values, flag)
    )
    return TraceOptions.parse((*older, *newer))


def _given(values: Mapping[str, Any], flag: str) -> tuple[Any, ...]:
    value = values[flag]
    if isinstance(value, tuple):
        return value
    return () if value is None else (value,)


def trace_notes(values: Mapping[str, Any], options: TraceOptions) -> Iterator[str]:
    """Yield what the user should know about these flags."""
    named = {setting.partition("=")[0] for setting in values["trace-config"]}
    for flag, name in OLDER.items():
        if not _given(values, flag):
            continue
        yield f"--{flag} is deprecated; its newer name is --trace-config {name}=VALUE"
        if name in named:
            yield f"--trace-config {name} wins over --{flag}"
    if options.mode is TraceMode.TRITON and options.level and not options.file:
        yield "--trace-config level has no effect without --trace-config triton,file=PATH: nothing is traced"
