"""Signature: the inputs and outputs that a model file declares, and what they mean for its config. Pure.

Two rules follow from the file: `complete` fills in what the config leaves open, and `find_faults` says where the two
contradict each other.

Source: Triton ``onnxruntime.cc`` (AutoCompleteConfig, ValidateInputs, ValidateOutputs), ``onnxruntime_utils.cc``
(CompareDimsSupported).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from bireme.config import ModelConfig
from bireme.config.model_config import ModelDynamicBatching, ModelInput, ModelOutput, ModelTensorReshape
from bireme.config.state_tensors import server_inputs, server_outputs
from bireme.types import InvalidArgument, Unsupported, datatypes


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One input or output of a model file. -1 is a dynamic dimension; a scalar and an unknown rank are both ()."""

    name: str
    datatype: str | None
    """The protocol data type; None when the protocol has none for it."""
    shape: tuple[int, ...]
    native_type: str = ""
    """The framework's own name of the type, such as ``tensor(float)`` or ``seq(map(int64,tensor(float)))``; for messages."""

    @property
    def can_batch(self) -> bool:
        """Whether the first dimension is dynamic, as a batch dimension must be."""
        return self.shape[:1] == (-1,)


@dataclass(frozen=True, slots=True)
class Signature:
    """What the file declares, by name, in the file's order."""

    inputs: Mapping[str, TensorSpec]
    outputs: Mapping[str, TensorSpec]
    initializers: Mapping[str, TensorSpec] = field(default_factory=dict)
    """Inputs that have a value of their own in the file, and so are optional."""

    @property
    def can_batch(self) -> bool:
        """Whether every input and output has a dynamic first dimension."""
        return all(tensor.can_batch for tensor in (*self.inputs.values(), *self.outputs.values()))


def complete(config: ModelConfig, signature: Signature, default_max_batch_size: int) -> ModelConfig:
    """Return ``config`` with batching, inputs and outputs filled in where it leaves them open.

    A config that lists inputs and outputs is left as it is. Sequence controls and implicit state are neither: no client sends
    or gets them.

    Raises:
        InvalidArgument: it asks for batching and the file cannot batch.
        Unsupported: an input or output to fill in is no tensor.
    """
    has_inputs = bool(config.input or config.batch_input)
    if has_inputs and config.output:
        return config
    max_batch_size = _max_batch_size(config, signature, default_max_batch_size)
    batching = config.dynamic_batching
    if max_batch_size > 1 and config.sequence_batching is None and config.ensemble_scheduling is None:
        batching = batching or ModelDynamicBatching()
    leading = 1 if max_batch_size > 0 else 0
    return replace(
        config,
        max_batch_size=max_batch_size,
        dynamic_batching=batching,
        input=config.input if has_inputs else _described_inputs(config, signature, leading),
        output=config.output or _described_outputs(config, signature, leading),
    )


def _max_batch_size(config: ModelConfig, signature: Signature, default_max_batch_size: int) -> int:
    if signature.can_batch:
        return config.max_batch_size or max(default_max_batch_size, 0)
    if config.max_batch_size != 0:
        fixed = [
            f"'{tensor.name}' {list(tensor.shape)}"
            for tensor in (*signature.inputs.values(), *signature.outputs.values())
            if not tensor.can_batch
        ]
        raise InvalidArgument(
            f"autofill failed for model '{config.name}': model does not support batching while non-zero max_batch_size "
            f"is specified: max_batch_size is {config.max_batch_size}, but the first dimension of {', '.join(fixed)} is "
            f"not dynamic in the model file; set max_batch_size: 0, or export the model with a dynamic batch dimension"
        )
    return 0


def _described_inputs(config: ModelConfig, signature: Signature, leading: int) -> tuple[ModelInput, ...]:
    return tuple(
        ModelInput(name=tensor.name, data_type=data_type, dims=dims, reshape=reshape)
        for tensor, data_type, dims, reshape in _described(config, "input", signature.inputs, leading)
    )


def _described_outputs(config: ModelConfig, signature: Signature, leading: int) -> tuple[ModelOutput, ...]:
    return tuple(
        ModelOutput(name=tensor.name, data_type=data_type, dims=dims, reshape=reshape)
        for tensor, data_type, dims, reshape in _described(config, "output", signature.outputs, leading)
    )


def _described(
    config: ModelConfig, kind: str, tensors: Mapping[str, TensorSpec], leading: int
) -> Iterable[tuple[TensorSpec, str, tuple[int, ...], ModelTensorReshape | None]]:
    """Yield the config's data type, dims and reshape of each tensor.

    A tensor that has no dimension left becomes ``dims: [1]``, reshaped to nothing when there is a batch dimension.
    """
    own = server_inputs(config) if kind == "input" else server_outputs(config)
    for tensor in tensors.values():
        if tensor.name in own:
            continue
        if tensor.datatype is None:
            usable = [other.name for other in tensors.values() if other.datatype is not None]
            raise Unsupported(
                f"model '{config.name}': {kind} '{tensor.name}' of the model file is a {tensor.native_type}, which no data "
                f"type of the protocol holds{_way_out(kind, usable)}"
            )
        dims = tensor.shape[leading:]
        reshape = ModelTensorReshape() if leading and not dims else None
        yield tensor, datatypes.to_config_name(tensor.datatype), dims or (1,), reshape


def _way_out(kind: str, usable: list[str]) -> str:
    if kind == "input" or not usable:
        return ""
    return f"; list the outputs to serve in config.pbtxt ({quoted(usable)}), or export the model without it"


def quoted(names: Iterable[str]) -> str:
    """Return the names in quotes, so that stray blanks show."""
    return ", ".join(f"'{name}'" for name in names) or "none"
