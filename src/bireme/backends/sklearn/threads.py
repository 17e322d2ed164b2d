"""ThreadLimit: keeps OpenMP and BLAS, which scikit-learn computes with, from taking a thread for each core."""

from __future__ import annotations

import threading
from typing import Final

from threadpoolctl import threadpool_limits

_lock: Final = threading.Lock()


class ThreadLimit:
    """The limit of one model. BLAS has one for the process, which only ever falls; OpenMP has one for each thread."""

    def __init__(self, num_threads: int) -> None:
        self._num_threads = num_threads
        self._limited = threading.local()

    def apply(self) -> None:
        """Have the calling thread use no more than its share from now on. Once a thread that costs 1 ms, then nothing."""
        if not hasattr(self._limited, "done"):
            self._limited.done = True
            _limit(self._num_threads)


def _limit(num_threads: int) -> None:
    with _lock:
        threadpool_limits(num_threads, "openmp")
        threadpool_limits(_lowest(num_threads), "blas")


_blas_limit: Final = [1 << 30]


def _lowest(num_threads: int) -> int:
    _blas_limit[0] = min(_blas_limit[0], num_threads)
    return _blas_limit[0]
