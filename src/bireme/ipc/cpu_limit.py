"""How many CPUs this process may use: its affinity and the limits of its control groups, whichever is lower.

A container with a limit of two CPUs on a 64-core machine still sees 64 cores; a framework that starts a thread for each
is throttled by the kernel for most of its time.

Source: Linux ``Documentation/admin-guide/cgroup-v2.rst`` (cpu.max) and ``scheduler/sched-bwc.rst`` (cfs quota).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import Final

ReadText = Callable[[str], str | None]
"""Returns the text of the file at a path, or None when there is none to read."""

_ROOT: Final = PurePosixPath("/sys/fs/cgroup")
# Where version 1 mounts its cpu controller, and where a mixed system mounts version 2.
_V1_MOUNTS: Final = (_ROOT / "cpu", _ROOT / "cpu,cpuacct")
_V2_MOUNTS: Final = (_ROOT, _ROOT / "unified")


def cpu_limit() -> int:
    """Return how many CPUs this process may use at once; at least 1."""
    return compute_cpu_limit(_num_affine_cpus(), _read_text)


def compute_cpu_limit(num_affine_cpus: int, read_text: ReadText) -> int:
    """Return the limit that follows from the affinity and from the control group files that ``read_text`` finds.

    A limit of 2.5 CPUs counts as 2: a third thread would be throttled half of the time, and the others with it.
    """
    quotas = list(_quotas(read_text))
    return max(1, min([num_affine_cpus, *(int(quota) for quota in quotas)]))


def _quotas(read_text: ReadText) -> Iterator[float]:
    """Yield the limits, in CPUs, of this process's control groups and of the groups around them."""
    for line in (read_text("/proc/self/cgroup") or "").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if not controllers:
            yield from _quotas_below(_V2_MOUNTS, path, read_text, _quota_v2)
        elif "cpu" in controllers.split(","):
            yield from _quotas_below(_V1_MOUNTS, path, read_text, _quota_v1)


def _quotas_below(
    mounts: tuple[PurePosixPath, ...],
    path: str,
    read_text: ReadText,
    quota: Callable[[PurePosixPath, ReadText], float | None],
) -> Iterator[float]:
    """Yield the limits along ``path``. Inside a container the path may not exist; its root then holds the limit."""
    group = PurePosixPath(path.lstrip("/"))
    for mount in mounts:
        for part in (group, *group.parents):
            found = quota(mount / part, read_text)
            if found is not None:
                yield found


def _quota_v2(folder: PurePosixPath, read_text: ReadText) -> float | None:
    """Return the limit of a version 2 group: ``cpu.max`` holds "<quota or max> <period>", in microseconds."""
    fields = (read_text(str(folder / "cpu.max")) or "").split()
    return _ratio(fields[0], fields[1]) if len(fields) == 2 else None


def _quota_v1(folder: PurePosixPath, read_text: ReadText) -> float | None:
    """Return the limit of a version 1 group; a quota of -1 means none."""
    quota = read_text(str(folder / "cpu.cfs_quota_us"))
    period = read_text(str(folder / "cpu.cfs_period_us"))
    return _ratio(quota, period) if quota and period else None


def _ratio(quota: str, period: str) -> float | None:
    try:
        ratio = int(quota) / int(period)
    except (ValueError, ZeroDivisionError):  # "max", or a file this kernel writes otherwise
        return None
    return ratio if ratio > 0 else None


def _num_affine_cpus() -> int:
    # macOS and Windows have no affinity to ask for.
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity is not None else os.cpu_count() or 1


def _read_text(path: str) -> str | None:
    try:
        return Path(path).read_text(encoding="ascii")
    except (OSError, ValueError):
        return None
