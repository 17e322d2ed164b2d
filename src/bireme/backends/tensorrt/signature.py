"""What an engine declares: inputs and outputs, shape tensors, formats, optimization profiles, and what follows for a config.

A shape tensor holds numbers that shapes follow from, one for each dimension. Where the model batches, the first of them is the size of
the batch; the server adds it, so clients see a tensor that is one shorter and has a batch dimension of its own.

Source: Triton ``model_state.cc`` (AutoCompleteConfigHelper, GetMaxSupportedBatchSize, GetRefIO), ``tensorrt_utils.cc``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from bireme.backends.signature import Signature, TensorSpec
from bireme.backends.tensorrt.profiles import Profile, Range
from bireme.backends.tensorrt.runtime import trt
from bireme.config import ModelConfig
from bireme.config.model_config import ModelDynamicBatching, ModelInput, ModelOutput
from bireme.config.reshape import model_dims
from bireme.types import InvalidArgument, Unsupported

_DATATYPES: Final = {
    "FLOAT": "FP32",
    "HALF": "FP16",
    "BF16": "BF16",
    "INT8": "INT8",
    "UINT8": "UINT8",
    "INT32": "INT32",
    "INT64": "INT64",
    "BOOL": "BOOL",
}
"""Protocol data type of every TensorRT type that the protocol can carry. FP8, INT4, FP4 and E8M0 it cannot."""


@dataclass(frozen=True, slots=True)
class IoTensor:
    """One input or output of an engine. -1 is a dynamic dimension."""

    name: str
    is_input: bool
    datatype: str | None
    native_type: str
    shape: tuple[int, ...]
    is_shape: bool
    """Whether it is a shape tensor."""
    is_on_host: bool
    """Whether TensorRT reads or writes it in memory of the host."""
    format: str
    """``LINEAR``, or the name of a vectorised layout."""


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """Everything about an engine that instances and configs have to know."""

    tensors: tuple[IoTensor, ...]
    """In the engine's order."""
    profiles: tuple[Profile, ...]

    @property
    def can_batch(self) -> bool:
        """Whether every tensor has a dynamic first dimension, shape tensors aside."""
        tensors = [tensor for tensor in self.tensors if not tensor.is_shape]
        return bool(tensors) and all(tensor.shape[:1] == (-1,) for tensor in tensors)

    def max_batch_size(self, indices: Iterable[int]) -> int:
        """Return the largest batch that one of the profiles at ``indices`` takes; 0: the engine does not batch."""
        if not self.can_batch:
            return 0
        return max(min(_first_dims(self.profiles[index], self.tensors), default=1) for index in indices)


def read_engine(engine: Any) -> EngineInfo:
    """Take over what a ``tensorrt.ICudaEngine`` says about itself."""
    names = [engine.get_tensor_name(index) for index in range(engine.num_io_tensors)]
    tensors = tuple(_read_tensor(engine, name) for name in names)
    profiles = range(engine.num_optimization_profiles)
    return EngineInfo(tensors, tuple(_read_profile(engine, index, tensors) for index in profiles))


def _read_tensor(engine: Any, name: str) -> IoTensor:
    native = engine.get_tensor_dtype(name).name
    return IoTensor(
        name,
        is_input=engine.get_tensor_mode(name) == trt.TensorIOMode.INPUT,
        datatype=_DATATYPES.get(native),
        native_type=native,
        shape=tuple(engine.get_tensor_shape(name)),
        is_shape=engine.is_shape_inference_io(name),
        is_on_host=engine.get_tensor_location(name) == trt.TensorLocation.HOST,
        format=engine.get_tensor_format(name).name,
    )


def _read_profile(engine: Any, index: int, tensors: Iterable[IoTensor]) -> Profile:
    inputs = [tensor for tensor in tensors if tensor.is_input]
    return Profile(
        index,
        {t.name: _range(engine.get_tensor_profile_shape(t.name, index)) for t in inputs},
        {t.name: _range(engine.get_tensor_profile_values(index, t.name)) for t in inputs if t.is_shape},
    )


def _range(three: Sequence[Iterable[int]]) -> Range:
    least, best, greatest = (tuple(dims) for dims in three)
    return Range(least, best, greatest)


def _first_dims(profile: Profile, tensors: Iterable[IoTensor]) -> Iterator[int]:
    for tensor in tensors:
        if tensor.is_input:
            ranges = profile.values if tensor.is_shape else profile.shapes
            yield ranges[tensor.name].greatest[0]


def signature_of(info: EngineInfo, *, batches: bool) -> Signature:
    """Return the engine as a config sees it, with or without a batch dimension."""

    def spec(tensor: IoTensor) -> TensorSpec:
        shape = (-1, tensor.shape[0] - 1) if tensor.is_shape and batches and tensor.shape else tensor.shape
        return TensorSpec(tensor.name, tensor.datatype, shape, tensor.native_type)

    return Signature(
        {tensor.name: spec(tensor) for tensor in info.tensors if tensor.is_input},
        {tensor.name: spec(tensor) for tensor in info.tensors if not tensor.is_input},
    )


def check_formats(model: str, info: EngineInfo) -> None:
    """Refuse engines whose tensors lie in memory otherwise than a client sends them.

    Raises:
        Unsupported: names the tensor and its format.
    """
    for tensor in info.tensors:
        if tensor.format != "LINEAR":
            raise Unsupported(
                f"model '{model}': {'input' if tensor.is_input else 'output'} '{tensor.name}' of the engine has the format "
                f"{tensor.format}; only LINEAR is supported: build the engine with linear inputs and outputs (TensorRT then "
                f"reformats by itself)"
            )


def profile_indices(config: ModelConfig, names: Iterable[str], num_profiles: int) -> tuple[int, ...]:
    """Return the profiles that ``profile`` of an instance group names, each once; the first one if it names none.

    Raises:
        InvalidArgument: the engine has no such profile.
    """
    indices = tuple(dict.fromkeys(int(name) for name in names)) or (0,)
    for index in indices:
        if not 0 <= index < num_profiles:
            raise InvalidArgument(
                f"model '{config.name}': instance_group.profile names {index}, but the engine has {num_profiles} optimization "
                f"profile{'s' * (num_profiles != 1)}: {', '.join(map(str, range(num_profiles)))}"
            )
    return indices


def hinted_batching(config: ModelConfig, info: EngineInfo, limit: int) -> ModelConfig:
    """Return ``config`` with the engine's batch limit where its tensors leave the batch dimension out and it says no limit.

    Raises:
        InvalidArgument: some tensors have it and some do not.
    """
    tensors = {tensor.name: tensor for tensor in info.tensors}
    hints = {
        tensor.name: _lacks_batch_dim(tensor, tensors[tensor.name])
        for _, tensor in _listed(config)
        if tensor.name in tensors and tensor.dims and not getattr(tensor, "allow_ragged_batch", False)
    }
    if config.max_batch_size or not limit or not any(hints.values()):
        return config
    if not all(hints.values()):
        raise InvalidArgument(
            f"autofill failed for model '{config.name}': the dims of {_names(hints, wanted=True)} leave the batch dimension "
            f"out, those of {_names(hints, wanted=False)} have it; give max_batch_size, and leave it out everywhere"
        )
    batching = config.dynamic_batching
    if limit > 1 and config.sequence_batching is None:
        batching = batching or ModelDynamicBatching()
    return replace(config, max_batch_size=limit, dynamic_batching=batching)


def _lacks_batch_dim(tensor: ModelInput | ModelOutput, found: IoTensor) -> bool:
    dims = model_dims(tensor)
    if found.is_shape:
        return bool(found.shape) and tuple(dims) == (found.shape[0] - 1,)
    return len(dims) + 1 == len(found.shape)


def _names(hints: dict[str, bool], *, wanted: bool) -> str:
    return ", ".join(f"'{name}'" for name, hint in hints.items() if hint is wanted)


def with_shape_tensors(config: ModelConfig, info: EngineInfo) -> ModelConfig:
    """Return ``config`` with the engine's shape tensors marked as such; for those that auto-completion has listed."""
    shapes = {tensor.name for tensor in info.tensors if tensor.is_shape}
    return replace(
        config,
        input=tuple(replace(t, is_shape_tensor=t.is_shape_tensor or t.name in shapes) for t in config.input),
        output=tuple(
            replace(t, is_shape_tensor=t.is_shape_tensor or t.name in shapes) for t in config.output
        ),
    )


def find_mark_faults(config: ModelConfig, info: EngineInfo) -> Iterator[str]:
    """Yield tensors that the config marks otherwise than the engine has them."""
    tensors = {tensor.name: tensor for tensor in info.tensors}
    for kind, tensor in _listed(config):
        found = tensors.get(tensor.name)
        if found is not None and found.is_shape != tensor.is_shape_tensor:
            yield (
                f"{kind} '{tensor.name}' {'is a' if found.is_shape else 'is no'} shape tensor of the engine, but "
                f"is_shape_tensor is {str(tensor.is_shape_tensor).lower()} in the config"
            )
        if found is not None and tensor.is_non_linear_format_io:
            yield f"{kind} '{tensor.name}' is linear in the engine, but is_non_linear_format_io is true in the config"


def _listed(config: ModelConfig) -> Iterator[tuple[str, ModelInput | ModelOutput]]:
    yield from (("input", tensor) for tensor in config.input)
    yield from (("output", tensor) for tensor in config.output)
