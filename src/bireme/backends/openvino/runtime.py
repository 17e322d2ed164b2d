"""The one place that imports openvino: without its telemetry.

``import openvino`` alone sends an event to Google Analytics: its converter, which nothing here uses, makes a client of the
package ``openvino_telemetry`` and an identifier in the home directory, and asks nobody. Where that package cannot be
imported the converter falls back to a stub; so it cannot be, for as long as openvino is imported.
"""

from __future__ import annotations

import sys
from typing import Any, Final

from bireme.telemetry.log import get_logger

_TELEMETRY: Final = "openvino_telemetry"

log: Final = get_logger("bireme.backends.openvino")


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


ov: Final = _import_openvino()
