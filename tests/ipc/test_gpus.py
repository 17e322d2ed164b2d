"""How many GPUs a process may use: what the driver's library says, and what CUDA_VISIBLE_DEVICES makes of it."""

import ctypes

import pytest

from bireme.ipc.gpus import count_visible, num_gpus, read_uuids

UUIDS = ["GPU-11aa", "GPU-11bb", "GPU-22cc"]

VISIBLE = [
    # CUDA_VISIBLE_DEVICES, GPUs that CUDA shows
    (None, 3),
    ("", 0),
    ("-1", 0),
    ("NoDevFiles", 0),
    ("0", 1),
    ("2, 0", 2),
    ("0,1,2", 3),
    ("0,3,1", 1),
    ("0,-1,1", 1),
    ("1,1", 0),
    ("GPU-22cc", 1),
    ("GPU-22", 1),
    ("GPU-11", 0),
    ("GPU-11a,GPU-11b", 2),
    ("GPU-11aa,0", 0),
    ("GPU-99", 0),
    ("MIG-11aa/1/0", 1),
    ("MIG-1,MIG-2", 1),
]


@pytest.mark.parametrize(("visible", "num"), VISIBLE)
def test_gpus_that_cuda_shows(visible, num):
    assert count_visible(UUIDS, visible) == num


@pytest.mark.parametrize("visible", [None, "0", "MIG-1"])
def test_without_gpus_none_is_shown(visible):
    assert count_visible([], visible) == 0


class FakeNvml:
    """The functions of libnvidia-ml that count GPUs, over a list of UUIDs (None: a GPU that does not tell its own)."""

    def __init__(self, uuids, init=0, count=0):
        self.uuids = uuids
        self.init = init
        self.count = count
        self.is_open = False

    def nvmlInit_v2(self):
        self.is_open = self.init == 0
        return self.init

    def nvmlShutdown(self):
        assert self.is_open
        self.is_open = False

    def nvmlDeviceGetCount_v2(self, count):
        assert self.is_open
        count._obj.value = len(self.uuids)
        return self.count

    def nvmlDeviceGetHandleByIndex_v2(self, index, device):
        device._obj.value = index.value + 100
        return 0

    def nvmlDeviceGetUUID(self, device, buffer, size):
        uuid = self.uuids[device.value - 100]
        if uuid is None:
            return 3
        buffer.value = uuid.encode()
        assert size.value == ctypes.sizeof(buffer)
        return 0


def test_the_drivers_library_is_asked_and_closed():
    nvml = FakeNvml(["GPU-11aa", None])

    assert read_uuids(lambda _name: nvml) == ["GPU-11aa", ""]
    assert not nvml.is_open


@pytest.mark.parametrize("nvml", [FakeNvml(UUIDS, init=9), FakeNvml(UUIDS, count=3)])
def test_a_driver_that_fails_has_no_gpus(nvml):
    assert read_uuids(lambda _name: nvml) == []
    assert not nvml.is_open


def test_without_a_driver_there_is_no_gpu():
    def load(name):
        raise OSError(name)

    assert read_uuids(load) == []


def test_this_process_sees_no_gpu_in_tests():
    """`conftest` hides them, so that tests mean the same on every machine."""
    num_gpus.cache_clear()
    assert num_gpus() == 0
