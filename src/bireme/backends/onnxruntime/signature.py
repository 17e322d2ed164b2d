"""What an ONNX file declares, as onnxruntime tells it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from bireme.backends.signature import Signature, TensorSpec

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


def read_signature(session: Any) -> Signature:
    """Take over what an ``onnxruntime.InferenceSession`` says about its model."""
    return Signature(
        _by_name(session.get_inputs()),
        _by_name(session.get_outputs()),
        _by_name(session.get_overridable_initializers()),
    )


def read_node(node: Any) -> TensorSpec:
    """Take over an ``onnxruntime.NodeArg``."""
    shape = tuple(dim if isinstance(dim, int) and dim >= 0 else -1 for dim in node.shape)
    return TensorSpec(node.name, _DATATYPES.get(node.type), shape, node.type)


def _by_name(nodes: Iterable[Any]) -> dict[str, TensorSpec]:
    return {node.name: read_node(node) for node in nodes}
