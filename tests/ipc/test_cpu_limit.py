"""The CPU limit, from the files of every kind of control group."""

import os

import pytest

from bireme.ipc.cpu_limit import compute_cpu_limit, cpu_limit

V2 = {"/proc/self/cgroup": "0::/\n"}
V2_NESTED = {"/proc/self/cgroup": "0::/kubepods/pod1/app\n"}
V1 = {"/proc/self/cgroup": "12:cpuset:/a\n5:cpu,cpuacct:/docker/abc\n0::/\n"}


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        pytest.param({}, 64, id="no control groups"),
        pytest.param({**V2, "/sys/fs/cgroup/cpu.max": "max 100000\n"}, 64, id="v2 without a limit"),
        pytest.param({**V2, "/sys/fs/cgroup/cpu.max": "200000 100000\n"}, 2, id="v2 container root"),
        pytest.param({**V2, "/sys/fs/cgroup/cpu.max": "250000 100000\n"}, 2, id="a fraction is rounded down"),
        pytest.param({**V2, "/sys/fs/cgroup/cpu.max": "50000 100000\n"}, 1, id="never below one"),
        pytest.param({**V2, "/sys/fs/cgroup/cpu.max": "9900000 100000\n"}, 64, id="affinity is lower"),
        pytest.param(
            {
                **V2_NESTED,
                "/sys/fs/cgroup/kubepods/pod1/app/cpu.max": "max 100000",
                "/sys/fs/cgroup/kubepods/pod1/cpu.max": "300000 100000",
                "/sys/fs/cgroup/kubepods/cpu.max": "800000 100000",
            },
            3,
            id="v2 lowest of the groups around",
        ),
        pytest.param({**V2_NESTED, "/sys/fs/cgroup/cpu.max": "400000 100000"}, 4, id="v2 path outside the container"),
        pytest.param({**V2, "/sys/fs/cgroup/unified/cpu.max": "400000 100000"}, 4, id="v2 beside v1"),
        pytest.param(
            {
                **V1,
                "/sys/fs/cgroup/cpu,cpuacct/docker/abc/cpu.cfs_quota_us": "150000\n",
                "/sys/fs/cgroup/cpu,cpuacct/docker/abc/cpu.cfs_period_us": "50000\n",
            },
            3,
            id="v1",
        ),
        pytest.param(
            {**V1, "/sys/fs/cgroup/cpu/cpu.cfs_quota_us": "200000", "/sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000"},
            2,
            id="v1 container root",
        ),
        pytest.param(
            {**V1, "/sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1", "/sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000"},
            64,
            id="v1 without a limit",
        ),
        pytest.param({**V2, "/sys/fs/cgroup/cpu.max": "banana\n"}, 64, id="unknown form"),
        pytest.param({**V2, "/sys/fs/cgroup/cpu.max": "100000 0\n"}, 64, id="no period"),
        pytest.param({"/proc/self/cgroup": "nonsense\n"}, 64, id="unknown list"),
    ],
)  # fmt: skip
def test_the_limit_is_the_lowest_that_holds(files, expected):
    assert compute_cpu_limit(64, files.get) == expected


def test_this_machine_has_a_limit():
    assert 1 <= cpu_limit() <= (os.cpu_count() or 1)


def test_a_system_without_affinity_counts_its_cpus(monkeypatch):
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)

    assert 1 <= cpu_limit() <= (os.cpu_count() or 1)
