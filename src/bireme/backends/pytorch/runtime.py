"""The one place that imports torch: quiet, and logging through us.

Importing torch loads a C++ library of 400 MB and its own OpenMP; that takes 1 to 2 s.
"""

from __future__ import annotations

import logging
import os
from contextlib import AbstractContextManager
from functools import partial
from typing import Final

import numpy as np

from bireme.backends.library_log import take_records, warnings_taken
from bireme.telemetry.log import get_logger

__all__ = ["log", "quiet", "torch"]

log: Final = get_logger("bireme.backends.pytorch")

_WAIT_POLICY: Final = "OMP_WAIT_POLICY"
_TRACE: Final = "torch.__"
"""How the loggers begin that are not for reading."""


def _import_torch() -> None:
    """Import it with threads that sleep when there is nothing for them to do.

    OpenMP's spin by default. At 2 threads and 3 ms between runs that costs 4.5 ms of CPU time a run instead of 1.2 ms. It is
    read once, while the library is loaded, so processes that this one starts need not inherit it.
    """
    chosen = _WAIT_POLICY in os.environ
    os.environ.setdefault(_WAIT_POLICY, "PASSIVE")
    try:
        import torch  # noqa: F401 - for its effects
    finally:
        if not chosen:
            del os.environ[_WAIT_POLICY]


_import_torch()
import torch  # noqa: E402 - see above


def quiet() -> AbstractContextManager[None]:
    """Send the Python warnings of a block to the log; torch has many, about what its users shall write in future."""
    return warnings_taken(partial(log.debug, "%s"))


def _route_log() -> None:
    """Have all of torch's loggers write to ours, unless the operator has asked for torch's own log (``TORCH_LOGS``).

    torch gives some thirty of them a handler each, for stderr.
    """
    if "TORCH_LOGS" in os.environ:
        return
    for name in list(logging.root.manager.loggerDict):
        if name.startswith("torch.") and not name.startswith(_TRACE):
            logger = logging.getLogger(name)
            logger.handlers = []
            logger.propagate = True
    take_records("torch", log)


def _expect_readonly_arrays() -> None:
    """Have torch say now, once and for all, that it cannot protect a read-only array.

    Requests often are read-only memory. Models get it as it is; `bireme.backends.pytorch.instance` watches that they only read.
    """
    array = np.zeros(1, np.uint8)
    array.flags.writeable = False
    with quiet():
        torch.from_numpy(array)


_route_log()
_expect_readonly_arrays()
