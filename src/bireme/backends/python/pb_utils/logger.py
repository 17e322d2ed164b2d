"""Logger: lines from models into the server's log."""

from __future__ import annotations

import logging
import os
import sys
import time
from enum import IntEnum
from typing import Any, ClassVar, Final

from bireme.backends.python import runtime
from bireme.backends.python.pb_utils.text import to_text

VERBOSE: Final = 5


_LETTERS: Final = {logging.WARNING: "W", logging.ERROR: "E"}


class Logger:
    """Writes into the server's log, with the file and line of the caller; where no model runs, to stderr."""

    class LogLevel(IntEnum):
        """Levels, as numbers of `logging`."""

        INFO = logging.INFO
        WARNING = logging.WARNING
        ERROR = logging.ERROR
        VERBOSE = VERBOSE

    INFO: ClassVar = LogLevel.INFO
    WARNING: ClassVar = LogLevel.WARNING
    ERROR: ClassVar = LogLevel.ERROR
    VERBOSE: ClassVar = LogLevel.VERBOSE

    @staticmethod
    def log(message: str, level: LogLevel = LogLevel.INFO) -> None:
        """Write ``message`` at ``level``. Raises `TypeError` for anything that is no level."""
        if not isinstance(level, Logger.LogLevel):
            raise TypeError(f"Logger.log: level must be one such as Logger.INFO, found {level!r}")
        _write(level, message)

    @staticmethod
    def log_info(message: str) -> None:
        """Write ``message`` at level INFO."""
        _write(Logger.INFO, message)

    @staticmethod
    def log_warn(message: str) -> None:
        """Write ``message`` at level WARNING."""
        _write(Logger.WARNING, message)

    @staticmethod
    def log_error(message: str) -> None:
        """Write ``message`` at level ERROR."""
        _write(Logger.ERROR, message)

    @staticmethod
    def log_verbose(message: str) -> None:
        """Write ``message`` if the server's log is verbose."""
        _write(Logger.VERBOSE, message)


def _write(level: Logger.LogLevel, message: Any) -> None:
    caller = sys._getframe(2)  # noqa: SLF001 (the one way to the caller's line that costs next to nothing)
    file, line = caller.f_code.co_filename, caller.f_lineno
    text = to_text("message", message) if isinstance(message, (str, bytes)) else str(message)
    try:
        current = runtime.current()
    except RuntimeError:
        now = time.time()
        stamp = f"{time.strftime('%m%d %H:%M:%S', time.gmtime(now))}.{int(now % 1 * 1e6):06d}"
        place = f"{os.path.basename(file)}:{line}"  # noqa: PTH119 (a name in a text, no file to open)
        sys.stderr.write(f"{_LETTERS.get(level, 'I')}{stamp} {os.getpid()} {place}]  {text}\n")
        return
    current.log(int(level), text, file, line)
