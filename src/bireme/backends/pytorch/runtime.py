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
_SPIN_COUNT: Final = "GOMP_SPINCOUNT"
_NUM_SPINS: Final = "10000"
_TRACE: Final = "torch.__"
"""How the loggers begin that are not for reading."""


def _import_torch() -> None:
    """Import it with threads that spin from one operator to the next, some 0.1 ms, and sleep from one run to the next.

    OpenMP's spin for milliseconds by default: at 2 threads and 3 ms between runs of a small model that costs 4.5 ms of CPU time a
    run, and 1.2 ms if they never spin. But a ResNet-50 then takes 88 ms instead of 66; with this it takes 69, of the same CPU time.
    It is read once, while the library is loaded, so processes that this one starts need not inherit it.
    """
    if _WAIT_POLICY in os.environ or _SPIN_COUNT in os.environ:
        return  # it is the operator's choice
    os.environ[_SPIN_COUNT] = _NUM_SPINS
    try:
        import torch  # noqa: F401 - for its effects
    finally:
        del os.environ[_SPIN_COUNT]


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
