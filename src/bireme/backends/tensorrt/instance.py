"""TensorRtInstance: a stream, a context for each of its profiles, and buffers that every run uses again.

A run is: inputs are copied into page-locked memory (once, by the CPU) and from there to the device (by the device itself), the engine
runs, outputs go back the same way. All of that is queued on the instance's stream, and there is one wait for the device. An input that
is in the device's memory already (``__cuda_array_interface__``: CuPy, torch, Numba) is not copied at all.

Source: Triton ``instance_state.cc`` (Run, ProcessResponse).
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from math import prod
from typing import Any, Final, NamedTuple

import numpy as np

from bireme.backends.tensorrt import cuda
from bireme.backends.tensorrt.context import Context
from bireme.backends.tensorrt.cuda import Stream
from bireme.backends.tensorrt.engine import DeviceEngine
from bireme.backends.tensorrt.graphs import GraphCache, graph_shapes, why_no_graphs
from bireme.backends.tensorrt.memory import DeviceBuffer, HostBuffer
from bireme.backends.tensorrt.profiles import Dims, choose
from bireme.backends.tensorrt.runtime import log
from bireme.backends.tensorrt.settings import ModelSettings
from bireme.backends.tensorrt.signature import IoTensor
from bireme.config import ModelConfig
from bireme.types import Array, BackendFailed, InvalidArgument, datatypes

_ALIGNMENT: Final = 256
"""Of addresses on the device, as TensorRT demands and CUDA allocates."""
_NO_TARGETS: Final[Mapping[str, memoryview]] = {}


class _Pair(NamedTuple):
    """The two buffers of a tensor."""

    host: HostBuffer
    device: DeviceBuffer


class TensorRtInstance:
    """Runs an engine on its GPU. One run at a time, on whichever thread."""

    may_run_inline: Final = False
    """It waits for the device."""

    def __init__(
        self, engine: DeviceEngine, config: ModelConfig, settings: ModelSettings, profiles: tuple[int, ...]
    ) -> None:
        """Make contexts for the engine's ``profiles``, by index, and capture CUDA graphs if ``settings`` ask for them.

        Raises:
            BackendFailed: the device has no memory left, or TensorRT does not make a context.
        """
        self._engine: DeviceEngine | None = engine
        self._device_id = engine.device_id
        self._batches = config.max_batch_size > 0
        tensors = engine.info.tensors
        self._inputs = [tensor for tensor in tensors if tensor.is_input]
        self._outputs = {tensor.name: tensor for tensor in tensors if not tensor.is_input}
        self._wanted = frozenset(output.name for output in config.output)
        self._dtypes = {t.name: _dtype_of(t) for t in tensors}
        self._others = [profile for profile in engine.info.profiles if profile.index not in profiles]
        self._buffers = {tensor.name: _Pair(HostBuffer(), DeviceBuffer()) for tensor in tensors}
        self._contexts: list[Context] = []
        self._graphs = GraphCache()
        cuda.use_device(self._device_id)
        self._stream = Stream(settings.priority)
        try:
            for index in profiles:
                profile = engine.info.profiles[index]
                self._contexts.append(Context(engine, profile, settings.strategy, self._stream))
            self._profiles = [context.profile for context in self._contexts]
            if settings.uses_graphs:
                self._record_graphs(config, settings)
        except BaseException:
            self.close()
            raise

    def _record_graphs(self, config: ModelConfig, settings: ModelSettings) -> None:
        """Run a batch of zeros for each graph that is to be recorded."""
        reason = why_no_graphs((*self._inputs, *self._outputs.values()))
        if reason:
            log.warning("model '%s': no CUDA graph is recorded for the engine, as %s", config.name, reason)
            return
        if any(spec.graph_lower_bound is not None for spec in settings.graph_specs):
            log.warning(
                "model '%s': graph_lower_bound has no effect: a graph runs batches of exactly its shapes",
                config.name,
            )
        for shapes in graph_shapes(config, settings.graph_specs, self._inputs, self._profiles):
            self._graphs.want((choose(self._profiles, shapes, {}), tuple(shapes.items())))
            self.execute({name: np.zeros(shape, self._dtypes[name]) for name, shape in shapes.items()})

    def execute(self, inputs: dict[str, Array]) -> dict[str, Array]:
        """Run the engine; see `bireme.backends.interface.Instance`.

        Raises:
            InvalidArgument: no profile holds the shapes, or an input is not what the engine takes.
            BackendFailed: TensorRT or CUDA says why it failed.
        """
        return self.execute_into(inputs, _NO_TARGETS)

    def execute_into(self, inputs: dict[str, Array], targets: Mapping[str, memoryview]) -> dict[str, Array]:
        """As `execute`, with outputs in given memory where they fit; see `bireme.backends.interface.ExecuteInto`."""
        engine = self._engine
        if engine is None:
            raise BackendFailed("the instance is closed")
        arrays, values = self._take(inputs)
        shapes = {name: tuple(array.shape) for name, array in arrays.items()}
        position = choose(self._profiles, shapes, values, self._others)
        context = self._contexts[position]
        cuda.use_device(self._device_id)
        try:
            with engine.turn:
                self._upload(context, arrays)
                self._place_outputs(context, context.set_inputs(shapes, values))
                self._begin(context, position, arrays)
                staged = self._download(context)
            self._stream.synchronize()
        except BaseException:
            with suppress(BackendFailed):  # what was begun must not read or write the buffers of the next run
                self._stream.synchronize()
            raise
        batch_size = next(iter(inputs.values())).shape[0] if inputs and self._batches else 0
        return {name: self._give(name, array, batch_size, targets) for name, array in staged.items()}

    def _take(self, inputs: Mapping[str, Array]) -> tuple[dict[str, Any], dict[str, Dims]]:
        """Return the inputs in the engine's shapes, and the values of shape tensors."""
        arrays: dict[str, Any] = {}
        values: dict[str, Dims] = {}
        for tensor in self._inputs:
            array = inputs.get(tensor.name)
            if array is None:
                raise InvalidArgument(f"input '{tensor.name}' is missing; the engine needs all of its inputs")
            if tensor.is_shape:
                values[tensor.name] = self._read_values(tensor, array)
                arrays[tensor.name] = np.empty(tensor.shape, np.bool_)  # it lends its shape alone
            elif hasattr(array, "__cuda_array_interface__"):
                arrays[tensor.name] = _DeviceArray(
                    tensor.name, array, self._dtypes[tensor.name], self._device_id
                )
            else:
                arrays[tensor.name] = array if tensor.shape else array.reshape(())
        return arrays, values

    def _read_values(self, tensor: IoTensor, array: Array) -> Dims:
        """Return what a shape tensor holds; in a batch the requests agree on it, and its size comes first."""
        if not (self._batches and tensor.shape):
            return tuple(array.reshape(-1).tolist())
        rows = array.reshape(array.shape[0], -1)
        if (rows != rows[0]).any():
            raise InvalidArgument(f"the rows of shape tensor '{tensor.name}' differ: a batch has one shape")
        return (len(rows), *rows[0].tolist())

    def _upload(self, context: Context, arrays: Mapping[str, Any]) -> None:
        """Begin to copy the inputs to the device."""
        for tensor in self._inputs:
            name, array = tensor.name, arrays[tensor.name]
            if tensor.is_shape:
                continue
            if isinstance(array, _DeviceArray):
                context.bind(name, array.address or self._buffers[name].device.reserve(0))
                continue
            buffers = self._buffers[name]
            nbytes = array.size * array.dtype.itemsize
            staged = buffers.host.array(array.shape, self._dtypes[name], nbytes)
            np.copyto(staged, array, casting="equiv")
            if tensor.is_on_host:
                context.bind(name, buffers.host.address)
                continue
            context.bind(name, buffers.device.reserve(nbytes))
            if nbytes:
                self._stream.copy_to_device(buffers.device.address, buffers.host.address, nbytes)

    def _place_outputs(self, context: Context, shapes: Mapping[str, Dims]) -> None:
        """Say where outputs go. One whose shape the data decide has an allocator from then on."""
        for name, tensor in self._outputs.items():
            shape = shapes[name]
            host, device = self._buffers[name]
            buffer = host if tensor.is_on_host else device
            if -1 in shape:
                context.allocate_later(name, buffer)
            elif not context.allocates(name):
                context.bind(name, buffer.reserve(prod(shape) * self._dtypes[name].itemsize))

    def _begin(self, context: Context, position: int, arrays: Mapping[str, Any]) -> None:
        """Begin the engine's work, by a graph where there is one."""
        if any(
            isinstance(array, _DeviceArray) for array in arrays.values()
        ):  # at an address of its own each time
            context.begin(self._stream)
            return
        shapes = tuple((name, tuple(array.shape)) for name, array in arrays.items())
        addresses = tuple(pair.device.address for pair in self._buffers.values())
        self._graphs.begin(context, self._stream, (position, shapes), addresses)

    def _download(self, context: Context) -> dict[str, Array]:
        """Begin to copy outputs to the host; the arrays are filled when the stream is synchronised."""
        staged: dict[str, Array] = {}
        for name, tensor in self._outputs.items():
            if name not in self._wanted:
                continue
            host, device = self._buffers[name]
            shape, dtype = context.shape_of(name), self._dtypes[name]
            nbytes = prod(shape) * dtype.itemsize
            staged[name] = host.array(shape, dtype, nbytes)
            if nbytes and not tensor.is_on_host:
                self._stream.copy_to_host(host.address, device.address, nbytes)
        return staged

    def _give(self, name: str, staged: Array, batch_size: int, targets: Mapping[str, memoryview]) -> Array:
        """Return an output of the caller's own: the staging memory belongs to the next run."""
        tensor = self._outputs[name]
        if tensor.is_shape and self._batches and tensor.shape:
            staged = np.broadcast_to(staged[1:], (batch_size, len(staged) - 1))
        elif not staged.shape:
            staged = staged.reshape((1,))
        target = targets.get(name)
        if target is not None and 0 < staged.nbytes <= len(target):
            given: Array = np.ndarray(staged.shape, staged.dtype, target)
            if given.flags.aligned:
                np.copyto(given, staged)
                return given
        return staged.copy()

    def close(self) -> None:
        """Wait for the device and give back all that the instance holds there. Twice is as once."""
        engine, self._engine = self._engine, None
        if engine is None:
            return
        cuda.use_device(self._device_id)
        with suppress(
            BackendFailed
        ):  # a device that has failed gives nothing back in order; go on with the rest
            self._stream.synchronize()
        self._graphs.close()
        for context in self._contexts:
            context.close()
        self._contexts.clear()
        for pair in self._buffers.values():
            pair.host.close()
            pair.device.close()
        self._stream.close()


def _dtype_of(tensor: IoTensor) -> np.dtype[Any]:
    # One that the protocol does not have is never copied to the host; it needs room, a byte for each element.
    return datatypes.NUMPY_DTYPES[tensor.datatype] if tensor.datatype is not None else np.dtype(np.uint8)


class _DeviceArray:
    """An input that lies in the device's memory, by its ``__cuda_array_interface__``. Keeps it alive for the run.

    Source: Numba, "CUDA Array Interface" (version 3).
    """

    __slots__ = ("_owner", "address", "shape")

    def __init__(self, name: str, array: Any, dtype: np.dtype[Any], device_id: int) -> None:
        interface = array.__cuda_array_interface__
        self._owner = array
        self.shape = tuple(interface["shape"])
        self.address = int(interface["data"][0])
        found = np.dtype(interface["typestr"])
        if found != dtype:
            raise InvalidArgument(f"input '{name}' is a device array of {found}; the engine takes {dtype}")
        strides = interface.get("strides")
        if strides is not None and tuple(strides) != _packed_strides(self.shape, dtype.itemsize):
            raise InvalidArgument(f"input '{name}' is a device array with strides; it must be C-contiguous")
        if self.address % _ALIGNMENT:
            raise InvalidArgument(
                f"input '{name}' is a device array at an address that is no multiple of {_ALIGNMENT}"
            )
        found_device = cuda.device_of(self.address) if self.address else device_id
        if found_device != device_id:
            raise InvalidArgument(
                f"input '{name}' is on device {found_device}; the instance runs on GPU {device_id}"
            )
        stream = interface.get("stream")
        if stream is not None:
            cuda.wait_for(stream)


def _packed_strides(shape: Dims, itemsize: int) -> Dims:
    strides: list[int] = []
    for dim in reversed(shape):
        strides.insert(0, itemsize)
        itemsize *= dim
    return tuple(strides)
