"""What a SavedModel's signature or a graph's node declares, and what the config adds where that is nothing. Pure.

The protobuf messages are TensorFlow's, but only read, so that none of it is imported here. What no tensor has, a known rank, is
taken from the config, as Triton takes it.

Source: Triton ``tensorflow.cc`` (savedmodel::ValidateTRITONTFModel, AutoCompleteHelper), ``tensorflow_backend_tf.cc``
(TRITONTF_ModelCreateFromSavedModel); TensorFlow ``meta_graph.proto`` (SignatureDef, TensorInfo), ``types.proto``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Final

from bireme.backends.config_check import BATCH_INPUT_RANKS
from bireme.backends.signature import Signature, TensorSpec, quoted
from bireme.config import ModelConfig
from bireme.config.reshape import model_dims
from bireme.config.state_tensors import with_state_tensors
from bireme.types import InvalidArgument

_TYPES: Final = MappingProxyType(
    {
        1: ("float32", "FP32"),
        2: ("float64", "FP64"),
        3: ("int32", "INT32"),
        4: ("uint8", "UINT8"),
        5: ("int16", "INT16"),
        6: ("int8", "INT8"),
        7: ("string", "BYTES"),
        8: ("complex64", None),
        9: ("int64", "INT64"),
        10: ("bool", "BOOL"),
        11: ("qint8", None),
        12: ("quint8", None),
        13: ("qint32", None),
        14: ("bfloat16", "BF16"),
        15: ("qint16", None),
        16: ("quint16", None),
        17: ("uint16", "UINT16"),
        18: ("complex128", None),
        19: ("float16", "FP16"),
        20: ("resource", None),
        21: ("variant", None),
        22: ("uint32", "UINT32"),
        23: ("uint64", "UINT64"),
        24: ("float8_e5m2", None),
        25: ("float8_e4m3fn", None),
        29: ("int4", None),
        30: ("uint4", None),
    }
)
"""Name and protocol data type of every number of TensorFlow's enum ``DataType``."""


@dataclass(frozen=True, slots=True)
class GraphSignature:
    """Inputs and outputs of a graph, the tensors that they are in it, and what of that is open."""

    signature: Signature
    tensors: Mapping[str, str]
    """Name in the graph, such as ``serving_default_x:0``, by input."""
    results: Mapping[str, str]
    """The same by output."""
    unranked_inputs: frozenset[str] = frozenset()
    """Inputs of which the file doesn't even say how many dimensions they have."""
    unranked_outputs: frozenset[str] = frozenset()
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """``TensorProto`` of each input that may be left out and is not in the graph itself."""


def read_signature(definition: Any) -> GraphSignature:
    """Take over a ``SignatureDef``: its own names are those that clients see."""
    defaults = dict(definition.defaults) if hasattr(definition, "defaults") else {}
    inputs = {name: _read_info(name, info) for name, info in sorted(definition.inputs.items())}
    outputs = {name: _read_info(name, info) for name, info in sorted(definition.outputs.items())}
    return GraphSignature(
        signature=Signature(
            {name: spec for name, spec in inputs.items() if name not in defaults},
            outputs,
            {name: spec for name, spec in inputs.items() if name in defaults},
        ),
        tensors={name: definition.inputs[name].name for name in inputs},
        results={name: definition.outputs[name].name for name in outputs},
        unranked_inputs=_unranked(definition.inputs),
        unranked_outputs=_unranked(definition.outputs),
        defaults=defaults,
    )


def make_spec(name: str, type_number: int, shape: tuple[int, ...]) -> TensorSpec:
    """Return the spec of a tensor of TensorFlow's ``DataType`` number ``type_number``."""
    native, datatype = _TYPES.get(type_number, (f"tensor of data type {type_number}", None))
    return TensorSpec(name, datatype, shape, native)


def _read_info(name: str, info: Any) -> TensorSpec:
    kind = info.WhichOneof("encoding")
    if kind not in {"name", None}:  # several tensors that stand for one
        return TensorSpec(name, None, (), {"coo_sparse": "sparse tensor"}.get(kind, "composite tensor"))
    shape = () if info.tensor_shape.unknown_rank else tuple(dim.size for dim in info.tensor_shape.dim)
    return make_spec(name, info.dtype, shape)


def _unranked(infos: Mapping[str, Any]) -> frozenset[str]:
    return frozenset(name for name, info in infos.items() if info.tensor_shape.unknown_rank)


def with_ranks(found: GraphSignature, config: ModelConfig) -> Signature:
    """Return the signature, where a tensor of unknown rank has the shape that the config gives it."""
    if not found.unranked_inputs and not found.unranked_outputs:
        return found.signature
    config = with_state_tensors(config)
    leading = (-1,) if config.max_batch_size > 0 else ()
    shapes: dict[str, tuple[int, ...]] = {
        name: (-1,) * BATCH_INPUT_RANKS.get(entry.kind, 1)
        for entry in config.batch_input
        for name in entry.target_name
    }
    shapes |= {tensor.name: (*leading, *model_dims(tensor)) for tensor in config.input}
    shapes |= {tensor.name: (-1,) for tensor in config.input if tensor.allow_ragged_batch}
    outputs = {tensor.name: (*leading, *model_dims(tensor)) for tensor in config.output}
    signature = found.signature
    return Signature(
        _ranked(signature.inputs, found.unranked_inputs, shapes),
        _ranked(signature.outputs, found.unranked_outputs, outputs),
        _ranked(signature.initializers, found.unranked_inputs, shapes),
    )


def _ranked(
    specs: Mapping[str, TensorSpec], unranked: frozenset[str], shapes: Mapping[str, tuple[int, ...]]
) -> dict[str, TensorSpec]:
    return {
        name: replace(spec, shape=shapes[name]) if name in unranked and name in shapes else spec
        for name, spec in specs.items()
    }


def check_ranks(found: GraphSignature, config: ModelConfig) -> None:
    """Refuse to fill in a tensor whose rank nobody knows.

    Raises:
        InvalidArgument: names those that the config must list.
    """
    unranked = [
        *(found.unranked_inputs if not config.input and not config.batch_input else ()),
        *(found.unranked_outputs if not config.output else ()),
    ]
    if unranked:
        raise InvalidArgument(
            f"model '{config.name}': the model file does not say what shape {quoted(sorted(unranked))} has; list all inputs and "
            f"outputs in config.pbtxt, with their dims"
        )
