"""Rules on inputs and outputs: names, types, dims, reshape, and tensors made per batch.

Source: Triton ``model_config_utils.cc`` (ValidateIOShape, ValidateModelInput, ValidateModelOutput,
ValidateNonLinearFormatIO, ValidateBatchIO).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

from bireme.config.faults import near_name
from bireme.config.model_config import BatchInput, BatchOutput, ModelConfig, ModelInput, ModelOutput

_TENSORRT: Final = "tensorrt_plan"


def find_faults(config: ModelConfig, *, is_complete: bool) -> Iterator[str]:
    """Yield the faults of ``input``, ``output``, ``batch_input`` and ``batch_output``.

    What is missing is a fault only when the lists are complete; what is there and wrong always is.
    """
    lists: dict[str, Sequence[ModelInput | ModelOutput]] = {"input": config.input, "output": config.output}
    for kind, tensors in lists.items():
        for index, tensor in enumerate(tensors):
            label = f"model {kind} '{tensor.name}'" if tensor.name else f"model {kind}[{index}]"
            if is_complete:
                yield from _missing(tensor, label, config.name)
            yield from _shape(tensor, label, config)
            yield from _platform_features(tensor, label, kind, config)
        for name, count in Counter(tensor.name for tensor in tensors if tensor.name).items():
            if count > 1:
                yield f"model {kind} '{name}' is listed {count} times for {config.name}, expected once"
    for model_input in config.input:
        if model_input.format != "FORMAT_NONE" and model_input.dims and len(model_input.dims) != 3:
            yield (
                f"model input NHWC/NCHW require 3 dims for {config.name}: '{model_input.name}' has {model_input.format} "
                f"and dims {list(model_input.dims)}"
            )
    if is_complete or (config.input and config.output):
        yield from _batch_tensors(config)


def _missing(tensor: ModelInput | ModelOutput, label: str, model: str) -> Iterator[str]:
    if not tensor.name:
        yield f"{label} must specify 'name' for {model}"
    if tensor.data_type == "TYPE_INVALID":
        yield f"{label} must specify 'data_type' for {model}"
    if not tensor.dims:
        yield f"{label} must specify 'dims' for {model}"


def _shape(tensor: ModelInput | ModelOutput, label: str, config: ModelConfig) -> Iterator[str]:
    bad_dims = [dim for dim in tensor.dims if dim < 1 and dim != -1]
    if bad_dims:
        yield (
            f"{label} dimension must be integer >= 1, or -1 to indicate a variable-size dimension for {config.name}: "
            f"dims {list(tensor.dims)} holds {bad_dims[0]}"
        )
    if tensor.reshape is None:
        return
    shape = tensor.reshape.shape
    if not shape and config.max_batch_size == 0:
        yield (
            f"{label} cannot have empty reshape for non-batching model as scalar tensors are not supported for "
            f"{config.name}: reshape.shape is [] and 'max_batch_size' is 0"
        )
    bad_shape = [dim for dim in shape if dim < 1 and dim != -1]
    if bad_shape:
        yield (
            f"{label} reshape dimensions must be integer >= 1, or -1 to indicate a variable-size dimension for "
            f"{config.name}: reshape.shape {list(shape)} holds {bad_shape[0]}"
        )
    if tensor.dims and not bad_dims and not bad_shape:
        yield from _reshape(tensor.dims, shape, f"{label} has different", config.name)


def _reshape(dims: tuple[int, ...], shape: tuple[int, ...], prefix: str, model: str) -> Iterator[str]:
    """Compare element counts between variable dims: [2, 4, -1, 6] may become [8, -1, 1, 6]."""
    found = f"for {model}: dims {list(dims)}, reshape.shape {list(shape)}"
    if (-1 in dims) == (-1 in shape) and dims.count(-1) != shape.count(-1):
        yield f"{prefix} number of variable-size dimensions for dims and reshape {found}"
        return
    dims_counts, shape_counts = _counts(dims), _counts(shape)
    if dims_counts != shape_counts:
        what = (
            "elements" if -1 not in dims + shape else "elements before, between and after the variable ones"
        )
        yield f"{prefix} size for dims and reshape {found}: {_join(dims_counts)} and {_join(shape_counts)} {what}"


def _counts(dims: tuple[int, ...]) -> list[int]:
    """Return the element counts of the runs of fixed dims between variable ones."""
    counts = [1]
    for dim in dims:
        if dim == -1:
            counts.append(1)
        else:
            counts[-1] *= dim
    return counts


def _join(counts: list[int]) -> str:
    return "/".join(str(count) for count in counts)


def _platform_features(
    tensor: ModelInput | ModelOutput, label: str, kind: str, config: ModelConfig
) -> Iterator[str]:
    found = f"for {config.name}: {label}, platform '{config.platform}'"
    if tensor.is_shape_tensor and config.platform != _TENSORRT:
        yield f"shape tensors are only supported for TensorRT platform {found}"
    if tensor.is_non_linear_format_io:
        if config.platform != _TENSORRT:
            yield f"Non-linear IO format is only supported for the TensorRT platform {found}"
        elif tensor.dims and len(tensor.dims) != 3:
            yield f"Non-linear IO format {kind} requires 3 dims {found}, dims {list(tensor.dims)}"


def _batch_tensors(config: ModelConfig) -> Iterator[str]:
    inputs = [tensor.name for tensor in config.input]
    outputs = [tensor.name for tensor in config.output]
    for index, batch_input in enumerate(config.batch_input):
        place = f"for {config.name}: batch_input[{index}]"
        yield from _sources(batch_input, "batch input", inputs, place)
        if batch_input.data_type not in {"TYPE_INT32", "TYPE_FP32"}:
            yield (
                f"batch input data type must be TYPE_INT32 or TYPE_FP32 {place}.data_type is {batch_input.data_type}"
            )
    for index, batch_output in enumerate(config.batch_output):
        place = f"for {config.name}: batch_output[{index}]"
        yield from _sources(batch_output, "batch output", inputs, place)
        for name, count in Counter(batch_output.target_name).items():
            if name not in outputs:
                yield f"unknown target output name '{name}' {place}.target_name; {_known(name, outputs)}"
            elif count > 1:
                yield f"target output name '{name}' can only be specified once {place}.target_name"


def _sources(tensor: BatchInput | BatchOutput, what: str, inputs: list[str], place: str) -> Iterator[str]:
    if len(tensor.source_input) != 1:
        yield f"{what} kind '{tensor.kind}' expects 1 source input, got {len(tensor.source_input)} {place}.source_input"
    for name in tensor.source_input:
        if name not in inputs:
            yield f"unknown source input name '{name}' {place}.source_input; {_known(name, inputs)}"


def _known(name: str, names: list[str]) -> str:
    near = near_name(name, names)
    return f"did you mean '{near}'?" if near else f"the model has {', '.join(names) or 'none'}"
