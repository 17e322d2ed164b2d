"""The one place that imports onnxruntime: quiet, without telemetry, and logging through us.

onnxruntime 1.32 starts a telemetry thread and a database in the home directory when it is imported, and writes its
warnings to stderr. A server does neither on its own account.
"""

from __future__ import annotations

import contextlib
import functools
import io
import logging
import os
from typing import Final

# Read by onnxruntime while it is imported; who wants its telemetry sets the variable to 0.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

import onnxruntime as ort

from bireme.telemetry.log import get_logger

__all__ = ["log", "ort", "preload_gpu_libraries"]

log: Final = get_logger("bireme.backends.onnxruntime")

_ERROR: Final = 3

# onnxruntime's severities. Its warnings are about optimisations it could not do: no reason to alarm an operator. Its
# errors are also raised, as a rule, and then reported by whoever asked.
_LEVELS: Final = (logging.DEBUG, logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR)


def _forward(severity: int, _category: str, log_id: str, location: str, message: str) -> None:
    """Hand one record of onnxruntime's to our log; runs on the thread that emits it."""
    log.log(_LEVELS[severity], "%s%s (%s)", f"{log_id}: " if log_id else "", message.strip(), location)


def _route_log() -> None:
    install = getattr(ort, "set_default_logger_callback", None)
    if install is not None:
        install(_forward)
    else:
        # Older versions can only be silenced; what matters is raised besides.
        ort.set_default_logger_severity(_ERROR)


_route_log()


@functools.cache
def preload_gpu_libraries() -> None:
    """Let onnxruntime find CUDA and cuDNN where pip has put them; once. It prints what is missing, which goes into our log."""
    preload = getattr(ort, "preload_dlls", None)
    if preload is None:
        return  # older versions find them beside torch or by the linker's paths
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        preload(directory="")
    for line in printed.getvalue().splitlines():
        log.warning("%s", line)
