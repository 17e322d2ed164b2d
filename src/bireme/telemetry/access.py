"""The access log: one line per request, with the request's id and the time that each phase took.

Lines are written straight to a file descriptor opened for appending, so several processes may share a file and a rotated
file is picked up by `AccessLog.reopen`. They do not pass through ``logging``: a line costs 5 µs here and 10 µs there (`benchmarks/telemetry.py`).

While the log is off there is no `AccessLog` at all: `open_access_log` returns None, and a front end chooses its way
when it is configured.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any, Final

from bireme.telemetry import log
from bireme.telemetry.log_formats import json_text, utc_time
from bireme.types import InferenceRequest, InvalidArgument

STDOUT: Final = "-"
"""The path that means standard output."""

_UNNAMED: Final = frozenset(("time", "client", "method", "route", "status"))  # of a text line: by their place

_logger = log.get_logger(__name__)


class AccessLog:
    """Writes a line per request. Loop thread only."""

    __slots__ = ("_clock_ns", "_fd", "_has_failed", "_json", "_path", "num_lost")

    def __init__(self, path: str, *, json: bool = False, clock_ns: Callable[[], int] = time.time_ns) -> None:
        """Append to the file ``path``, or write to standard output for "-".

        Raises:
            InvalidArgument: the file cannot be opened.
        """
        self._path = path
        self._json = json
        self._clock_ns = clock_ns
        self._has_failed = False
        self.num_lost = 0
        """Lines that could not be written, for example on a full disk."""
        self._fd = _open(path)

    def record(
        self,
        method: str,
        route: str,
        status: int,
        *,
        client: str,
        bytes_in: int,
        bytes_out: int,
        total_ns: int,
        request: InferenceRequest | None = None,
        model_version: int | None = None,
        error: str = "",
    ) -> None:
        """Write the line of a request that has been answered with ``status``.

        ``total_ns`` is the front end's own time, from the first byte to the last one handed to the socket. ``request``
        adds model, id, batch and phases, as far as it came; ``model_version`` is the version that answered.
        """
        fields: dict[str, Any] = {
            "time": utc_time(self._clock_ns()),
            "client": client,
            "method": method,
            "route": route,
            "status": status,
            "bytes_in": bytes_in,
            "bytes_out": bytes_out,
            "total_us": total_ns // 1000,
        }
        if request is not None:
            _add_request(fields, request, model_version)
        if error:
            fields["error"] = error
        self._write(json_text(fields) if self._json else text_line(fields))

    def reopen(self) -> None:
        """Open the file again by its name, after a log rotation; keeps the old one if that fails."""
        try:
            new_fd = _open(self._path)
        except InvalidArgument as found:
            _logger.warning("access log: %s; still writing to the old file", found.message)
            return
        self.close()
        self._fd = new_fd

    def close(self) -> None:
        """Close the file; standard output stays open."""
        if self._path != STDOUT:
            os.close(self._fd)

    def _write(self, line: str) -> None:
        data = (line + "\n").encode("utf-8", "backslashreplace")
        try:
            os.write(self._fd, data)
        except OSError as found:
            # A request is never failed by its log line; the first loss is told, the others are counted.
            self.num_lost += 1
            if not self._has_failed:
                self._has_failed = True
                _logger.warning("access log '%s': lines are lost: %s", self._path, found.strerror)


def open_access_log(path: str, *, json: bool = False) -> AccessLog | None:
    """Return the access log that writes to ``path`` ("-": standard output); None for "": it is off.

    Raises:
        InvalidArgument: the file cannot be opened.
    """
    return AccessLog(path, json=json) if path else None


def text_line(fields: dict[str, Any]) -> str:
    """Return ``time client "method route" status key=value …``; texts are JSON strings, so a line is one line."""
    route = json_text(f"{fields['method']} {fields['route']}")
    pairs = " ".join(
        [
            f"{key}={json_text(value)}" if isinstance(value, str) else f"{key}={value}"
            for key, value in fields.items()
            if key not in _UNNAMED
        ]
    )
    return f"{fields['time']} {fields['client'] or '-'} {route} {fields['status']} {pairs}"


def _add_request(fields: dict[str, Any], request: InferenceRequest, model_version: int | None) -> None:
    """Add what is known of an inference request; one that never ran has no batch and no compute phases."""
    fields["model"] = request.model_name
    fields["version"] = request.model_version if model_version is None else model_version
    fields["id"] = request.id
    execution = request.execution
    if execution is None:
        return
    fields["batch_size"] = execution.batch_size
    fields["queue_us"] = (execution.compute_start_ns - request.queue_ns) // 1000
    fields["compute_input_us"] = (execution.compute_input_end_ns - execution.compute_start_ns) // 1000
    fields["compute_infer_us"] = (execution.compute_output_start_ns - execution.compute_input_end_ns) // 1000
    fields["compute_output_us"] = (execution.compute_end_ns - execution.compute_output_start_ns) // 1000


def _open(path: str) -> int:
    if path == STDOUT:
        return 1
    try:
        return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as found:
        raise InvalidArgument(f"cannot open access log '{path}': {found.strerror}") from found
