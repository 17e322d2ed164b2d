"""How a log record looks: Triton's two text formats, and JSON lines. Pure: record in, text out.

Source: Triton ``common/logging.cc`` (LogPreamble, LogTimestamp).
"""

from __future__ import annotations

import json
import logging
import os
import time
from functools import lru_cache
from typing import Any, Final

import orjson

FORMATS: Final = ("default", "ISO8601", "json")
"""Triton's two formats and ours."""

ESCAPE_VARIABLE: Final = "TRITON_SERVER_ESCAPE_LOG_MESSAGES"
"""Set to 0 in the environment, it leaves messages in the text formats as they are."""

_STANDARD_ATTRIBUTES: Final = frozenset(vars(logging.makeLogRecord({}))) | {
    "message",
    "asctime",
    "taskName",
    "is_table",
}
_CONTROL: Final = {code: f"\\x{code:02x}" for code in (*range(0x20), 0x7F) if code not in (0x09, 0x0A)}


def formatter(name: str) -> logging.Formatter:
    """Return a formatter for one of `FORMATS`."""
    if name == "json":
        return JsonFormatter()
    return TextFormatter(iso8601=name == "ISO8601", escape=os.environ.get(ESCAPE_VARIABLE) != "0")


class TextFormatter(logging.Formatter):
    """Triton's line: ``I0520 20:03:25.829575 3355 file.py:123] "message"``, or with an ISO 8601 time.

    Times are UTC. The message is a JSON string, so that it stays on one line, unless ``escape`` is off or the record
    was logged with ``extra={"is_table": True}``. A traceback follows on indented lines.
    """

    def __init__(self, *, iso8601: bool, escape: bool = True) -> None:
        super().__init__()
        self._preamble = _iso8601_preamble if iso8601 else _default_preamble
        self._escape = escape

    def format(self, record: logging.LogRecord) -> str:
        """Return the record's line or lines, without the last line end."""
        message = record.getMessage()
        if self._escape and not getattr(record, "is_table", False):
            message = json_text(message)
        text = f"{self._preamble(record)} {record.process} {record.filename}:{record.lineno}] {message}"
        trace = _traceback(self, record)
        if trace:
            # Indented, and without other control characters: no text of a client can look like a record of ours.
            text += "\n    " + trace.translate(_CONTROL).replace("\n", "\n    ")
        return text


class JsonFormatter(logging.Formatter):
    """One JSON object per line; what a record was given as ``extra`` becomes further keys."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the object as text."""
        fields: dict[str, Any] = {
            "time": utc_time(round(record.created * 1_000_000) * 1000),
            "level": record.levelname.lower() if record.levelno >= logging.INFO else "debug",
            "logger": record.name,
            "pid": record.process,
            "file": record.filename,
            "line": record.lineno,
            "message": record.getMessage(),
        }
        fields.update((key, value) for key, value in vars(record).items() if key not in _STANDARD_ATTRIBUTES)
        trace = _traceback(self, record)
        if trace:
            fields["exception"] = trace
        return json_text(fields)


def json_text(value: object) -> str:
    """Return ``value`` as one line of JSON that any stream can take; what JSON cannot say becomes text."""
    try:
        return orjson.dumps(value, default=str).decode()
    except TypeError:  # lone surrogates, or numbers beyond 64 bits
        return json.dumps(value, default=str)


def utc_time(time_ns: int) -> str:
    """Return a time since the epoch as ``2024-05-20T20:03:25.829575Z``."""
    seconds, rest_ns = divmod(time_ns, 1_000_000_000)
    return f"{_utc_second(seconds)}.{rest_ns // 1000:06d}Z"


@lru_cache(maxsize=4)
def _utc_second(seconds: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))


def _letter(record: logging.LogRecord) -> str:
    if record.levelno > logging.WARNING:
        return "E"
    return "W" if record.levelno > logging.INFO else "I"


def _default_preamble(record: logging.LogRecord) -> str:
    seconds, microseconds = divmod(round(record.created * 1_000_000), 1_000_000)
    return f"{_letter(record)}{time.strftime('%m%d %H:%M:%S', time.gmtime(seconds))}.{microseconds:06d}"


def _iso8601_preamble(record: logging.LogRecord) -> str:
    return f"{time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime(record.created))} {_letter(record)}"


def _traceback(formatter: logging.Formatter, record: logging.LogRecord) -> str:
    if record.exc_info and not record.exc_text:
        record.exc_text = formatter.formatException(record.exc_info)
    parts = [record.exc_text, formatter.formatStack(record.stack_info) if record.stack_info else None]
    return "\n".join(part for part in parts if part)
