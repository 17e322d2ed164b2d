"""How many GPUs this process may use, without a framework and without CUDA.

The driver's management library (NVML) counts the GPUs that a container was given; CUDA itself is not asked, since a process that
has initialised it can no longer be forked, and since that takes memory on every GPU. Without the library there is no driver, and
so no GPU.

Source: NVIDIA "NVML API Reference" (nvmlInit_v2, nvmlDeviceGetCount_v2, nvmlDeviceGetUUID); "CUDA C++ Programming Guide", CUDA
environment variables (CUDA_VISIBLE_DEVICES).
"""

from __future__ import annotations

import ctypes
import functools
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any, Final

VISIBLE_DEVICES: Final = "CUDA_VISIBLE_DEVICES"

_LIBRARY: Final = "nvml.dll" if sys.platform == "win32" else "libnvidia-ml.so.1"
_SUCCESS: Final = 0
_UUID_SIZE: Final = 96
"""Bytes of a UUID, its zero byte included (NVML_DEVICE_UUID_V2_BUFFER_SIZE)."""


@functools.cache
def num_gpus() -> int:
    """Return how many GPUs this process may use: those of the driver that ``CUDA_VISIBLE_DEVICES`` names, if it is set.

    Asked once for each process; it takes milliseconds where there is a driver and nothing where there is none.
    """
    return count_visible(read_uuids(), os.environ.get(VISIBLE_DEVICES))


def read_uuids(load_library: Callable[[str], Any] = ctypes.CDLL) -> list[str]:
    """Return the UUIDs of the driver's GPUs, empty without a driver; a GPU that does not tell its own counts as ``""``."""
    try:
        nvml = load_library(_LIBRARY)
    except OSError:
        return []
    if nvml.nvmlInit_v2() != _SUCCESS:
        return []
    try:
        count = ctypes.c_uint()
        if nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)) != _SUCCESS:
            return []
        return [_read_uuid(nvml, index) for index in range(count.value)]
    finally:
        nvml.nvmlShutdown()


def _read_uuid(nvml: Any, index: int) -> str:
    device = ctypes.c_void_p()
    uuid = ctypes.create_string_buffer(_UUID_SIZE)
    found = nvml.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(index), ctypes.byref(device)) == _SUCCESS
    if not found or nvml.nvmlDeviceGetUUID(device, uuid, ctypes.c_uint(_UUID_SIZE)) != _SUCCESS:
        return ""
    return uuid.value.decode("ascii", "replace")


def count_visible(uuids: Sequence[str], visible: str | None) -> int:
    """Return how many of the GPUs with ``uuids`` CUDA shows while ``CUDA_VISIBLE_DEVICES`` is ``visible`` (None: unset).

    It is a list of indices, of UUIDs or of unambiguous beginnings of UUIDs, which ends at the first entry that is none of
    them. With a GPU named twice none is shown. Of slices of GPUs (``MIG-…``) CUDA shows a process one.
    """
    if visible is None or not uuids:
        return len(uuids)
    chosen: list[int] = []
    for entry in map(str.strip, visible.split(",")):
        if entry.startswith("MIG-"):
            return 1
        gpu = _find(entry, uuids)
        if gpu is None:
            break
        chosen.append(gpu)
    return len(chosen) if len(set(chosen)) == len(chosen) else 0


def _find(entry: str, uuids: Sequence[str]) -> int | None:
    if entry.isdecimal():
        return int(entry) if int(entry) < len(uuids) else None
    matches = [
        index for index, uuid in enumerate(uuids) if entry.startswith("GPU-") and uuid.startswith(entry)
    ]
    return matches[0] if len(matches) == 1 else None
