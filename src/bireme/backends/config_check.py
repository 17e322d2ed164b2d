"""Compares a final config with what the model file declares. Pure.

More lenient than Triton, which refuses them: the config may fix a dimension of an output that the file leaves dynamic;
an output of unknown rank, which the file cannot tell from a scalar, fits any dims; outputs that are no tensors are no
matter as long as the config does not list them; a batching model may have optional inputs. Stricter: a scalar input
cannot be batched, and batch inputs must have the file's data type and rank.

Source: Triton ``onnxruntime.cc`` (ValidateInputs, ValidateOutputs), ``onnxruntime_utils.cc`` (CompareDimsSupported).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from bireme.backends.signature import Signature, TensorSpec, quoted
from bireme.config import ModelConfig
from bireme.config.faults import near_name
from bireme.config.model_config import ModelInput, ModelOutput
from bireme.config.state_tensors import server_inputs
from bireme.types import InvalidArgument, datatypes

BATCH_INPUT_RANKS: Mapping[str, int] = {"BATCH_ITEM_SHAPE": 2}
"""Rank of the batch inputs that are not one-dimensional."""


def find_faults(config: ModelConfig, signature: Signature) -> list[str]:
    """Return every contradiction between ``config`` and the file, each with what either says."""
    return [
        *_input_faults(config, signature),
        *_batch_input_faults(config, signature),
        *_control_faults(config, signature),
        *_missing_inputs(config, signature),
        *_output_faults(config, signature),
    ]


def mismatch(config: ModelConfig, faults: Iterable[str]) -> InvalidArgument:
    """Return the error of a config that contradicts its model file."""
    return InvalidArgument(f"unable to load model '{config.name}': {'; '.join(faults)}")


def _input_faults(config: ModelConfig, signature: Signature) -> Iterator[str]:
    known = {**signature.inputs, **signature.initializers}
    for tensor in config.input:
        found = known.get(tensor.name)
        if found is None:
            yield _unknown("input", tensor.name, known)
            continue
        if tensor.optional and tensor.name in signature.inputs:
            yield (
                f"input '{tensor.name}' is optional in the config, but the model file needs it: only an input with an "
                f"initializer can be left out"
            )
        yield from _type_fault("input", tensor, found)
        if tensor.allow_ragged_batch:
            if found.shape != (-1,):
                yield (
                    f"input '{tensor.name}' is ragged (allow_ragged_batch), so the model file needs shape [-1] for the "
                    f"elements of all requests, but it has {list(found.shape)}"
                )
        else:
            yield from _shape_fault(config, "input", tensor, found)


def _output_faults(config: ModelConfig, signature: Signature) -> Iterator[str]:
    batch_outputs = {name for entry in config.batch_output for name in entry.target_name}
    for tensor in config.output:
        found = signature.outputs.get(tensor.name)
        if found is None:
            yield _unknown("output", tensor.name, signature.outputs)
            continue
        yield from _type_fault("output", tensor, found)
        if tensor.name not in batch_outputs and found.shape:
            yield from _shape_fault(config, "output", tensor, found)


def _batch_input_faults(config: ModelConfig, signature: Signature) -> Iterator[str]:
    for entry in config.batch_input:
        rank = BATCH_INPUT_RANKS.get(entry.kind, 1)
        for name in entry.target_name:
            found = signature.inputs.get(name)
            if found is None:
                yield _unknown("batch_input", name, signature.inputs)
                continue
            expected = datatypes.to_config_name(found.datatype) if found.datatype else found.native_type
            if entry.data_type != expected:
                yield (
                    f"batch_input '{name}': the config's data_type is {entry.data_type}, but the model file has "
                    f"{expected}"
                )
            if len(found.shape) != rank:
                yield (
                    f"batch_input '{name}': kind {entry.kind} makes {rank} dimension{'s' * (rank > 1)}, but the model "
                    f"file has shape {list(found.shape)}"
                )


def _control_faults(config: ModelConfig, signature: Signature) -> Iterator[str]:
    for control in config.sequence_batching.control_input if config.sequence_batching is not None else ():
        if control.name not in signature.inputs:
            yield _unknown("sequence control input", control.name, signature.inputs)


def _missing_inputs(config: ModelConfig, signature: Signature) -> Iterator[str]:
    given = {tensor.name for tensor in config.input} | server_inputs(config)
    given.update(name for entry in config.batch_input for name in entry.target_name)
    for name, tensor in signature.inputs.items():
        if name not in given:
            yield (
                f"the model file needs input '{name}' ({tensor.native_type}, shape {list(tensor.shape)}), which the config "
                f"does not list; it lists {quoted(sorted(given))}"
            )


def _unknown(kind: str, name: str, known: Mapping[str, TensorSpec]) -> str:
    near = near_name(name, known)
    suggestion = f"; did you mean '{near}'?" if near else ""
    if name.strip() in known:
        suggestion = f"; the config's name '{name}' has blanks around it"
    return (
        f"{kind} '{name}' is in the config, but not in the model file, which has {quoted(known)}{suggestion}"
    )


def _type_fault(kind: str, tensor: ModelInput | ModelOutput, found: TensorSpec) -> Iterator[str]:
    if found.datatype is None:
        yield (
            f"{kind} '{tensor.name}' of the model file is a {found.native_type}, which no data type of the protocol holds"
        )
    elif tensor.data_type != datatypes.to_config_name(found.datatype):
        yield (
            f"{kind} '{tensor.name}': the config's data_type is {tensor.data_type}, but the model file has "
            f"{datatypes.to_config_name(found.datatype)}"
        )


def _shape_fault(
    config: ModelConfig, kind: str, tensor: ModelInput | ModelOutput, found: TensorSpec
) -> Iterator[str]:
    field, dims = ("dims", tensor.dims) if tensor.reshape is None else ("reshape", tensor.reshape.shape)
    shape = found.shape
    batches = config.max_batch_size > 0
    label = f"{kind} '{tensor.name}'"
    if batches and not found.can_batch:
        yield (
            f"{label}: max_batch_size is {config.max_batch_size}, so the model file needs a dynamic first dimension, the "
            f"batch dimension, but its shape is {list(shape)}; set max_batch_size: 0 (and give the whole shape in dims), "
            f"or export the model with a dynamic batch dimension"
        )
        return
    if not shape and not batches:
        if any(dim != 1 for dim in dims):
            yield f"{label} is a scalar in the model file, so the config's {field} must be [1], found {list(dims)}"
        return
    full = (-1, *dims) if batches else tuple(dims)
    fits = _fits_output if kind == "output" else _fits_input
    if fits(full, shape):
        return
    text = f"{label}: the config's {field} {list(dims)}"
    if batches:
        text += f" with the batch dimension in front (max_batch_size is {config.max_batch_size}) make shape {list(full)}"
    text += f", but the model file has {list(shape)}"
    if batches and fits(tuple(dims), shape):
        text += f"; leave the batch dimension out: {field}: {list(dims[1:])}"
    elif not batches and found.can_batch and fits((-1, *dims), shape):
        text += (
            f"; max_batch_size is 0, so {field} must hold every dimension: {field}: {list(shape)}; or set max_batch_size, "
            f"to let the server batch"
        )
    yield text


def _fits_input(config_shape: tuple[int, ...], file_shape: tuple[int, ...]) -> bool:
    """Whether everything that the config admits fits the file."""
    return len(config_shape) == len(file_shape) and all(
        has in (-1, says) for says, has in zip(config_shape, file_shape, strict=True)
    )


def _fits_output(config_shape: tuple[int, ...], file_shape: tuple[int, ...]) -> bool:
    """Whether what the file produces may be what the config says."""
    return len(config_shape) == len(file_shape) and all(
        -1 in (says, has) or says == has for says, has in zip(config_shape, file_shape, strict=True)
    )
