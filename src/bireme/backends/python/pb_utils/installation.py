"""Making this package importable by the names that models know."""

from __future__ import annotations

import sys
from typing import Final

_PACKAGE: Final = "bireme.backends.python.pb_utils"


def install() -> None:
    """Have ``import triton_python_backend_utils`` and ``import c_python_backend_utils`` mean this package."""
    for name in ("triton_python_backend_utils", "c_python_backend_utils"):
        sys.modules[name] = sys.modules[_PACKAGE]
