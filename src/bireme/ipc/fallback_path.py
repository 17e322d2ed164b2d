"""Lets a worker take from the server's packages what the environment of its interpreter lacks.

A worker calls `extend_path` before it imports anything that is no part of Bireme or of Python.
"""

from __future__ import annotations

import os
import sys
from typing import Final

VARIABLE: Final = "BIREME_FALLBACK_PATH"
"""The environment variable with the directories, separated as in ``PATH``."""


def extend_path() -> None:
    """Append the directories to ``sys.path``, behind the environment's own."""
    directories = os.environ.pop(VARIABLE, "").split(os.pathsep)
    sys.path.extend(directory for directory in directories if directory and directory not in sys.path)
