"""SharedMemoryRegions: named memory of clients, from which requests take their tensors and into which answers go.

A client on the same machine makes a POSIX shared memory object, writes its tensors there and registers it under a name.
Requests then refer to parts of it; only shapes and names travel.

*Lifetime.* A request holds views of the mapping. Unregistering drops the registry's own reference: the name is gone at
once, the memory when the last view is. Nothing is ever closed under a view, and the server creates no object, so it
leaves none behind.

*Objects that lose their memory.* An access to a mapping behind which there's no memory is a SIGBUS, which ends the
process. There are two ways to get there, and a check against each, made on every use of a region (`RegionMapping`):

- The client made the object smaller (a restarted one does, with a new size under the old key). The object's size is
  compared first: 0.7 µs. A client that shrinks its object between this comparison and the end of the access, on purpose
  or by accident, can still end the server; only a copy through the file interface would be safe from it, at five times
  the cost of the tensor's whole way through the server.
- The file system is full: an object has a size, but no memory where nobody has written yet (64 MB in all is a container's
  default). So a part is reserved before its first use.

Source: Triton ``shared_memory_manager.cc``, ``common.cc`` (``ValidateSharedMemoryKey``); spec of HTTP, section 8.
"""

from __future__ import annotations

import errno
import mmap
import os
from importlib import import_module
from typing import Any, Final, NamedTuple

from bireme.types import AlreadyExists, Internal, InvalidArgument, NotFound, Unavailable, Unsupported
from bireme.wire.regions import Place, region_not_found

try:
    _posixshmem: Any = import_module("_posixshmem")
except ImportError:  # Windows
    _posixshmem = None
# A private module, since the standard library's own class takes charge of each object that it opens, and removes it at
# the end. Imported by name because type checkers do not know it.

CUDA_HANDLE_SIZE: Final = 64
"""Bytes of a ``cudaIpcMemHandle_t``."""

_MAX_PARTS = 64
"""Of a mapping, that are remembered as reserved. Reserving one again takes about 0.2 ms a megabyte."""
_RESERVED_PREFIX = "triton_python_backend_shm_region_"
_DISABLED = "Client shared memory is disabled. Start the server with '--allow-client-shm=true' to enable."
_PERMISSION_HINT = "this server's user may not read and write it"
_OPEN_HINTS = {
    errno.ENOENT: "there is no such object here; in containers, client and server must share /dev/shm (--ipc)",
    errno.EACCES: _PERMISSION_HINT,
    errno.EPERM: _PERMISSION_HINT,
}


class SystemRegion(NamedTuple):
    """What a client registered."""

    name: str
    key: str
    offset: int
    byte_size: int


class CudaRegion(NamedTuple):
    """What a client registered of a GPU's memory."""

    name: str
    device_id: int
    byte_size: int


class RegionMapping(mmap.mmap):
    """The mapped part of a shared memory object, with its descriptor. Unmapped and closed when its last view dies."""

    fd: int
    end: int
    """Where the part ends: the size that the object must keep."""
    file: tuple[int, int]
    """Device and number of the object: the same for all mappings of it."""
    _reserved: list[tuple[int, int]]
    """Parts that have memory; no two of them touch."""

    @classmethod
    def attach(cls, fd: int, offset: int, byte_size: int) -> RegionMapping:
        """Map ``byte_size`` bytes (at least 1) of ``fd``, which belongs to the mapping from now on.

        The mapping starts at the page that holds ``offset``.

        Raises:
            OSError, ValueError: it cannot be mapped; ``fd`` is closed.
        """
        start = offset - offset % mmap.ALLOCATIONGRANULARITY
        try:
            mapping = cls(fd, offset + byte_size - start, offset=start)
        except BaseException:
            os.close(fd)
            raise
        mapping.fd = fd
        status = os.fstat(fd)
        mapping.file = (status.st_dev, status.st_ino)
        mapping.end = offset + byte_size
        mapping._reserved = []
        return mapping

    @property
    def is_intact(self) -> bool:
        """Whether the object is still as large as when it was mapped."""
        return self.size() >= self.end

    def reserve(self, start: int, stop: int) -> None:
        """Make sure that the bytes of the object from ``start`` to ``stop`` have memory; zero where nobody has written.

        A part that was reserved before costs nothing.

        Raises:
            OSError: there is no memory left.
        """
        for first, last in self._reserved:
            if first <= start and stop <= last:
                return
        if start == stop:
            return
        if hasattr(os, "posix_fallocate"):  # not on macOS
            os.posix_fallocate(self.fd, start, stop - start)
        apart = [part for part in self._reserved if part[1] < start or stop < part[0]]
        joined = [part for part in self._reserved if part not in apart]
        firsts, lasts = zip((start, stop), *joined, strict=True)
        self._reserved = [*apart, (min(firsts), max(lasts))][-_MAX_PARTS:]

    def __del__(self) -> None:
        """Give the descriptor back; the mapping itself goes with the object."""
        fd = getattr(self, "fd", -1)
        if fd >= 0:
            os.close(fd)


class _MappedRegion(NamedTuple):
    """A registered region and its memory."""

    mapping: RegionMapping
    memory: memoryview
    """Exactly the region."""
    offset: int
    byte_size: int
    system: SystemRegion


class SharedMemoryRegions:
    """The regions of one server by name; system and CUDA regions share the names. Loop thread only."""

    def __init__(self, *, is_allowed: bool) -> None:
        """Start without regions. While not ``is_allowed``, none can be registered."""
        self._is_allowed = is_allowed
        self._regions: dict[str, _MappedRegion] = {}

    def __len__(self) -> int:
        return len(self._regions)

    # At inference

    def slice(self, region: str, offset: int, byte_size: int) -> memoryview:
        """Return a writable view of ``byte_size`` bytes of ``region`` from ``offset`` on; it keeps the memory mapped.

        The view's ``obj`` is the `RegionMapping`: before a later access, see whether it `is_intact`.

        Raises:
            NotFound: there's no such region.
            InvalidArgument: the range is not inside it, or the client has made its object smaller.
            Unavailable: the system has no memory for it.
        """
        found = self._regions.get(region)
        if found is None:
            raise region_not_found(region)
        mapping, memory, start, size, system = found
        stop = offset + byte_size
        if not 0 <= offset < size:
            raise InvalidArgument(f"Invalid offset for shared memory region: '{region}'")
        if not offset <= stop <= size:
            raise InvalidArgument(f"Invalid offset + byte size for shared memory region: '{region}'")
        if mapping.size() < mapping.end:
            raise InvalidArgument(
                f"shared memory region '{region}' has lost memory: object '{system.key}' has {mapping.size()} bytes, and "
                f"was registered up to byte {mapping.end}; unregister the region and register it again"
            )
        try:
            mapping.reserve(start + offset, start + stop)
        except OSError as error:
            raise Unavailable(
                f"shared memory region '{region}': no memory for {byte_size} bytes at offset {offset} of object "
                f"'{system.key}': {error.strerror}; in containers, /dev/shm may be too small (--shm-size)"
            ) from error
        return memory[offset:stop]

    def overlap(self, first: Place, second: Place) -> bool:
        """Whether two places inside registered regions share memory, be it by two names of one object."""
        region, other = self._regions[first.region], self._regions[second.region]
        start, other_start = region.offset + first.offset, other.offset + second.offset
        return (
            region.mapping.file == other.mapping.file
            and start < other_start + second.byte_size
            and other_start < start + first.byte_size
        )

    # System regions

    def register_system(self, name: str, key: str, offset: int, byte_size: int) -> None:
        """Map ``byte_size`` bytes of the POSIX shared memory object ``key`` (a leading slash may be left out).

        Raises:
            Unsupported: client shared memory is not allowed, or this system has none.
            InvalidArgument: there is no name, the key is none of an object, or the range is not inside it.
            AlreadyExists: the name is taken.
            Internal: the object cannot be opened.
            Unavailable: there are as many regions as this process can hold.
        """
        self.check_name(name, "system")
        path = _path_of(name, key)
        self._check_free(name)
        if _posixshmem is None:
            raise Unsupported("system shared memory is not supported on this operating system")
        limit = _max_regions()
        if len(self._regions) >= limit:
            raise Unavailable(
                f"failed to register shared memory region '{name}': {limit} regions are registered, as many as this "
                f"process's limit of open files allows; unregister those that are not used any more"
            )
        mapping = _map(name, key, path, offset, byte_size)
        memory = memoryview(mapping)[len(mapping) - byte_size :]
        system = SystemRegion(name, key, offset, byte_size)
        self._regions[name] = _MappedRegion(mapping, memory, offset, byte_size, system)

    def system_status(self, name: str = "") -> list[SystemRegion]:
        """Return the region ``name``, or all of them in the order of their names.

        Raises:
            NotFound: there's no such region.
        """
        if not name:
            return [region.system for _, region in sorted(self._regions.items())]
        if name not in self._regions:
            raise NotFound(f"Unable to find system shared memory region: '{name}'")
        return [self._regions[name].system]

    def unregister_system(self, name: str = "") -> None:
        """Forget the region ``name``, if there is one, or all; requests in flight keep its memory until they are done.

        Raises:
            Unsupported: client shared memory is not allowed.
        """
        self._check_allowed()
        if name:
            self._regions.pop(name, None)
        else:
            self._regions.clear()

    # CUDA regions: this server has no way to open one, so there are none to find.

    def register_cuda(self, name: str, handle: bytes, device_id: int, byte_size: int) -> None:  # noqa: ARG002
        """Refuse a region of GPU memory, after the checks that come before opening it. ``handle`` is a ``cudaIpcMemHandle_t``.

        Raises:
            Unsupported: client shared memory is not allowed.
            InvalidArgument: there is no name, ``handle`` is of the wrong size; or GPUs are not supported.
            AlreadyExists: the name is taken.
        """
        self.check_name(name, "cuda")
        if len(handle) != CUDA_HANDLE_SIZE:
            raise InvalidArgument(
                f"'raw_handle' must be a valid base64 encoded cudaIpcMemHandle_t: expected {CUDA_HANDLE_SIZE} bytes, "
                f"found {len(handle)}"
            )
        self._check_free(name)
        raise InvalidArgument(f"failed to register CUDA shared memory region: '{name}', GPUs not supported")

    def cuda_status(self, name: str = "") -> list[CudaRegion]:
        """Return the region ``name``, or all of them.

        Raises:
            NotFound: there's no such region, or it's one of system memory.
        """
        if name in self._regions:
            raise NotFound(
                f"The region named '{name}' is registered as system shared memory, not CUDA shared memory"
            )
        if name:
            raise NotFound(f"Unable to find cuda shared memory region: '{name}'")
        return []

    def unregister_cuda(self, name: str = "") -> None:  # noqa: ARG002
        """As `unregister_system`.

        Raises:
            Unsupported: client shared memory is not allowed.
        """
        self._check_allowed()

    def close(self) -> None:
        """Forget all regions; the server has stopped."""
        self._regions.clear()

    def _check_allowed(self) -> None:
        if not self._is_allowed:
            raise Unsupported(_DISABLED)

    def check_name(self, name: str, kind: str) -> None:
        """Check what comes before the rest of a registration: that it's allowed, and that the region has a ``name``.

        Raises:
            Unsupported, InvalidArgument: as `register_system`.
        """
        self._check_allowed()
        if not name:
            raise InvalidArgument(f"'region name' is necessary to register {kind} shared memory region")

    def _check_free(self, name: str) -> None:
        if name in self._regions:
            raise AlreadyExists(f"shared memory region '{name}' already in manager")

    def __repr__(self) -> str:
        state = "allowed" if self._is_allowed else "not allowed"
        return f"SharedMemoryRegions({len(self._regions)} regions, {state})"


def _path_of(name: str, key: str) -> str:
    """Return the object's name as ``shm_open`` wants it.

    Raises:
        InvalidArgument: it would name something else than an object, or one that belongs to a server.
    """
    plain = key.lstrip("/")
    if plain in {"", ".", ".."} or "/" in plain or "\0" in plain:
        raise InvalidArgument(f"cannot register shared memory region '{name}' - invalid shm key '{key}'")
    if plain.startswith(_RESERVED_PREFIX):
        raise InvalidArgument(
            f"cannot register shared memory region '{name}' with key '{key}' as the key contains the reserved prefix "
            f"'{_RESERVED_PREFIX}'"
        )
    return "/" + plain


def _map(name: str, key: str, path: str, offset: int, byte_size: int) -> RegionMapping:
    try:
        fd = _posixshmem.shm_open(path, os.O_RDWR)
    except (OSError, ValueError) as error:
        number = error.errno if isinstance(error, OSError) else None
        hint = _OPEN_HINTS.get(number or 0, str(error))
        raise Internal(f"Unable to open shared memory region: '{key}': {hint}") from None
    object_size = os.fstat(fd).st_size
    if offset < 0 or byte_size < 1 or offset + byte_size > object_size:
        os.close(fd)
        raise InvalidArgument(
            f"failed to register shared memory region '{name}': invalid args: offset {offset} and byte_size {byte_size}, "
            f"where object '{key}' has {object_size} bytes"
        )
    try:
        return RegionMapping.attach(fd, offset, byte_size)
    except (OSError, ValueError) as error:
        raise InvalidArgument(f"failed to register shared memory region '{name}': {error}") from None


def _max_regions() -> int:
    """Return how many regions there may be: each takes two descriptors, and half of all are left to connections."""
    import resource  # not on Windows

    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(1, (limit if limit != resource.RLIM_INFINITY else 1 << 20) // 4)
