"""The one place that imports tensorrt: its log goes into ours, its errors become texts, its plugins are loaded once.

TensorRT takes one logger for a whole process, the first that it is given. What goes wrong in a call is told to the error recorder of
the object that was called, and the call returns nothing or false; so each context has a recorder of its own, and instances that run at
the same time do not get each other's errors.

Source: NVIDIA TensorRT Python API, ``ILogger``, ``IErrorRecorder``, ``init_libnvinfer_plugins``.
"""

from __future__ import annotations

import ctypes
import logging
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import tensorrt as trt

from bireme.telemetry.log import get_logger
from bireme.types import InvalidArgument

__all__ = ["ErrorRecorder", "load_libraries", "log", "logger", "trt"]

log: Final = get_logger("bireme.backends.tensorrt")

_LEAST_MAJOR: Final = 10
_MAX_ERRORS: Final = 16
"""Of one call; what comes after them is dropped."""

if int(trt.__version__.partition(".")[0]) < _LEAST_MAJOR:
    raise ImportError(f"TensorRT {trt.__version__} is installed; the backend needs {_LEAST_MAJOR} or later")

_SEVERITIES: Final = {
    trt.ILogger.INTERNAL_ERROR: logging.ERROR,
    trt.ILogger.ERROR: logging.ERROR,
    trt.ILogger.WARNING: logging.WARNING,
    trt.ILogger.INFO: logging.INFO,
    trt.ILogger.VERBOSE: logging.DEBUG,
}


class _Logger(trt.ILogger):  # type: ignore[misc] # the library has no types
    """Hands TensorRT's messages to our log, on whichever thread they come up."""

    def __init__(self) -> None:
        trt.ILogger.__init__(self)

    def log(self, severity: Any, msg: str) -> None:
        """Take one message."""
        log.log(_SEVERITIES.get(severity, logging.ERROR), "%s", msg.strip())


class ErrorRecorder(trt.IErrorRecorder):  # type: ignore[misc] # as above
    """Keeps what went wrong in the calls on one object, until it is asked. TensorRT may report from threads of its own."""

    def __init__(self) -> None:
        trt.IErrorRecorder.__init__(self)
        self._lock = threading.Lock()
        self._errors: list[tuple[Any, str]] = []
        self._has_overflowed = False

    def take(self, default: str) -> str:
        """Return all that was reported, in one line, and forget it; ``default`` where that is nothing."""
        with self._lock:
            errors = [" ".join(text.split()) for _, text in self._errors]
        self.clear()
        return "; ".join(dict.fromkeys(errors)) or default

    def report_error(self, val: Any, desc: str) -> bool:
        """Take an error; False: whether the call goes on is TensorRT's decision."""
        with self._lock:
            if len(self._errors) < _MAX_ERRORS:
                self._errors.append((val, desc))
            else:
                self._has_overflowed = True
        return False

    def get_num_errors(self) -> int:
        """Return how many there are; the name by which TensorRT calls it."""
        return len(self._errors)

    num_errors = get_num_errors

    def get_error_code(self, index: int) -> Any:
        """Return the code of one."""
        return self._errors[index][0]

    def get_error_desc(self, index: int) -> str:
        """Return the text of one."""
        return self._errors[index][1]

    def has_overflowed(self) -> bool:
        """Whether some were dropped."""
        return self._has_overflowed

    def clear(self) -> None:
        """Forget all."""
        with self._lock:
            self._errors.clear()
            self._has_overflowed = False


logger: Final = _Logger()

_loading: Final = threading.Lock()
_loaded: Final[dict[str, ctypes.CDLL]] = {}
"""Plugin libraries by path; they stay until the process ends, as what they have registered is used from then on."""


def load_libraries(paths: Iterable[str | Path], label: str) -> None:
    """Load plugin libraries that this process has not loaded yet, after TensorRT's own plugins. ``label`` begins messages.

    Raises:
        InvalidArgument: names the library and says why it cannot be loaded.
    """
    with _loading:
        if not _loaded:
            if not trt.init_libnvinfer_plugins(logger, ""):
                log.error(
                    "TensorRT's own plugins could not be registered; models that use them will not load"
                )
            _loaded[""] = ctypes.CDLL(None)
        for path in map(str, paths):
            if path in _loaded:
                continue
            try:
                _loaded[path] = ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)
            except OSError as error:
                raise InvalidArgument(
                    f"{label}: plugin library '{path}' cannot be loaded: {error}"
                ) from error
            log.info("loaded plugin library '%s'", path)
