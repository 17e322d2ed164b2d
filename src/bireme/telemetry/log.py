"""The server's log, on the standard library's ``logging``: one handler, and settings that change at run time.

Every logger of ours is a child of ``bireme``. In a program that uses Bireme as a library nothing is installed: records go
where the program's own logging sends them. ``bireme serve`` calls `configure`, which gives ``bireme`` one handler: info
to stdout, warnings and errors to stderr, or everything to a file.

Verbose level n of Triton is the logging level ``11 - n``: level 1 is ``logging.DEBUG``, higher ones lie below. Code
that would spend time on a verbose message tests the flag first::

    if log.verbose_enabled:
        logger.debug("took %d rows", num_rows)

Source: Triton ``common/logging.h``, ``logging.cc``.
"""

from __future__ import annotations

import difflib
import logging
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, TextIO

from bireme.telemetry.log_formats import FORMATS, formatter
from bireme.types import InvalidArgument, Unavailable, Unsupported

verbose_enabled = False
"""Whether any verbose level is on. Read it as ``log.verbose_enabled``: it changes at run time."""

_root: Final = logging.getLogger("bireme")
_root.addHandler(logging.NullHandler())

_OFF: Final = logging.CRITICAL + 1
_DEFAULTS: Final[Mapping[str, Any]] = {
    "log_file": "",
    "log_info": True,
    "log_warning": True,
    "log_error": True,
    "log_verbose_level": 0,
    "log_format": "default",
}


def get_logger(name: str) -> logging.Logger:
    """Return the logger of a module (``__name__``), below ``bireme``."""
    return logging.getLogger(name if f"{name}.".startswith("bireme.") else f"bireme.{name}")


def verbose_level(level: int) -> int:
    """Return the logging level of Triton's verbose ``level`` (1, 2, …): ``logger.log(verbose_level(2), …)``."""
    return max(logging.DEBUG + 1 - level, 1)


class ConsoleHandler(logging.Handler):
    """Writes info and verbose records to stdout, the others to stderr; or all of them to ``file``."""

    def __init__(self, settings: LogSettings, file: TextIO | None = None) -> None:
        super().__init__()
        self._settings = settings
        self._file = file

    def emit(self, record: logging.LogRecord) -> None:
        """Write the record if its own level is on, and flush."""
        if not self._settings.is_on(record.levelno):
            return
        try:
            text = self.format(record) + "\n"
            # Looked up each time, so that a redirected sys.stdout is honoured.
            stream = self._file or (sys.stdout if record.levelno <= logging.INFO else sys.stderr)
            try:
                stream.write(text)
            except UnicodeEncodeError:
                stream.write(text.encode("ascii", "backslashreplace").decode())
            stream.flush()
        except Exception:  # noqa: BLE001 - the standard library's rule: logging never breaks its caller
            self.handleError(record)

    def close(self) -> None:
        """Close the file, if there is one."""
        if self._file is not None:
            self._file.close()
        super().close()


class LogSettings:
    """The settings of ``/v2/logging``: readable and, but for the file, changeable while the server runs."""

    def __init__(self) -> None:
        self._values = dict(_DEFAULTS)
        self._handler: ConsoleHandler | None = None

    def get(self) -> dict[str, Any]:
        """Return all six settings, in Triton's order."""
        return dict(self._values)

    def update(self, changes: Mapping[str, Any]) -> None:
        """Change some settings: all of ``changes`` or, on an error, none. None leaves a setting as it is.

        A key that is no setting is ignored, as in Triton, with a warning.

        Raises:
            Unsupported: the log file is to change.
            Unavailable: the format is unknown.
            InvalidArgument: a value has the wrong type.
        """
        if changes.get("log_file") is not None:
            raise Unsupported("log file location can not be updated through network protocol")
        checked = {}
        for key, value in changes.items():
            check = _CHECKS.get(key)
            if check is None:
                _warn_unknown(key)
            elif value is not None:
                checked[key] = check(key, value)
        self._values.update(checked)
        self._apply()

    def is_on(self, level: int) -> bool:
        """Tell whether records of a logging level are to be written; verbose ones are stopped by the logger."""
        if level > logging.WARNING:
            return bool(self._values["log_error"])
        if level > logging.INFO:
            return bool(self._values["log_warning"])
        return level < logging.INFO or bool(self._values["log_info"])

    def install(self, file: str, values: Mapping[str, Any]) -> None:
        """Replace our handler by one that writes to ``file`` ("": the console), with all of ``values`` set."""
        for key, value in values.items():
            _CHECKS[key](key, value)
        stream = _open_log_file(file) if file else None
        self.uninstall()
        self._values.update(values, log_file=file)
        self._handler = ConsoleHandler(self, stream)
        _root.addHandler(self._handler)
        _root.propagate = False
        self._apply()

    def uninstall(self) -> None:
        """Go back to a library's manners: no handler, no level, the defaults of all settings."""
        global verbose_enabled  # noqa: PLW0603 - one flag for the whole process, like logging itself
        if self._handler is not None:
            _root.removeHandler(self._handler)
            self._handler.close()
            self._handler = None
        _root.propagate = True
        _root.setLevel(logging.NOTSET)
        verbose_enabled = False
        self._values = dict(_DEFAULTS)

    def _apply(self) -> None:
        """Let the logger pass what any setting lets pass; the handler then looks at each level's own switch."""
        global verbose_enabled  # noqa: PLW0603 - one flag for the whole process, like logging itself
        verbosity = self._values["log_verbose_level"]
        verbose_enabled = verbosity > 0
        levels = (logging.INFO, logging.WARNING, logging.ERROR)
        _root.setLevel(
            verbose_level(verbosity)
            if verbosity
            else next((level for level in levels if self.is_on(level)), _OFF)
        )
        if self._handler is not None:
            self._handler.setFormatter(formatter(self._values["log_format"]))


settings: Final = LogSettings()
"""The process's one set of log settings."""


def configure(
    *,
    info: bool = True,
    warning: bool = True,
    error: bool = True,
    verbose: int = 0,
    format: str = "default",  # noqa: A002 - the flag's word
    file: str = "",
) -> None:
    """Send our records to the console, or all of them to ``file`` (appended to), from now on.

    Raises:
        InvalidArgument: the format is unknown, or the file cannot be opened.
    """
    values = {
        "log_info": info,
        "log_warning": warning,
        "log_error": error,
        "log_verbose_level": verbose,
        "log_format": format,
    }
    try:
        settings.install(file, values)
    except Unavailable as found:
        raise InvalidArgument(found.message) from None


def _warn_unknown(key: str) -> None:
    if key != "log_file":
        close = difflib.get_close_matches(key, _DEFAULTS, n=1)
        hint = f"; did you mean '{close[0]}'?" if close else ""
        get_logger(__name__).warning("unknown log setting '%s' ignored%s", key, hint)


def _open_log_file(path: str) -> TextIO:
    try:
        return Path(path).open("a", encoding="utf-8", errors="backslashreplace")
    except OSError as found:
        raise InvalidArgument(f"cannot open log file '{path}': {found.strerror}") from found


def _check_bool(key: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise InvalidArgument(f"log setting '{key}': expected a boolean, found {value!r}")
    return value


def _check_verbose(key: str, value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise InvalidArgument(f"log setting '{key}': expected an unsigned integer, found {value!r}")
    return value


def _check_format(key: str, value: object) -> str:
    if not isinstance(value, str):
        raise InvalidArgument(f"log setting '{key}': expected a string, found {value!r}")
    if value not in FORMATS:
        raise Unavailable(
            f"invalid argument for --log_format, got: {value}; expected one of {', '.join(FORMATS)}"
        )
    return value


_CHECKS: Final[dict[str, Callable[[str, Any], Any]]] = {
    "log_info": _check_bool,
    "log_warning": _check_bool,
    "log_error": _check_bool,
    "log_verbose_level": _check_verbose,
    "log_format": _check_format,
}
