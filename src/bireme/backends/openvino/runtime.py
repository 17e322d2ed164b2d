"""The one place that imports openvino: without its telemetry, and with its errors made readable.

``import openvino`` alone sends an event to Google Analytics: its converter, which nothing here uses, makes a client of the
package ``openvino_telemetry`` and an identifier in the home directory, and asks nobody. Where that package cannot be
imported the converter falls back to a stub; so it cannot be, for as long as openvino is imported.
"""

from __future__ import annotations

import re
import sys
from typing import Any, Final

from bireme.telemetry.log import get_logger

_TELEMETRY: Final = "openvino_telemetry"

log: Final = get_logger("bireme.backends.openvino")

# "Exception from src/inference/src/cpp/core.cpp:117:", "Check 'x' failed at src/x.cpp:84:"
_PLACES: Final = re.compile(r"Exception from \S+:\d+:\s*|Check '.*?' failed at \S+:\d+:\s*", re.DOTALL)


def _import_openvino() -> Any:
    hidden = _TELEMETRY not in sys.modules
    if hidden:
        # What the import system takes for "not there".
        sys.modules[_TELEMETRY] = None  # type: ignore[assignment]
    try:
        import openvino
    finally:
        if hidden:
            del sys.modules[_TELEMETRY]
    return openvino


def reason_of(error: Exception) -> str:
    """Return what OpenVINO says in one line, without the places in its source."""
    return " ".join(_PLACES.sub("", str(error)).split()) or type(error).__name__


ov: Final = _import_openvino()
