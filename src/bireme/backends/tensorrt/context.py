"""Context: one of TensorRT's execution contexts, for one optimization profile of an engine. Not for two threads at once.

The order of calls is TensorRT's: shapes and the values of shape tensors first, from which the shapes of outputs follow; then an address
for every tensor; then the work is begun on a stream. An output whose shape only the data decide has an allocator instead of an address.

Source: NVIDIA TensorRT Python API, ``IExecutionContext``, ``IOutputAllocator``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from bireme.backends.tensorrt.cuda import Stream
from bireme.backends.tensorrt.engine import DeviceEngine
from bireme.backends.tensorrt.memory import Buffer
from bireme.backends.tensorrt.profiles import Dims, Profile
from bireme.backends.tensorrt.runtime import ErrorRecorder, trt
from bireme.backends.tensorrt.signature import IoTensor
from bireme.types import Array, BackendFailed, datatypes


class OutputAllocator(trt.IOutputAllocator):  # type: ignore[misc] # the library has no types
    """Gives TensorRT room in a `Buffer` for one output, and notes its shape. Called while work is begun."""

    def __init__(self, buffer: Buffer) -> None:
        trt.IOutputAllocator.__init__(self)
        self._buffer = buffer
        self.shape: Dims = ()
        self.failure: Exception | None = None
        """Why there was no room; TensorRT only learns that there is none."""

    def reallocate_output(self, _tensor_name: str, _memory: int, size: int, _alignment: int) -> int:
        """Return an address with room for ``size`` bytes, 0 if there is none. CUDA's alignment is enough for any."""
        try:
            return self._buffer.reserve(size)
        except Exception as error:  # noqa: BLE001 - it must not pass through TensorRT; it is raised after it
            self.failure = error
            return 0

    def reallocate_output_async(
        self, tensor_name: str, memory: int, size: int, alignment: int, _stream: int
    ) -> int:
        """As above: freeing memory waits for whatever still uses it."""
        return self.reallocate_output(tensor_name, memory, size, alignment)

    def notify_shape(self, _tensor_name: str, shape: Iterable[int]) -> None:
        """Note the output's shape."""
        self.shape = tuple(shape)


class Context:
    """An execution context, set to its profile."""

    def __init__(self, engine: DeviceEngine, profile: Profile, strategy: str, stream: Stream) -> None:
        """Make one; its memory for activations is allocated now.

        Raises:
            BackendFailed: TensorRT says why not; as a rule, the device has no memory left.
        """
        self.profile = profile
        self._recorder = ErrorRecorder()
        strategies = trt.ExecutionContextAllocationStrategy
        self._context = engine.engine.create_execution_context(getattr(strategies, strategy))
        if self._context is None:
            reason = engine.recorder.take("it gives no reason; see the log")
            raise BackendFailed(f"TensorRT cannot make an execution context: {reason}")
        self._context.error_recorder = self._recorder
        tensors = engine.info.tensors
        self._dynamic = [t.name for t in tensors if t.is_input and -1 in t.shape]
        self._outputs = [t.name for t in tensors if not t.is_input]
        self._allocators: dict[str, OutputAllocator] = {}
        self._current: tuple[Mapping[str, Dims], Mapping[str, Dims]] | None = None
        self._shapes: dict[str, Dims] = {}
        self._values: dict[str, Array] = {}
        try:
            if profile.index:
                self._do_select(profile.index, stream)
            self._place_values(tensors)
        except BaseException:
            self.close()
            raise

    def _place_values(self, tensors: Iterable[IoTensor]) -> None:
        """Give each shape tensor a place on the host, which stays the same."""
        for tensor in tensors:
            if tensor.is_input and tensor.is_shape and tensor.datatype is not None:
                count = len(self.profile.values[tensor.name].least)
                array = np.zeros(count, datatypes.NUMPY_DTYPES[tensor.datatype])
                self._values[tensor.name] = array
                self.bind(tensor.name, array.ctypes.data)

    def _do_select(self, index: int, stream: Stream) -> None:
        try:
            self._context.set_optimization_profile_async(index, stream.handle)
        except RuntimeError as error:
            raise self._failure(f"cannot select profile {index}", str(error)) from error
        stream.synchronize()

    def set_inputs(self, shapes: Mapping[str, Dims], values: Mapping[str, Dims]) -> dict[str, Dims]:
        """Set the shapes of inputs and the values of shape tensors; return the shapes of the outputs.

        A dimension that only the data decide is -1. The same inputs as before cost nothing.

        Raises:
            BackendFailed: TensorRT says why not.
        """
        if self._current == (shapes, values):
            return self._shapes
        self._current = None
        for name in self._dynamic:
            if not self._context.set_input_shape(name, shapes[name]):
                raise self._failure(f"does not take shape {list(shapes[name])} for input '{name}'")
        for name, numbers in values.items():
            self._values[name][:] = numbers
        try:
            missing = self._context.infer_shapes()
        except RuntimeError as error:
            raise self._failure("cannot tell the shapes of outputs", str(error)) from error
        if missing:
            raise self._failure(f"cannot tell the shapes of outputs without {', '.join(missing)}")
        self._shapes = {name: tuple(self._context.get_tensor_shape(name)) for name in self._outputs}
        self._current = (dict(shapes), dict(values))
        return self._shapes

    def bind(self, name: str, address: int) -> None:
        """Say where a tensor is.

        Raises:
            BackendFailed: TensorRT says why not.
        """
        if not self._context.set_tensor_address(name, address):
            raise self._failure(f"does not take an address for '{name}'")

    def allocate_later(self, name: str, buffer: Buffer) -> None:
        """Let TensorRT ask for room in ``buffer`` for an output as soon as it knows the shape; from now on.

        Raises:
            BackendFailed: TensorRT says why not.
        """
        if name in self._allocators:
            return
        allocator = OutputAllocator(buffer)
        if not self._context.set_output_allocator(name, allocator):
            raise self._failure(f"does not take an allocator for '{name}'")
        self._allocators[name] = allocator

    def allocates(self, name: str) -> bool:
        """Whether `allocate_later` has been said of an output."""
        return name in self._allocators

    def begin(self, stream: Stream) -> None:
        """Begin the work on the stream.

        Raises:
            BackendFailed: TensorRT says why not.
        """
        for allocator in self._allocators.values():
            allocator.failure = None
        if self._context.execute_async_v3(stream.handle):
            return
        failures = [each.failure for each in self._allocators.values() if each.failure is not None]
        raise self._failure("cannot run the engine") from (failures[0] if failures else None)

    def shape_of(self, name: str) -> Dims:
        """Return the shape of an output of the work that was begun."""
        allocator = self._allocators.get(name)
        return self._shapes[name] if allocator is None else allocator.shape

    def close(self) -> None:
        """Give its memory back; nothing runs on it any more."""
        self._context = None
        self._allocators.clear()

    def _failure(self, what: str, reason: str = "it gives no reason; see the log") -> BackendFailed:
        self._current = None
        causes = [str(each.failure) for each in self._allocators.values() if each.failure is not None]
        return BackendFailed(f"TensorRT {what}: {'; '.join([*causes, self._recorder.take(reason)])}")
