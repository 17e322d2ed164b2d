"""FakeCuda: the CUDA runtime as ``cuda.bindings.runtime`` shows it, over numpy memory.

What is queued on a stream is done when the stream is synchronised and not before, so that whoever reads too early sees old bytes; memory
of the device has addresses that nobody can read by accident; what the real runtime leaves undefined is a fault, which the tests' fixture
reports. Copies and waits are counted.
"""

from __future__ import annotations

import ctypes
import enum
import threading
from types import SimpleNamespace

import numpy as np

_DEVICE_BASE = 0x7F00_0000_0000


Error = enum.Enum(
    "cudaError_t",
    {
        "cudaSuccess": 0,
        "cudaErrorInvalidValue": 1,
        "cudaErrorMemoryAllocation": 2,
        "cudaErrorNoDevice": 100,
        "cudaErrorInvalidDevice": 101,
        "cudaErrorInvalidResourceHandle": 400,
        "cudaErrorIllegalAddress": 700,
        "cudaErrorStreamCaptureUnsupported": 900,
        "cudaErrorStreamCaptureInvalidated": 901,
    },
)

TEXTS = {
    Error.cudaErrorMemoryAllocation: b"out of memory",
    Error.cudaErrorInvalidDevice: b"invalid device ordinal",
    Error.cudaErrorIllegalAddress: b"an illegal memory access was encountered",
}
OK = Error.cudaSuccess


class Handle:
    """A cudaStream_t, cudaGraph_t or cudaGraphExec_t; its number is had by `get_cuda_native_handle` alone."""

    def __init__(self, value):
        self.value = value


def get_cuda_native_handle(handle):
    return handle.value


class FakeStream:
    def __init__(self, device, priority):
        self.device = device
        self.priority = priority
        self.pending = []
        self.capture = None
        self.is_capture_broken = False
        self.failure = None


class FakeCuda:
    """One machine with GPUs, by their compute capabilities."""

    def __init__(self, *capabilities, memory=1 << 30):
        self.capabilities = capabilities
        self.memory_limit = memory
        self._thread = threading.local()
        self._lock = threading.RLock()
        self._next = _DEVICE_BASE
        self._handles = 0x1000
        self.device_memory = {}
        """address -> (device, bytes)"""
        self.host_memory = {}
        """address -> ctypes buffer"""
        self.streams = {}
        self.graphs = {}
        self.executables = {}
        self.faults = []
        self.copies_in = []
        """Sizes of copies to devices, and below from them."""
        self.copies_out = []
        self.num_waits = 0
        self.num_launches = 0
        self.others_waited_for = []
        self.runtime = self._make_runtime()

    def _make_runtime(self):
        names = [name for name in dir(self) if name.startswith("cuda")]
        return SimpleNamespace(
            **{name: getattr(self, name) for name in names},
            cudaError_t=Error,
            cudaStreamNonBlocking=1,
            cudaMemcpyKind=enum.Enum("cudaMemcpyKind", "cudaMemcpyHostToDevice cudaMemcpyDeviceToHost"),
            cudaMemoryType=enum.Enum(
                "cudaMemoryType", "cudaMemoryTypeHost cudaMemoryTypeDevice cudaMemoryTypeManaged"
            ),
            cudaStreamCaptureMode=enum.Enum("Mode", "cudaStreamCaptureModeThreadLocal"),
            cudaDeviceAttr=enum.Enum(
                "cudaDeviceAttr", "cudaDevAttrComputeCapabilityMajor cudaDevAttrComputeCapabilityMinor"
            ),
        )

    # --- what tests ask ---

    @property
    def device(self):
        return getattr(self._thread, "device", 0)

    def used(self, device):
        return sum(len(memory) for where, memory in self.device_memory.values() if where == device)

    def leaks(self):
        return {
            kind: len(things)
            for kind, things in (
                ("device memory", self.device_memory),
                ("host memory", self.host_memory),
                ("streams", self.streams),
                ("graphs", self.graphs),
                ("graph executables", self.executables),
            )
            if things
        }

    def fault(self, text):
        self.faults.append(text)
        return Error.cudaErrorInvalidValue

    def memory_at(self, address, nbytes, device=None):
        """The bytes of the device at an address; what lies outside of any allocation is a fault."""
        with self._lock:
            for start, (where, memory) in self.device_memory.items():
                if start <= address and address + nbytes <= start + len(memory) and device in {None, where}:
                    return memory[address - start : address - start + nbytes]
        self.fault(f"device memory at {address:#x}, {nbytes} bytes, is not allocated on device {device}")
        return np.zeros(nbytes, np.uint8)

    def host_at(self, address, nbytes):
        with self._lock:
            for start, buffer in self.host_memory.items():
                if start <= address and address + nbytes <= start + len(buffer):
                    return np.frombuffer((ctypes.c_uint8 * nbytes).from_address(address), np.uint8)
        self.fault(f"host memory at {address:#x}, {nbytes} bytes, is not page-locked")
        return np.zeros(nbytes, np.uint8)

    def stream_of(self, handle):
        stream = self.streams.get(handle.value if isinstance(handle, Handle) else handle)
        if stream is None:
            self.fault("there is no such stream")
        return stream

    def enqueue(self, stream, work):
        if stream.capture is not None:
            stream.capture.append(work)
        else:
            stream.pending.append(work)

    def drain(self, stream):
        pending, stream.pending = stream.pending, []
        for work in pending:
            failure = work()
            if failure is not None:
                stream.failure = failure

    def _handle(self):
        self._handles += 16
        return Handle(self._handles)

    def _breaks_capture(self):
        """Whether this thread may not allocate or wait now, as it records a graph."""
        capturing = [stream for stream in self.streams.values() if stream.capture is not None]
        for stream in capturing:
            stream.is_capture_broken = True
        return bool(capturing)

    # --- the runtime's functions ---

    def cudaGetErrorString(self, error):
        return OK, TEXTS.get(error, error.name.encode())

    def cudaGetLastError(self):
        return (OK,)

    def cudaSetDevice(self, device):
        if not 0 <= device < len(self.capabilities):
            return (Error.cudaErrorInvalidDevice,)
        self._thread.device = device
        return (OK,)

    def cudaDeviceGetAttribute(self, attribute, device):
        major, minor = map(int, self.capabilities[device].split("."))
        return OK, major if attribute.name.endswith("Major") else minor

    def cudaDeviceGetStreamPriorityRange(self):
        return OK, 0, -5

    def cudaMalloc(self, nbytes):
        with self._lock:
            if self._breaks_capture():
                return Error.cudaErrorStreamCaptureUnsupported, None
            if self.used(self.device) + nbytes > self.memory_limit:
                return Error.cudaErrorMemoryAllocation, None
            address = self._next
            self._next += -(-nbytes // 256) * 256 + 256
            self.device_memory[address] = (self.device, np.full(nbytes, 0xAB, np.uint8))
            return OK, address

    def cudaFree(self, address):
        with self._lock:
            for stream in self.streams.values():  # it waits for the device
                if stream.device == self.device and stream.capture is None:
                    self.drain(stream)
            if address and self.device_memory.pop(address, None) is None:
                return (self.fault(f"cudaFree of {address:#x}, which is not allocated"),)
            return (OK,)

    def cudaMallocHost(self, nbytes):
        buffer = (ctypes.c_uint8 * nbytes)(*[0xCD] * min(nbytes, 64))
        address = ctypes.addressof(buffer)
        self.host_memory[address] = buffer
        return OK, address

    def cudaFreeHost(self, address):
        if self.host_memory.pop(address, None) is None:
            return (self.fault(f"cudaFreeHost of {address:#x}, which is not allocated"),)
        return (OK,)

    def cudaPointerGetAttributes(self, address):
        for start, (device, memory) in self.device_memory.items():
            if start <= address < start + len(memory):
                return OK, SimpleNamespace(
                    type=self.runtime.cudaMemoryType.cudaMemoryTypeDevice, device=device
                )
        return OK, SimpleNamespace(type=self.runtime.cudaMemoryType.cudaMemoryTypeHost, device=-2)

    def cudaStreamCreateWithPriority(self, flags, priority):
        assert flags == 1
        handle = self._handle()
        self.streams[handle.value] = FakeStream(self.device, priority)
        return OK, handle

    def cudaStreamDestroy(self, handle):
        stream = self.stream_of(handle)
        if stream is None:
            return (Error.cudaErrorInvalidResourceHandle,)
        if stream.pending:
            self.fault("a stream is destroyed with work on it")
        del self.streams[handle.value]
        return (OK,)

    def cudaStreamSynchronize(self, handle):
        if isinstance(handle, int):
            self.others_waited_for.append(handle)
            return (OK,)
        stream = self.stream_of(handle)
        self.num_waits += 1
        if stream.capture is not None:
            stream.is_capture_broken = True
            return (Error.cudaErrorStreamCaptureUnsupported,)
        self.drain(stream)
        failure, stream.failure = stream.failure, None
        return (failure or OK,)

    def cudaMemcpyAsync(self, target, source, nbytes, kind, handle):
        stream = self.stream_of(handle)
        if kind.name == "cudaMemcpyHostToDevice":
            self.copies_in.append(nbytes)
            self.memory_at(target, nbytes, stream.device)
            host = self.host_at(source, nbytes)

            def work():
                self.memory_at(target, nbytes, stream.device)[:] = host
        else:
            self.copies_out.append(nbytes)
            self.memory_at(source, nbytes, stream.device)
            host = self.host_at(target, nbytes)

            def work():
                host[:] = self.memory_at(source, nbytes, stream.device)

        self.enqueue(stream, work)
        return (OK,)

    def cudaStreamBeginCapture(self, handle, _mode):
        stream = self.stream_of(handle)
        if stream.capture is not None:
            return (Error.cudaErrorStreamCaptureUnsupported,)
        stream.capture, stream.is_capture_broken = [], False
        return (OK,)

    def cudaStreamEndCapture(self, handle):
        stream = self.stream_of(handle)
        recorded, stream.capture = stream.capture, None
        if stream.is_capture_broken:
            return Error.cudaErrorStreamCaptureInvalidated, None
        graph = self._handle()
        self.graphs[graph.value] = recorded
        return OK, graph

    def cudaGraphInstantiate(self, graph, _flags):
        executable = self._handle()
        self.executables[executable.value] = self.graphs[graph.value]
        return OK, executable

    def cudaGraphDestroy(self, graph):
        if self.graphs.pop(graph.value, None) is None:
            return (self.fault("a graph is destroyed twice"),)
        return (OK,)

    def cudaGraphExecDestroy(self, executable):
        if self.executables.pop(executable.value, None) is None:
            return (self.fault("a graph executable is destroyed twice"),)
        return (OK,)

    def cudaGraphLaunch(self, executable, handle):
        stream = self.stream_of(handle)
        self.num_launches += 1
        for work in self.executables[executable.value]:
            self.enqueue(stream, work)
        return (OK,)
