"""The one place that imports TensorFlow: quietly, without Keras, and logging through us.

TensorFlow imports all of Keras, and with it scikit-learn where that is installed: a third of the modules, 100 MB and a second
of a start, for functions that no saved graph needs. So Keras is out of reach while TensorFlow is imported, which takes that as
"not installed"; afterwards, whoever wants Keras gets it.
"""

from __future__ import annotations

import logging
import os
import re
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Final

from bireme.backends.library_log import take_records, warnings_taken
from bireme.telemetry.log import get_logger

__all__ = ["describe_error", "log", "tf", "v1"]

log: Final = get_logger("bireme.backends.tensorflow")

# "I0000 00:00:1796050593.014163   21147 port.cc:153] oneDNN custom operations are on. …"
_NATIVE_LINE: Final = re.compile(rb"[IWEF]\d{4} \d\d:\d\d:|WARNING: All log messages before absl::")
_STDERR: Final = 2


class _WithoutKeras:
    """A finder of modules that lets the thread that made it import nothing of Keras."""

    def __init__(self) -> None:
        self._thread = threading.get_ident()

    def find_spec(self, fullname: str, _path: Sequence[str] | None = None, _target: Any = None) -> None:
        """Find nothing, but stop an import of what lies in Keras: TensorFlow only looks whether the package is there."""
        if fullname.startswith("keras.") and threading.get_ident() == self._thread:
            raise ModuleNotFoundError("Keras is not needed", name=fullname)


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep what native code writes to stderr in the meantime for the log; other lines go there afterwards.

    The first lines, that oneDNN is in use, come before TensorFlow has a level of logging.
    """
    with tempfile.TemporaryFile() as captured:
        stderr = os.dup(_STDERR)
        os.dup2(captured.fileno(), _STDERR)
        try:
            yield
        finally:
            os.dup2(stderr, _STDERR)
            captured.seek(0)
            for line in captured:
                if _NATIVE_LINE.match(line):
                    log.debug("%s", line.decode(errors="replace").strip())
                else:
                    os.write(stderr, line)
            os.close(stderr)


@contextmanager
def _without_keras() -> Iterator[None]:
    finder: Any = _WithoutKeras()
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


def _import_tensorflow() -> Any:
    # Errors are raised as well, and reported by whoever asked; an operator who wants them all sets it to 0.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    with _quiet(), _without_keras(), warnings_taken(partial(log.debug, "%s")):
        import tensorflow as tf
    for name in ("tensorflow", "absl"):
        take_records(name, log, error_level=logging.WARNING)
    return tf


tf: Final = _import_tensorflow()
v1: Final = tf.compat.v1
"""Sessions and graphs: they run both what TensorFlow 1 and what TensorFlow 2 saved, with threads of their own."""


def describe_error(error: Exception) -> str:
    """Return in one line what ``error`` says."""
    return " ".join(str(getattr(error, "message", "") or error).split())
