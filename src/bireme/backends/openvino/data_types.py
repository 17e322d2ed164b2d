"""Data types: OpenVINO's names of the protocol's, and which differences from the file a config may have. Pure.

Where the config has another type of the same sort (both integers, or both floating point; for inputs an integer for
floating point, too, such as the bytes of pictures), OpenVINO converts. Other differences are a fault of the config.

Source: Triton's openvino_backend ``openvino.cc`` (ValidateInputs, ValidateOutputs), which converts anything to anything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Final

from bireme.backends.signature import Signature, TensorSpec
from bireme.config import ModelConfig
from bireme.config.model_config import ModelInput, ModelOutput
from bireme.types import datatypes

DATATYPES: Final = {
    "boolean": "BOOL",
    "u8": "UINT8",
    "u16": "UINT16",
    "u32": "UINT32",
    "u64": "UINT64",
    "i8": "INT8",
    "i16": "INT16",
    "i32": "INT32",
    "i64": "INT64",
    "f16": "FP16",
    "f32": "FP32",
    "f64": "FP64",
    "bf16": "BF16",
    "string": "BYTES",
}
"""Protocol data type of every element type of OpenVINO that the protocol can carry."""

TYPE_NAMES: Final = {datatype: name for name, datatype in DATATYPES.items()}

NARROWED: Final = {"INT64": "INT32", "UINT64": "INT32", "UINT32": "INT32", "FP64": "FP32"}
"""What OpenVINO computes in on the CPU where a model file has a wider type."""

_INTEGERS: Final = frozenset({"UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64"})
_FLOATS: Final = frozenset({"FP16", "FP32", "FP64", "BF16"})


def with_config_types(signature: Signature, config: ModelConfig) -> Signature:
    """Return ``signature`` with the data types of ``config`` where OpenVINO can convert."""
    return replace(
        signature,
        inputs=_converted(signature.inputs, config.input, _can_take),
        outputs=_converted(signature.outputs, config.output, _can_give),
    )


def differences(found: Mapping[str, TensorSpec], wanted: Mapping[str, TensorSpec]) -> dict[int, str]:
    """Return OpenVINO's name of the new type by the index of each tensor that has another type in ``wanted``."""
    return {
        index: TYPE_NAMES[spec.datatype]
        for index, (name, spec) in enumerate(wanted.items())
        if spec.datatype is not None and spec.datatype != found[name].datatype
    }


def narrowed(signature: Signature) -> list[str]:
    """Return the inputs and outputs whose values OpenVINO cannot compute with in full on the CPU."""
    return [
        tensor.name
        for tensor in (*signature.inputs.values(), *signature.outputs.values())
        if tensor.datatype in NARROWED
    ]


def _converted(
    specs: Mapping[str, TensorSpec],
    tensors: Iterable[ModelInput | ModelOutput],
    can_convert: Callable[[str, str], bool],
) -> dict[str, TensorSpec]:
    result = dict(specs)
    for tensor in tensors:
        spec = specs.get(tensor.name)
        datatype = datatypes.from_config_name(tensor.data_type)
        if spec is not None and spec.datatype is not None and can_convert(datatype, spec.datatype):
            result[tensor.name] = replace(spec, datatype=datatype)
    return result


def _can_take(given: str, needed: str) -> bool:
    return _can_give(given, needed) or (given in _INTEGERS and needed in _FLOATS)


def _can_give(wanted: str, found: str) -> bool:
    return {wanted, found} <= _INTEGERS or {wanted, found} <= _FLOATS
