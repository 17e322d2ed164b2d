"""Signature: the inputs and outputs that a model file declares, and what they mean for its config. Pure.

Two rules follow from the file: `complete` fills in what the config leaves open, and `find_faults` says where the two
contradict each other.

Source: Triton ``onnxruntime.cc`` (AutoCompleteConfig, ValidateInputs, ValidateOutputs), ``onnxruntime_utils.cc``
(CompareDimsSupported).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from bireme.config import ModelConfig
from bireme.config.model_config import ModelDynamicBatching, ModelInput, ModelOutput, ModelTensorReshape
from bireme.config.state_tensors import server_inputs, server_outputs
from bireme.types import InvalidArgument, Unsupported, datatypes

_DATATYPES: Final = {
    "tensor(bool)": "BOOL",
    "tensor(uint8)": "UINT8",
    "tensor(uint16)": "UINT16",
    "tensor(uint32)": "UINT32",
    "tensor(uint64)": "UINT64",
    "tensor(int8)": "INT8",
    "tensor(int16)": "INT16",
    "tensor(int32)": "INT32",
    "tensor(int64)": "INT64",
    "tensor(float16)": "FP16",
    "tensor(float)": "FP32",
    "tensor(double)": "FP64",
    "tensor(bfloat16)": "BF16",
    "tensor(string)": "BYTES",
}
"""Protocol data type of every onnxruntime type that the protocol can carry."""


@dataclass(frozen=True, slots=True)
class GraphTensor:
    """One input or output of the graph. -1 is a dynamic dimension; a scalar and an unknown rank are both ()."""

    name: str
    onnx_type: str
    """onnxruntime's name, such as ``tensor(float)`` or ``seq(map(int64,tensor(float)))``."""
    shape: tuple[int, ...]

    @classmethod
    def from_node(cls, node: Any) -> GraphTensor:
        """Take over an ``onnxruntime.NodeArg``."""
        shape = tuple(dim if isinstance(dim, int) and dim >= 0 else -1 for dim in node.shape)
        return cls(node.name, node.type, shape)

    @property
    def datatype(self) -> str | None:
        """The protocol data type; None when the protocol has none for it."""
        return _DATATYPES.get(self.onnx_type)

    @property
    def can_batch(self) -> bool:
        """Whether the first dimension is dynamic, as a batch dimension must be."""
        return self.shape[:1] == (-1,)


@dataclass(frozen=True, slots=True)
class Signature:
    """What the file declares, by name, in the graph's order."""

    inputs: Mapping[str, GraphTensor]
    outputs: Mapping[str, GraphTensor]
    initializers: Mapping[str, GraphTensor] = field(default_factory=dict)
    """Inputs that have a value of their own, and so are optional."""

    @classmethod
    def from_session(cls, session: Any) -> Signature:
        """Take over what an ``onnxruntime.InferenceSession`` says about its model."""
        return cls(
            _by_name(session.get_inputs()),
            _by_name(session.get_outputs()),
            _by_name(session.get_overridable_initializers()),
        )

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
    config: ModelConfig, kind: str, tensors: Mapping[str, GraphTensor], leading: int
) -> Iterable[tuple[GraphTensor, str, tuple[int, ...], ModelTensorReshape | None]]:
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
                f"model '{config.name}': {kind} '{tensor.name}' of the model file is a {tensor.onnx_type}, which no data "
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


def _by_name(nodes: Iterable[Any]) -> dict[str, GraphTensor]:
    return {node.name: GraphTensor.from_node(node) for node in nodes}
