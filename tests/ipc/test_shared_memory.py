"""Shared memory regions: what can be registered, what stays mapped and for how long, and objects that lose memory."""

from __future__ import annotations

import errno
import gc
import mmap
import os
import uuid
from pathlib import Path

import numpy as np
import pytest

from bireme.ipc import shared_memory
from bireme.ipc.shared_memory import RegionMapping, SharedMemoryRegions, SystemRegion
from bireme.types import (
    AlreadyExists,
    BiremeError,
    Internal,
    InvalidArgument,
    NotFound,
    Unavailable,
    Unsupported,
)
from bireme.wire.regions import Place
from shm_objects import ShmObjects

DISABLED = "Client shared memory is disabled. Start the server with '--allow-client-shm=true' to enable."
HANDLE = bytes(64)
PAGE = mmap.ALLOCATIONGRANULARITY


def num_descriptors() -> int:
    gc.collect()  # what earlier tests left
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.fixture
def make_shm():
    with ShmObjects() as objects:
        yield objects.make


@pytest.fixture
def regions():
    return SharedMemoryRegions(is_allowed=True)


def error_of(kind: type[BiremeError], call, *args) -> str:
    with pytest.raises(kind) as caught:
        call(*args)
    assert type(caught.value) is kind
    return caught.value.message


# What is registered


def test_both_sides_see_the_same_bytes(regions, make_shm):
    shm = make_shm(100)
    regions.register_system("r", shm.key, 0, 100)
    shm.memory[10:13] = b"abc"
    view = regions.slice("r", 10, 4)
    view[3:] = b"d"

    assert bytes(view) == b"abcd"
    assert shm.memory[10:14] == b"abcd"


@pytest.mark.parametrize("offset", [0, 1, 64, PAGE - 1, PAGE, PAGE + 8, 3 * PAGE])
def test_offsets_need_not_be_those_of_pages(regions, make_shm, offset):
    shm = make_shm(offset + 16)
    regions.register_system("r", shm.key, offset, 16)
    regions.slice("r", 0, 1)[:] = b"a"
    regions.slice("r", 15, 1)[:] = b"z"

    assert shm.memory[offset : offset + 16] == b"a" + bytes(14) + b"z"


@pytest.mark.parametrize("num_slashes", [0, 1, 3])
def test_leading_slashes_of_a_key_make_no_difference(regions, make_shm, num_slashes):
    key = "/" * num_slashes + make_shm().key.lstrip("/")
    regions.register_system("r", key, 0, 8)

    assert regions.system_status() == [SystemRegion("r", key, 0, 8)]


def test_status_lists_all_in_the_order_of_their_names_or_one(regions, make_shm):
    shm = make_shm(64)
    regions.register_system("b", shm.key, 8, 16)
    regions.register_system("a", shm.key, 0, 64)

    assert regions.system_status() == [
        SystemRegion("a", shm.key, 0, 64),
        SystemRegion("b", shm.key, 8, 16),
    ]
    assert regions.system_status("b") == [SystemRegion("b", shm.key, 8, 16)]
    assert len(regions) == 2
    assert repr(regions) == "SharedMemoryRegions(2 regions, allowed)"


def test_an_object_may_be_unlinked_once_it_is_registered(regions, make_shm):
    shm = make_shm(8)
    regions.register_system("r", shm.key, 0, 8)
    shm.unlink()
    shm.memory[:3] = b"yes"

    assert bytes(regions.slice("r", 0, 3)) == b"yes"


# What is refused


@pytest.mark.parametrize("key", ["", "/", "///", "..", "/..", "/.", "a/b", "/../etc/passwd", "/a\0b"])
def test_keys_that_name_no_object_are_refused(regions, key):
    assert (
        error_of(InvalidArgument, regions.register_system, "r", key, 0, 8)
        == f"cannot register shared memory region 'r' - invalid shm key '{key}'"
    )


@pytest.mark.parametrize("slashes", ["", "/", "//"])
def test_keys_of_a_servers_own_memory_are_refused(regions, slashes):
    key = f"{slashes}triton_python_backend_shm_region_17"

    assert error_of(InvalidArgument, regions.register_system, "r", key, 0, 8) == (
        f"cannot register shared memory region 'r' with key '{key}' as the key contains the reserved prefix "
        f"'triton_python_backend_shm_region_'"
    )


@pytest.mark.parametrize(
    ("offset", "byte_size"),
    [(0, 101), (100, 1), (50, 51), (1 << 63, 1 << 63), (0, (1 << 64) - 1), (0, 0), (-1, 8), (0, -8)],
)
def test_ranges_outside_the_object_are_refused(regions, make_shm, offset, byte_size):
    shm = make_shm(100)
    before = num_descriptors()

    assert error_of(InvalidArgument, regions.register_system, "r", shm.key, offset, byte_size) == (
        f"failed to register shared memory region 'r': invalid args: offset {offset} and byte_size {byte_size}, "
        f"where object '{shm.key}' has 100 bytes"
    )
    assert num_descriptors() == before
    assert not shm.is_mapped()


def test_an_unknown_object_is_refused_with_a_hint(regions):
    key = f"/bireme_test_{uuid.uuid4().hex}"

    assert error_of(Internal, regions.register_system, "r", key, 0, 8) == (
        f"Unable to open shared memory region: '{key}': there is no such object here; in containers, client and "
        f"server must share /dev/shm (--ipc)"
    )


@pytest.mark.parametrize("number", [errno.EACCES, errno.EPERM])
def test_objects_of_other_users_are_refused_with_a_hint(regions, monkeypatch, number):
    def deny(path, flags):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(shared_memory._posixshmem, "shm_open", deny)

    assert (
        error_of(Internal, regions.register_system, "r", "/k", 0, 8)
        == "Unable to open shared memory region: '/k': this server's user may not read and write it"
    )


@pytest.mark.parametrize("key", ["k" * 300, "\ud800"])
def test_keys_that_the_system_does_not_take_are_refused(regions, key):
    assert f"Unable to open shared memory region: '{key}': " in error_of(
        Internal, regions.register_system, "r", key, 0, 8
    )


def test_an_object_that_cannot_be_mapped_is_closed(regions, make_shm, monkeypatch):
    shm = make_shm(8)
    before = num_descriptors()

    def refuse(*_, **__):
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    monkeypatch.setattr(RegionMapping, "__new__", refuse)

    assert error_of(InvalidArgument, regions.register_system, "r", shm.key, 0, 8) == (
        "failed to register shared memory region 'r': [Errno 12] Cannot allocate memory"
    )
    assert num_descriptors() == before


def test_a_name_is_taken_once_for_system_and_cuda_regions(regions, make_shm):
    regions.register_system("r", make_shm().key, 0, 8)
    taken = "shared memory region 'r' already in manager"

    assert error_of(AlreadyExists, regions.register_system, "r", make_shm().key, 0, 8) == taken
    assert error_of(AlreadyExists, regions.register_cuda, "r", HANDLE, 0, 8) == taken


def test_regions_leave_descriptors_for_connections(regions, make_shm, monkeypatch):
    monkeypatch.setattr(shared_memory, "_max_regions", lambda: 1)
    shm = make_shm()
    regions.register_system("a", shm.key, 0, 8)

    assert error_of(Unavailable, regions.register_system, "b", shm.key, 0, 8).startswith(
        "failed to register shared memory region 'b': 1 regions are registered, as many as"
    )
    regions.unregister_system("a")
    regions.register_system("b", shm.key, 0, 8)


def test_a_quarter_of_the_descriptors_may_become_regions(monkeypatch):
    import resource

    for limit, expected in ((1024, 256), (2, 1), (resource.RLIM_INFINITY, 1 << 18)):
        monkeypatch.setattr(resource, "getrlimit", lambda _, limit=limit: (limit, limit))
        assert shared_memory._max_regions() == expected


def test_a_region_needs_a_name(regions):
    text = "'region name' is necessary to register {} shared memory region"

    assert error_of(InvalidArgument, regions.register_system, "", "/k", 0, 8) == text.format("system")
    assert error_of(InvalidArgument, regions.register_cuda, "", HANDLE, 0, 8) == text.format("cuda")


def test_a_system_without_shared_memory_says_so(regions, monkeypatch):
    monkeypatch.setattr(shared_memory, "_posixshmem", None)

    assert "not supported on this operating system" in error_of(
        Unsupported, regions.register_system, "r", "/k", 0, 8
    )


def test_while_not_allowed_only_status_works(make_shm):
    regions = SharedMemoryRegions(is_allowed=False)
    calls = [
        (regions.register_system, "r", make_shm().key, 0, 8),
        (regions.register_cuda, "r", HANDLE, 0, 8),
        (regions.unregister_system, "r"),
        (regions.unregister_system,),
        (regions.unregister_cuda, "r"),
        (regions.unregister_cuda,),
    ]

    for call, *args in calls:
        assert error_of(Unsupported, call, *args) == DISABLED
    assert regions.system_status() == regions.cuda_status() == []
    assert repr(regions) == "SharedMemoryRegions(0 regions, not allowed)"


# CUDA


def test_cuda_regions_are_refused_without_gpu_support(regions):
    assert (
        error_of(InvalidArgument, regions.register_cuda, "r", HANDLE, 0, 8)
        == "failed to register CUDA shared memory region: 'r', GPUs not supported"
    )
    assert regions.cuda_status() == []
    regions.unregister_cuda("r")
    regions.unregister_cuda()


@pytest.mark.parametrize("size", [0, 63, 65])
def test_a_cuda_handle_has_64_bytes(regions, size):
    assert error_of(InvalidArgument, regions.register_cuda, "r", bytes(size), 0, 8) == (
        f"'raw_handle' must be a valid base64 encoded cudaIpcMemHandle_t: expected 64 bytes, found {size}"
    )


def test_status_of_an_unknown_name_or_of_the_other_kind_is_not_found(regions, make_shm):
    regions.register_system("r", make_shm().key, 0, 8)

    assert error_of(NotFound, regions.system_status, "x") == "Unable to find system shared memory region: 'x'"
    assert error_of(NotFound, regions.cuda_status, "x") == "Unable to find cuda shared memory region: 'x'"
    assert error_of(NotFound, regions.cuda_status, "r") == (
        "The region named 'r' is registered as system shared memory, not CUDA shared memory"
    )
    assert regions.cuda_status() == []


# Slices


@pytest.mark.parametrize(
    ("offset", "byte_size", "text"),
    [
        (16, 0, "Invalid offset for shared memory region: 'r'"),
        (1 << 64, 1, "Invalid offset for shared memory region: 'r'"),
        (-1, 1, "Invalid offset for shared memory region: 'r'"),
        (0, 17, "Invalid offset + byte size for shared memory region: 'r'"),
        (15, 2, "Invalid offset + byte size for shared memory region: 'r'"),
        (8, (1 << 64) - 1, "Invalid offset + byte size for shared memory region: 'r'"),
        (8, -1, "Invalid offset + byte size for shared memory region: 'r'"),
    ],
)
def test_slices_outside_the_region_are_refused(regions, make_shm, offset, byte_size, text):
    regions.register_system("r", make_shm(100).key, 8, 16)

    assert error_of(InvalidArgument, regions.slice, "r", offset, byte_size) == text


@pytest.mark.parametrize(("offset", "byte_size"), [(0, 16), (0, 0), (15, 0), (15, 1)])
def test_slices_up_to_the_region_s_end_are_given(regions, make_shm, offset, byte_size):
    regions.register_system("r", make_shm(100).key, 8, 16)

    assert len(regions.slice("r", offset, byte_size)) == byte_size


def test_slices_of_an_unknown_region_are_not_found(regions):
    assert error_of(NotFound, regions.slice, "r", 0, 1) == "Unable to find shared memory region: 'r'"


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        (Place("a", 0, 8), Place("a", 0, 8), True),
        (Place("a", 0, 8), Place("a", 8, 8), False),
        (Place("a", 0, 9), Place("a", 8, 8), True),
        (Place("a", 10, 8), Place("b", 0, 8), True),
        (Place("a", 0, 10), Place("b", 0, 8), False),
        (Place("b", 0, 8), Place("a", 17, 1), True),
        (Place("b", 0, 8), Place("a", 18, 1), False),
        (Place("a", 0, 8), Place("other", 0, 8), False),
    ],
)
def test_places_overlap_by_whatever_names_their_memory_is_known(regions, make_shm, first, second, expected):
    shm = make_shm(100)
    regions.register_system("a", shm.key, 0, 100)
    regions.register_system("b", shm.key.lstrip("/"), 10, 90)
    regions.register_system("other", make_shm(100).key, 0, 100)

    assert regions.overlap(first, second) == regions.overlap(second, first) == expected


# Lifetime


def test_unregistering_gives_memory_and_descriptors_back(regions, make_shm):
    shm = make_shm()
    before = num_descriptors()
    regions.register_system("r", shm.key, 0, 8)
    assert shm.is_mapped()
    regions.unregister_system("r")

    assert not shm.is_mapped()
    assert num_descriptors() == before


def test_memory_in_use_outlives_its_registration_and_not_its_use(regions, make_shm):
    shm = make_shm()
    before = num_descriptors()
    regions.register_system("r", shm.key, 0, 64)
    array = np.ndarray((8,), np.float64, regions.slice("r", 0, 64))
    rows = array[2:]
    del array
    regions.unregister_system("r")

    assert regions.system_status() == []
    assert error_of(NotFound, regions.slice, "r", 0, 1) == "Unable to find shared memory region: 'r'"
    assert shm.is_mapped()
    rows[0] = 5.0
    assert np.frombuffer(shm.memory, np.float64, 8)[2] == 5.0
    del rows
    assert not shm.is_mapped()
    assert num_descriptors() == before


def test_a_name_is_free_again_at_once(regions, make_shm):
    first, second = make_shm(8), make_shm(8)
    regions.register_system("r", first.key, 0, 8)
    held = regions.slice("r", 0, 1)
    regions.unregister_system("r")
    regions.register_system("r", second.key, 0, 8)
    regions.slice("r", 0, 1)[:] = b"2"
    held[:] = b"1"

    assert (first.memory[:1], second.memory[:1]) == (b"1", b"2")


def test_all_regions_can_be_unregistered_and_unknown_names_are_no_error(regions, make_shm):
    shm = make_shm()
    regions.register_system("a", shm.key, 0, 8)
    regions.register_system("b", shm.key, 0, 8)
    regions.unregister_system("x")
    regions.unregister_cuda("a")
    regions.unregister_cuda()
    assert len(regions) == 2
    regions.unregister_system()

    assert regions.system_status() == []
    assert not shm.is_mapped()


def test_closing_forgets_all(make_shm, regions):
    shm = make_shm()
    regions.register_system("a", shm.key, 0, 8)
    regions.close()

    assert not shm.is_mapped()


# Objects that lose memory


def test_a_shrunk_object_is_refused_instead_of_read(regions, make_shm):
    shm = make_shm(4 * PAGE)
    regions.register_system("r", shm.key, 0, 4 * PAGE)
    view = regions.slice("r", 3 * PAGE, 8)
    assert view.obj.is_intact
    os.ftruncate(shm.fd, PAGE)

    assert not view.obj.is_intact
    assert error_of(InvalidArgument, regions.slice, "r", 3 * PAGE, 8) == (
        f"shared memory region 'r' has lost memory: object '{shm.key}' has {PAGE} bytes, and was registered up to byte "
        f"{4 * PAGE}; unregister the region and register it again"
    )


def test_a_grown_object_stays_usable(regions, make_shm):
    shm = make_shm(8)
    regions.register_system("r", shm.key, 0, 8)
    os.ftruncate(shm.fd, PAGE)

    assert bytes(regions.slice("r", 0, 8)) == bytes(8)


def test_only_what_is_used_takes_memory(regions, make_shm):
    shm = make_shm(64 * PAGE)
    regions.register_system("r", shm.key, 0, 64 * PAGE)
    assert os.fstat(shm.fd).st_blocks == 0
    regions.slice("r", 2 * PAGE, 2 * PAGE)

    assert os.fstat(shm.fd).st_blocks * 512 == 2 * PAGE


def test_what_is_reserved_once_is_not_reserved_again(regions, make_shm, monkeypatch):
    calls = []
    monkeypatch.setattr(os, "posix_fallocate", lambda _, start, size: calls.append((start, size)))
    regions.register_system("r", make_shm(1000).key, 100, 900)
    for offset, byte_size in (
        *((50, 50), (60, 10), (50, 50), (0, 10)),
        *((200, 100), (5, 80), (0, 100), (250, 50), (100, 100), (0, 300)),
    ):
        regions.slice("r", offset, byte_size)

    assert calls == [(150, 50), (100, 10), (300, 100), (105, 80), (200, 100)]


def test_many_parts_of_one_region_take_bounded_notes(regions, make_shm):
    regions.register_system("r", make_shm(4000).key, 0, 4000)
    for offset in range(0, 4000, 8):
        view = regions.slice("r", offset, 4)

    assert len(view.obj._reserved) == shared_memory._MAX_PARTS


def test_a_full_file_system_is_an_error(regions, make_shm, monkeypatch):
    def refuse(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    shm = make_shm(100)
    regions.register_system("r", shm.key, 0, 100)
    monkeypatch.setattr(os, "posix_fallocate", refuse)

    assert error_of(Unavailable, regions.slice, "r", 20, 8) == (
        f"shared memory region 'r': no memory for 8 bytes at offset 20 of object '{shm.key}': No space left on device; "
        f"in containers, /dev/shm may be too small (--shm-size)"
    )
    monkeypatch.undo()
    assert len(regions.slice("r", 20, 8)) == 8


def test_a_system_that_cannot_reserve_goes_without(regions, make_shm, monkeypatch):
    monkeypatch.delattr(os, "posix_fallocate")
    regions.register_system("r", make_shm(8).key, 0, 8)

    assert len(regions.slice("r", 0, 8)) == 8
