"""OpenVINO's errors, made readable. Pure."""

from __future__ import annotations

import re
from typing import Final

# "Exception from src/inference/src/cpp/core.cpp:117:", "Check 'x' failed at src/x.cpp:84:"
_PLACES: Final = re.compile(r"Exception from \S+:\d+:\s*|Check '.*?' failed at \S+:\d+:\s*", re.DOTALL)


def reason_of(error: Exception) -> str:
    """Return what OpenVINO says in one line, without the places in its source."""
    return " ".join(_PLACES.sub("", str(error)).split()) or type(error).__name__
