"""Every call into CUDA: devices, streams, memory, copies and graphs. Nothing else here knows the CUDA runtime.

The calls let go of the GIL (cuda-bindings 12.9.1 and later), so a thread that waits for the GPU holds up nobody. Addresses, streams
and graphs are plain integers and the library's own handles; who makes one destroys it.

Source: NVIDIA "CUDA Runtime API"; cuda-bindings, module ``cuda.bindings.runtime``.
"""

from __future__ import annotations

from typing import Any, Final

from bireme.types import BackendFailed

try:
    from cuda.bindings import runtime as rt
    from cuda.bindings.utils import get_cuda_native_handle
except ModuleNotFoundError as missing:
    raise ImportError(
        "the package 'cuda-bindings' is not installed, or older than 12.9.1; install it with: pip install cuda-bindings"
    ) from missing

PRIORITIES: Final = ("PRIORITY_DEFAULT", "PRIORITY_MAX", "PRIORITY_MIN")
"""Of ``optimization.priority``, as far as streams have them; any other is the default."""


def use_device(device_id: int) -> None:
    """Let the calling thread's calls be about the device; each thread says so itself.

    Raises:
        BackendFailed: CUDA says why, here as in every function.
    """
    _check(rt.cudaSetDevice(device_id), f"cudaSetDevice({device_id})")


def compute_capability(device_id: int) -> str:
    """Return that of the device, such as ``8.6``."""
    attributes = rt.cudaDeviceAttr
    major, minor = (
        _check(
            rt.cudaDeviceGetAttribute(attribute, device_id), f"cudaDeviceGetAttribute of device {device_id}"
        )
        for attribute in (
            attributes.cudaDevAttrComputeCapabilityMajor,
            attributes.cudaDevAttrComputeCapabilityMinor,
        )
    )
    return f"{major}.{minor}"


def allocate(nbytes: int) -> int:
    """Return the address of so much memory of the device."""
    return int(_check(rt.cudaMalloc(nbytes), f"cudaMalloc of {nbytes} bytes"))


def free(address: int) -> None:
    """Give memory of the device back; waits until the device has finished with it."""
    _check(rt.cudaFree(address), "cudaFree")


def allocate_host(nbytes: int) -> int:
    """Return the address of so much page-locked memory of the host, which the device reads and writes by itself."""
    return int(_check(rt.cudaMallocHost(nbytes), f"cudaMallocHost of {nbytes} bytes"))


def free_host(address: int) -> None:
    """Give page-locked memory back."""
    _check(rt.cudaFreeHost(address), "cudaFreeHost")


def device_of(address: int) -> int:
    """Return the device whose memory the address is of; -1: it is none's."""
    attributes = _check(rt.cudaPointerGetAttributes(address), "cudaPointerGetAttributes")
    kinds = rt.cudaMemoryType
    is_device = attributes.type in (kinds.cudaMemoryTypeDevice, kinds.cudaMemoryTypeManaged)
    return int(attributes.device) if is_device else -1


class Stream:
    """A queue of work for one device. Not for two threads at once."""

    __slots__ = ("_stream", "handle")

    def __init__(self, priority: str = "PRIORITY_DEFAULT") -> None:
        """Make one on the calling thread's device; ``priority`` as in ``optimization.priority``."""
        value = 0
        if priority in {"PRIORITY_MAX", "PRIORITY_MIN"}:
            least, greatest = _check(
                rt.cudaDeviceGetStreamPriorityRange(), "cudaDeviceGetStreamPriorityRange"
            )
            value = greatest if priority == "PRIORITY_MAX" else least
        # It does not wait for the legacy default stream, which other libraries in this process may use.
        flags = rt.cudaStreamNonBlocking
        self._stream = _check(rt.cudaStreamCreateWithPriority(flags, value), "cudaStreamCreateWithPriority")
        self.handle = int(get_cuda_native_handle(self._stream))
        """For TensorRT."""

    def copy_to_device(self, target: int, source: int, nbytes: int) -> None:
        """Begin a copy from page-locked memory; the source must stay as it is until the stream is synchronised."""
        kind = rt.cudaMemcpyKind.cudaMemcpyHostToDevice
        _check(
            rt.cudaMemcpyAsync(target, source, nbytes, kind, self._stream), "cudaMemcpyAsync to the device"
        )

    def copy_to_host(self, target: int, source: int, nbytes: int) -> None:
        """Begin a copy to page-locked memory, which is there when the stream is synchronised."""
        kind = rt.cudaMemcpyKind.cudaMemcpyDeviceToHost
        _check(rt.cudaMemcpyAsync(target, source, nbytes, kind, self._stream), "cudaMemcpyAsync to the host")

    def synchronize(self) -> None:
        """Wait for all that was begun. What failed on the device in the meantime is raised here."""
        _check(rt.cudaStreamSynchronize(self._stream), "cudaStreamSynchronize")

    def begin_capture(self) -> None:
        """Record what this thread begins on the stream from now on, instead of doing it."""
        mode = rt.cudaStreamCaptureMode.cudaStreamCaptureModeThreadLocal
        _check(rt.cudaStreamBeginCapture(self._stream, mode), "cudaStreamBeginCapture")

    def end_capture(self) -> Graph:
        """Return what was recorded."""
        return Graph(_check(rt.cudaStreamEndCapture(self._stream), "cudaStreamEndCapture"))

    def abandon_capture(self) -> None:
        """End a recording that failed. Never raises: the error that made it fail is told already."""
        _, graph = rt.cudaStreamEndCapture(self._stream)
        if graph is not None and int(get_cuda_native_handle(graph)):
            rt.cudaGraphDestroy(graph)
        rt.cudaGetLastError()  # an invalid capture leaves one behind for the next call

    def launch(self, graph: Graph) -> None:
        """Begin all that the graph recorded."""
        _check(rt.cudaGraphLaunch(graph.executable, self._stream), "cudaGraphLaunch")

    def close(self) -> None:
        """Destroy it; nothing runs on it any more."""
        _check(rt.cudaStreamDestroy(self._stream), "cudaStreamDestroy")


class Graph:
    """Recorded work that can be begun again with one call."""

    __slots__ = ("executable",)

    def __init__(self, recorded: Any) -> None:
        """Take over and use up what a capture returned."""
        try:
            self.executable = _check(rt.cudaGraphInstantiate(recorded, 0), "cudaGraphInstantiate")
        finally:
            rt.cudaGraphDestroy(recorded)

    def close(self) -> None:
        """Destroy it; it does not run any more."""
        _check(rt.cudaGraphExecDestroy(self.executable), "cudaGraphExecDestroy")


def wait_for(stream: int) -> None:
    """Wait for a stream of others (``stream`` of ``__cuda_array_interface__``: 1 the legacy default one, 2 the thread's)."""
    _check(rt.cudaStreamSynchronize(stream), "cudaStreamSynchronize of an input's stream")


def _check(result: tuple[Any, ...], what: str) -> Any:
    """Return what a call of the runtime returned beside its status."""
    status, *values = result
    if status != rt.cudaError_t.cudaSuccess:
        _, text = rt.cudaGetErrorString(status)
        reason = text.decode("ascii", "replace") if isinstance(text, bytes) else str(text)
        raise BackendFailed(f"CUDA: {what} failed: {reason} ({status.name})")
    return (values[0] if len(values) == 1 else tuple(values)) if values else None
