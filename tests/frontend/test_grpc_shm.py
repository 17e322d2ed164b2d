"""gRPC methods of the shared memory extensions."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from bireme.ipc.shared_memory import CudaRegion, SharedMemoryRegions, SystemRegion
from bireme.types import InvalidArgument, NotFound, Unsupported
from grpc_handlers import ask


class FakeRegions:
    """Remembers what it is asked, and answers with given regions."""

    def __init__(self) -> None:
        self.calls = []
        self.regions = []

    def __getattr__(self, name):
        def call(*args):
            self.calls.append((name, *args))
            return self.regions if name.endswith("status") else None

        return call


@pytest.fixture
def regions():
    return FakeRegions()


@pytest.fixture
def server(regions):
    return SimpleNamespace(shared_memory=regions)


@pytest.mark.parametrize(
    ("method", "fields", "call"),
    [
        (
            "SystemSharedMemoryRegister",
            {"name": "r", "key": "/k", "offset": 8, "byte_size": 1 << 40},
            ("register_system", "r", "/k", 8, 1 << 40),
        ),
        (
            "CudaSharedMemoryRegister",
            {"name": "r", "raw_handle": b"\x00\xff" * 32, "device_id": 1, "byte_size": 64},
            ("register_cuda", "r", b"\x00\xff" * 32, 1, 64),
        ),
        ("SystemSharedMemoryUnregister", {"name": "r"}, ("unregister_system", "r")),
        ("SystemSharedMemoryUnregister", {}, ("unregister_system", "")),
        ("CudaSharedMemoryUnregister", {"name": "r"}, ("unregister_cuda", "r")),
        ("CudaSharedMemoryUnregister", {}, ("unregister_cuda", "")),
    ],
)
def test_calls_reach_the_registry(server, regions, method, fields, call):
    ask(server, method, **fields)

    assert regions.calls == [call]


def test_system_status_is_a_map_by_name(server, regions):
    regions.regions = [SystemRegion("a", "/ka", 0, 64), SystemRegion("b", "kb", 16, 1 << 40)]

    reply = ask(server, "SystemSharedMemoryStatus")

    assert {key: (r.name, r.key, r.offset, r.byte_size) for key, r in reply.regions.items()} == {
        "a": ("a", "/ka", 0, 64),
        "b": ("b", "kb", 16, 1 << 40),
    }
    ask(server, "SystemSharedMemoryStatus", name="a")
    assert regions.calls == [("system_status", ""), ("system_status", "a")]


def test_cuda_status_is_a_map_by_name(server, regions):
    regions.regions = [CudaRegion("g", 1, 4096)]

    reply = ask(server, "CudaSharedMemoryStatus", name="g")

    assert {key: (r.name, r.device_id, r.byte_size) for key, r in reply.regions.items()} == {
        "g": ("g", 1, 4096)
    }
    assert regions.calls == [("cuda_status", "g")]


# With the engine's own registry


@pytest.fixture
def real():
    regions = SharedMemoryRegions(is_allowed=True)
    yield SimpleNamespace(shared_memory=regions)
    regions.close()


@pytest.mark.parametrize(
    "method",
    [
        "SystemSharedMemoryRegister",
        "SystemSharedMemoryUnregister",
        "CudaSharedMemoryRegister",
        "CudaSharedMemoryUnregister",
    ],
)
def test_changes_are_refused_unless_they_are_allowed(method):
    server = SimpleNamespace(shared_memory=SharedMemoryRegions(is_allowed=False))

    with pytest.raises(Unsupported, match="Client shared memory is disabled"):
        ask(server, method, name="r")
    assert not ask(server, "SystemSharedMemoryStatus").regions
    assert not ask(server, "CudaSharedMemoryStatus").regions


def test_a_cuda_region_needs_a_gpu(real):
    with pytest.raises(InvalidArgument) as raised:
        ask(real, "CudaSharedMemoryRegister", name="r", raw_handle=bytes(64), byte_size=4)
    assert raised.value.message == (
        "failed to register CUDA shared memory region: 'r', GPUs not supported"
    )  # fmt: skip


def test_an_unknown_region_has_no_status(real):
    with pytest.raises(NotFound, match=r"^Unable to find system shared memory region: 'r'$"):
        ask(real, "SystemSharedMemoryStatus", name="r")
    with pytest.raises(NotFound, match=r"^Unable to find cuda shared memory region: 'r'$"):
        ask(real, "CudaSharedMemoryStatus", name="r")
    ask(real, "SystemSharedMemoryUnregister", name="r")
