"""FakeTensorRt: the Python API of TensorRT 10 and later, as far as the backend uses it, over `FakeCuda`.

A plan is JSON: the versions it was built for, its tensors, its profiles, and the name of one of `NETWORKS`. Calls in the wrong order,
shapes outside of the profile and missing addresses fail as the real ones do: the call returns false or nothing, and the reason goes to
the error recorder and the log. What would crash the real one is a fault of `FakeCuda`.

Source: NVIDIA TensorRT ``python/src/infer/pyCore.cpp``, ``pyFoundationalTypes.cpp`` and the API's documentation.
"""

from __future__ import annotations

import ctypes
import enum
import json
import weakref
from math import prod
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np

VERSION = "10.13.0.35"
WEIGHTS = 4096

DataType = enum.Enum("DataType", "FLOAT HALF BF16 INT8 INT32 INT64 BOOL UINT8 FP8 INT4 FP4 E8M0")
TensorIOMode = enum.Enum("TensorIOMode", "NONE INPUT OUTPUT")
TensorLocation = enum.Enum("TensorLocation", "DEVICE HOST")
TensorFormat = enum.Enum("TensorFormat", "LINEAR CHW2 CHW4 HWC8")
Strategy = enum.Enum("ExecutionContextAllocationStrategy", "STATIC ON_PROFILE_CHANGE USER_MANAGED")

DTYPES = {
    "FLOAT": np.float32,
    "HALF": np.float16,
    "BF16": np.uint16,
    "INT8": np.int8,
    "INT32": np.int32,
    "INT64": np.int64,
    "BOOL": np.bool_,
    "UINT8": np.uint8,
    "FP8": np.uint8,
}


class Network(NamedTuple):
    """What an engine computes."""

    shapes: object
    """(input shapes, values) -> output shapes; -1 where only the data tell."""
    run: object
    """(arrays by name, values) -> output arrays"""


def _same(name):
    return lambda shapes, values: {name: shapes["x"]}


NETWORKS = {
    "double": Network(_same("y"), lambda arrays, values: {"y": arrays["x"] * arrays["x"].dtype.type(2)}),
    "copy": Network(_same("y"), lambda arrays, values: {"y": arrays["x"]}),
    "add": Network(_same("y"), lambda arrays, values: {"y": arrays["x"] + arrays["z"]}),
    "two": Network(
        lambda shapes, values: {"y": shapes["x"], "sum": shapes["x"][:1]},
        lambda arrays, values: {"y": arrays["x"], "sum": arrays["x"].sum(1, dtype=arrays["x"].dtype)},
    ),
    "positive": Network(
        lambda shapes, values: {"y": (-1,)}, lambda arrays, values: {"y": arrays["x"][arrays["x"] > 0]}
    ),
    "resize": Network(
        lambda shapes, values: {"y": values["size"]},
        lambda arrays, values: {"y": np.full(values["size"], arrays["x"].sum(), np.float32)},
    ),
    "measure": Network(
        lambda shapes, values: {"size": (len(shapes["x"]),)},
        lambda arrays, values: {"size": np.array(arrays["x"].shape, np.int64)},
    ),
    "fails": Network(_same("y"), None),
}


class Dims:
    """Sizes that can be iterated and compared with tuples, and are no tuple."""

    def __init__(self, sizes):
        self._sizes = tuple(sizes)

    def __len__(self):
        return len(self._sizes)

    def __getitem__(self, index):
        return self._sizes[index]

    def __eq__(self, other):
        return self._sizes == tuple(other)

    __hash__ = None


class _Base:
    """A class that Python code may extend, if it calls ``__init__`` of it, as pybind11 demands."""

    _is_made = False

    def __init__(self):
        self._is_made = True


class ILogger(_Base):
    INTERNAL_ERROR, ERROR, WARNING, INFO, VERBOSE = range(5)


class IErrorRecorder(_Base):
    pass


class IOutputAllocator(_Base):
    pass


class FakeTensorRt:
    """What a process has of TensorRT: the module, and what was made of it."""

    def __init__(self, cuda, version=VERSION):
        self.cuda = cuda
        self.logger = None
        self.plugins_registered = 0
        self.engines = weakref.WeakSet()
        self.contexts = weakref.WeakSet()
        self.num_engines = 0
        self.strategies = []
        self.num_inferred = 0
        self.module = SimpleNamespace(
            __version__=version,
            ILogger=ILogger,
            IErrorRecorder=IErrorRecorder,
            IOutputAllocator=IOutputAllocator,
            DataType=DataType,
            TensorIOMode=TensorIOMode,
            TensorLocation=TensorLocation,
            TensorFormat=TensorFormat,
            ExecutionContextAllocationStrategy=Strategy,
            Runtime=self._make_runtime,
            init_libnvinfer_plugins=self._init_plugins,
        )

    def _make_runtime(self, logger):
        assert isinstance(logger, ILogger)
        assert logger._is_made
        self.logger = self.logger or logger  # the first one counts for the process
        return Runtime(self)

    def _init_plugins(self, logger, namespace):
        assert isinstance(logger, ILogger)
        assert not namespace
        self.plugins_registered += 1
        return True

    def report(self, recorder, text, severity=ILogger.ERROR):
        self.logger.log(severity, text)
        if recorder is not None:
            assert recorder._is_made
            recorder.report_error(3, text)
            assert recorder.get_num_errors() >= 0


class Runtime:
    def __init__(self, trt):
        self._trt = trt
        self.error_recorder = None
        self.engine_host_code_allowed = False

    def deserialize_cuda_engine(self, plan):
        with memoryview(plan) as view:
            text = bytes(view)
        trt = self._trt
        capability = trt.cuda.capabilities[trt.cuda.device]
        try:
            spec = json.loads(text)
        except ValueError:
            return self._refuse(
                "Serialization assertion magicTagRead == kMAGIC_TAG failed.Magic tag does not match"
            )
        version, compute = spec.get("version", VERSION), spec.get("compute", capability)
        if spec.get("is_compatible"):
            if not self.engine_host_code_allowed:
                return self._refuse("Cannot deserialize: engine host code is not allowed")
        elif version != VERSION:
            return self._refuse(
                f"The engine plan file is not compatible with this version of TensorRT, expecting library version {VERSION} "
                f"got {version}, please rebuild."
            )
        if compute != capability:
            return self._refuse(
                f"The engine plan file is generated on an incompatible device, expecting compute {capability} got compute "
                f"{compute}, please rebuild."
            )
        if "plugin" in spec:
            return self._refuse(f"Cannot find plugin: {spec['plugin']}, version: 1, namespace:.")
        error, address = trt.cuda.cudaMalloc(WEIGHTS)
        if address is None:
            return self._refuse(f"Requested size was {WEIGHTS} bytes. {error.name}")
        trt.logger.log(ILogger.INFO, f"Loaded engine size: {WEIGHTS >> 20} MiB")
        return Engine(trt, spec, address, self.error_recorder)

    def _refuse(self, text):
        self._trt.report(
            self.error_recorder, f"IRuntime::deserializeCudaEngine: Error Code 6: API Usage Error ({text})"
        )


class _Tensor(NamedTuple):
    name: str
    mode: str
    dtype: str
    shape: tuple
    is_shape: bool = False
    location: str = "DEVICE"
    format: str = "LINEAR"


class Engine:
    def __init__(self, trt, spec, address, recorder):
        self._trt = trt
        self._spec = spec
        self._address = address
        self._device = trt.cuda.device
        self.error_recorder = recorder
        tensors = [_Tensor(**{**tensor, "shape": tuple(tensor["shape"])}) for tensor in spec["tensors"]]
        self.tensors = {tensor.name: tensor for tensor in tensors}
        self.profiles = spec.get("profiles", [{}])
        self.network = NETWORKS[spec["network"]]
        trt.engines.add(self)
        trt.num_engines += 1

    def __del__(self):
        cuda = self._trt.cuda
        if any(context.engine is self for context in self._trt.contexts):
            cuda.fault("an engine is destroyed before its contexts")
        device = cuda.device
        cuda.cudaSetDevice(self._device)
        cuda.cudaFree(self._address)
        cuda.cudaSetDevice(device)

    @property
    def num_io_tensors(self):
        return len(self.tensors)

    @property
    def num_optimization_profiles(self):
        return len(self.profiles)

    def get_tensor_name(self, index):
        return list(self.tensors)[index]

    def get_tensor_mode(self, name):
        return TensorIOMode[self.tensors[name].mode]

    def get_tensor_dtype(self, name):
        return DataType[self.tensors[name].dtype]

    def get_tensor_shape(self, name):
        return Dims(self.tensors[name].shape)

    def is_shape_inference_io(self, name):
        return self.tensors[name].is_shape

    def get_tensor_location(self, name):
        return TensorLocation[self.tensors[name].location]

    def get_tensor_format(self, name):
        return TensorFormat[self.tensors[name].format]

    def get_tensor_profile_shape(self, name, profile_index):
        assert self.tensors[name].mode == "INPUT"
        given = self.profiles[profile_index].get(name)
        tensor = self.tensors[name]
        return [Dims(dims) for dims in ([tensor.shape] * 3 if given is None or tensor.is_shape else given)]

    def get_tensor_profile_values(self, profile_index, name):
        if not self.tensors[name].is_shape or self.tensors[name].mode != "INPUT":
            raise RuntimeError("Binding index does not correspond to an input shape tensor.")
        return self.profiles[profile_index][name]

    def create_execution_context(self, strategy=Strategy.STATIC):
        trt = self._trt
        if trt.cuda.device != self._device:
            trt.cuda.fault("a context is made on another device than its engine's")
        trt.strategies.append(strategy.name)
        error, address = trt.cuda.cudaMalloc(1024)
        if address is None:
            trt.report(self.error_recorder, f"Error Code 1: Cuda Runtime ({error.name})")
            return None
        return Context(trt, self, address)


class Context:
    def __init__(self, trt, engine, address):
        self._trt = trt
        self.engine = engine
        self._address = address
        self.error_recorder = engine.error_recorder
        self._profile = 0
        self._shapes = {}
        self._addresses = {}
        self._allocators = {}
        self._outputs = None
        trt.contexts.add(self)

    def __del__(self):
        cuda = self._trt.cuda
        if cuda.device != self.engine._device:
            cuda.fault("a context is destroyed on another device")
        cuda.cudaFree(self._address)

    def _fail(self, text):
        self._trt.report(self.error_recorder, f"IExecutionContext::{text}")
        return False

    def set_optimization_profile_async(self, profile_index, stream_handle):
        assert self._trt.cuda.stream_of(stream_handle) is not None
        if not 0 <= profile_index < self.engine.num_optimization_profiles:
            self._fail(
                "setOptimizationProfileAsync: Error Code 3: API Usage Error (profileIndex out of range)"
            )
            raise RuntimeError("Error in set optimization profile async.")
        self._profile = profile_index
        self._shapes, self._outputs = {}, None
        return True

    def set_input_shape(self, name, shape):
        assert isinstance(shape, (tuple, list))
        tensor = self.engine.tensors[name]
        least, _, greatest = self.engine.get_tensor_profile_shape(name, self._profile)
        fits = len(shape) == len(tensor.shape) and all(
            low <= size <= high for low, size, high in zip(least, shape, greatest, strict=True)
        )
        if not fits:
            return self._fail(
                f"setInputShape: Error Code 3: API Usage Error (Supplied shape {list(shape)} for {name} is not in the profile)"
            )
        self._shapes[name] = tuple(shape)
        self._outputs = None
        return True

    def set_tensor_address(self, name, memory):
        assert isinstance(memory, int)
        if name not in self.engine.tensors or not memory:
            return self._fail(f"setTensorAddress: Error Code 3: API Usage Error (no address for {name})")
        if memory % 256 and self.engine.tensors[name].location == "DEVICE":
            self._trt.cuda.fault(f"the address of {name} is not aligned")
        self._addresses[name] = memory
        return True

    def set_output_allocator(self, name, output_allocator):
        assert output_allocator._is_made
        if self.engine.tensors[name].mode != "OUTPUT":
            return self._fail(f"setOutputAllocator: Error Code 3: API Usage Error ({name} is no output)")
        self._allocators[name] = output_allocator
        return True

    def infer_shapes(self):
        self._trt.num_inferred += 1
        tensors = self.engine.tensors.values()
        inputs = [tensor for tensor in tensors if tensor.mode == "INPUT"]
        missing = [t.name for t in inputs if -1 in t.shape and t.name not in self._shapes]
        missing += [t.name for t in inputs if t.is_shape and t.name not in self._addresses]
        if missing:
            return missing
        values = self._values()
        for name, numbers in values.items():
            least, _, greatest = self.engine.get_tensor_profile_values(self._profile, name)
            if any(
                not low <= number <= high for low, number, high in zip(least, numbers, greatest, strict=True)
            ):
                self._fail(
                    f"inferShapes: Error Code 3: API Usage Error (values of {name} are not in the profile)"
                )
                raise RuntimeError("infer_shapes error code: -1")
        self._outputs = self.engine.network.shapes(self._input_shapes(), values)
        return []

    def _input_shapes(self):
        inputs = [tensor for tensor in self.engine.tensors.values() if tensor.mode == "INPUT"]
        return {tensor.name: self._shapes.get(tensor.name, tensor.shape) for tensor in inputs}

    def _values(self):
        found = {}
        for tensor in self.engine.tensors.values():
            if tensor.is_shape and tensor.mode == "INPUT":
                dtype = np.dtype(DTYPES[tensor.dtype])
                count = prod(tensor.shape)
                memory = (ctypes.c_uint8 * (count * dtype.itemsize)).from_address(
                    self._addresses[tensor.name]
                )
                found[tensor.name] = tuple(np.frombuffer(memory, dtype).tolist())
        return found

    def get_tensor_shape(self, name):
        tensor = self.engine.tensors[name]
        if tensor.mode == "INPUT":
            return Dims(self._shapes.get(name, tensor.shape))
        return Dims(tensor.shape if self._outputs is None else self._outputs[name])

    def execute_async_v3(self, stream_handle):
        cuda = self._trt.cuda
        stream = cuda.stream_of(stream_handle)
        if cuda.device != self.engine._device or stream.device != self.engine._device:
            cuda.fault("an engine runs on another device than its own")
        unset = [n for n in self.engine.tensors if n not in self._addresses and n not in self._allocators]
        if unset:
            return self._fail(
                f"enqueueV3: Error Code 3: API Usage Error (no address is set for {', '.join(unset)})"
            )
        if self._outputs is None and self.infer_shapes():
            return self._fail("enqueueV3: Error Code 3: API Usage Error (input shapes are missing)")
        if self.engine.network.run is None:
            return self._fail("enqueueV3: Error Code 2: Internal Error (Assertion failed)")
        shapes, values, addresses = self._input_shapes(), self._values(), dict(self._addresses)
        outputs = dict(self._outputs)
        if self._allocators:
            if stream.capture is not None:
                stream.is_capture_broken = True
                return self._fail(
                    "enqueueV3: Error Code 1: Cuda Runtime (operation not permitted when stream is capturing)"
                )
            cuda.drain(stream)  # the real one waits, too: it has to know the data
            results = self._compute(cuda, shapes, values, addresses)
            for name, allocator in self._allocators.items():
                size = max(results[name].nbytes, 1)
                address = allocator.reallocate_output_async(
                    name, addresses.get(name, 0), size, 256, stream_handle
                )
                if not address:
                    return self._fail(f"enqueueV3: Error Code 1: Cuda Runtime (no memory for {name})")
                addresses[name] = address
                allocator.notify_shape(name, Dims(results[name].shape))
                outputs[name] = results[name].shape

        def work():
            for name, array in self._compute(cuda, shapes, values, addresses).items():
                self._memory(cuda, name, addresses[name], outputs[name])[...] = array

        cuda.enqueue(stream, work)
        return True

    def _compute(self, cuda, shapes, values, addresses):
        arrays = {
            name: self._memory(cuda, name, addresses[name], shape)
            for name, shape in shapes.items()
            if name not in values
        }
        return self.engine.network.run(arrays, values)

    def _memory(self, cuda, name, address, shape):
        tensor = self.engine.tensors[name]
        dtype = np.dtype(DTYPES[tensor.dtype])
        nbytes = prod(shape) * dtype.itemsize
        if not nbytes:
            return np.empty(shape, dtype)
        if tensor.location == "HOST":
            memory = cuda.host_at(address, nbytes)
        else:
            memory = cuda.memory_at(address, nbytes, self.engine._device)
        return memory.view(dtype).reshape(shape)


def tensor(name, mode, shape, dtype="FLOAT", **more):
    return {"name": name, "mode": mode, "shape": shape, "dtype": dtype, **more}


X = tensor("x", "INPUT", [-1, 3])
Y = tensor("y", "OUTPUT", [-1, 3])
PROFILE = {"x": [[1, 3], [4, 3], [8, 3]]}


def plan(network="double", tensors=(X, Y), profiles=(PROFILE,), **more):
    return {"network": network, "tensors": list(tensors), "profiles": list(profiles), **more}
