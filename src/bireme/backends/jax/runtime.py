"""The one place that imports jax, with no more threads than this process has CPUs.

XLA's thread pool is one for the process and for all its models. Importing jax and compiling a first function take 1 s, 200 MB
and a dozen of threads that mostly sleep.
"""

from __future__ import annotations

import os
from typing import Final

import jax
from jax import export

from bireme.ipc.cpu_limit import cpu_limit
from bireme.telemetry.log import get_logger

__all__ = ["export", "jax", "log"]

log: Final = get_logger("bireme.backends.jax")

_NUM_THREADS: Final = "NPROC"
"""Read by XLA when its CPU client is made: the size of its thread pool."""


def _start() -> None:
    if "JAX_PLATFORMS" not in os.environ:
        # Else a jax with CUDA would look for GPUs, and take three quarters of their memory.
        jax.config.update("jax_platforms", "cpu")
    given = os.environ.get(_NUM_THREADS)
    if given is None:
        os.environ[_NUM_THREADS] = str(cpu_limit())
    try:
        jax.local_devices(backend="cpu")
    finally:
        if given is None:
            del os.environ[_NUM_THREADS]


_start()
