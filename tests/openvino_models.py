"""Small OpenVINO models made on the fly, and opened through the backend as the engine does.

Each ``make_*`` returns an ``openvino.Model``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from bireme.backends.interface import ModelContext
from bireme.backends.openvino.backend import OpenVinoBackend
from bireme.backends.openvino.runtime import ov
from bireme.config import ModelConfig
from bireme.config.model_config import ModelInput, ModelInstanceGroup, ModelOutput, ModelParameter
from opened_model import OpenedModel

ops = ov.opset13
OV_TYPES = {
    "BOOL": "boolean",
    "UINT8": "u8",
    "UINT16": "u16",
    "UINT32": "u32",
    "UINT64": "u64",
    "INT8": "i8",
    "INT16": "i16",
    "INT32": "i32",
    "INT64": "i64",
    "FP16": "f16",
    "FP32": "f32",
    "FP64": "f64",
    "BF16": "bf16",
    "BYTES": "string",
}
EMPTY = ModelConfig(name="m", backend="openvino", instance_group=(ModelInstanceGroup("m", "KIND_CPU", 1),))


def parameter(name: str, shape: Sequence[int], type_name: str = "f32") -> Any:
    """Return an input; -1 is a dynamic dimension."""
    node = ops.parameter(ov.PartialShape(list(shape)), getattr(ov.Type, type_name), name=name)
    return named(node, name)


def named(node: Any, *names: str) -> Any:
    """Return the node, with these names for its output."""
    node.output(0).set_names(set(names))
    return node


def make_add(shape: Sequence[int] = (-1, 16), type_name: str = "f32", names: Sequence[str] = "ABS") -> Any:
    """S = A + B."""
    a, b = (parameter(name, shape, type_name) for name in names[:2])
    return ov.Model([named(ops.add(a, b), names[2])], [a, b], "add")


def make_identity(shape: Sequence[int], type_name: str = "f32") -> Any:
    """Y = X."""
    x = parameter("X", shape, type_name)
    if type_name in {"f32", "f16", "bf16", "f64"}:
        y = ops.add(x, ops.constant(0, dtype=getattr(ov.Type, type_name)))
    else:
        y = ops.reshape(x, ops.constant([0] * len(shape), dtype=np.int64), special_zero=True)
    return ov.Model([named(y, "Y")], [x], "identity")


def make_matmul(num: int = 8, shape: Sequence[int] = (1, -1)) -> Any:
    """Y = X · (2 · identity), with weights."""
    x = parameter("X", [shape[0], num])
    y = ops.matmul(x, ops.constant(2 * np.eye(num, dtype=np.float32)), False, False)
    return ov.Model([named(y, "Y")], [x], "matmul")


def make_fixed(batch: int = 2) -> Any:
    """Y = X[2, 4] as one row of 8 and back: no other batch is possible, since the shapes are constants."""
    x = parameter("X", [batch, 4])
    row = ops.reshape(x, ops.constant([4 * batch], dtype=np.int64), special_zero=False)
    y = ops.reshape(row, ops.constant([batch, 4], dtype=np.int64), special_zero=False)
    return ov.Model([named(y, "Y")], [x], "fixed")


def make_nonzero() -> Any:
    """Y = the indices of what is not zero in X: as many as there are."""
    x = parameter("X", [-1])
    y = ops.squeeze(ops.non_zero(x, output_type="i64"), ops.constant([0], dtype=np.int64))
    return ov.Model([named(y, "Y")], [x], "nonzero")


def make_running_sum() -> Any:
    """after = before + X, and Y = 2 · after."""
    x, before = parameter("X", [-1, 2]), parameter("before", [-1, 2])
    after = named(ops.add(before, x), "after")
    return ov.Model([after, named(ops.add(after, after), "Y")], [x, before], "running_sum")


def make_counter() -> Any:
    """Y = the sum of all X so far, which the model itself remembers."""
    info = ov.op.util.VariableInfo()
    info.data_shape, info.data_type, info.variable_id = ov.PartialShape([1]), ov.Type.f32, "sum"
    variable = ov.op.util.Variable(info)
    x = parameter("X", [1])
    y = named(ops.add(ops.read_value(ops.constant(np.zeros(1, np.float32)), variable), x), "Y")
    return ov.Model([ops.result(y)], [ops.assign(y, variable)], [x], "counter")


def save(model: Any, path: Path) -> Path:
    """Write an IR and its weights; return the path of the IR."""
    path.parent.mkdir(parents=True, exist_ok=True)
    ov.save_model(model, path, compress_to_fp16=False)
    return path


def tensors(config: ModelConfig, inputs: str, outputs: str) -> ModelConfig:
    """Return ``config`` with inputs and outputs as ``X:FP32:-1,4 Z:INT64:1``."""
    read = [
        [
            (name, f"TYPE_{kind}", tuple(int(dim) for dim in dims.split(",") if dim))
            for name, kind, dims in (each.split(":") for each in text.split())
        ]
        for text in (inputs, outputs)
    ]
    return replace(
        config,
        input=tuple(ModelInput(name, kind, dims=dims) for name, kind, dims in read[0]),
        output=tuple(ModelOutput(name, kind, dims=dims) for name, kind, dims in read[1]),
    )


def parameters(**values: str) -> dict[str, ModelParameter]:
    return {key: ModelParameter(value) for key, value in values.items()}


class OpenModel(OpenedModel):
    """A model of OpenVINO's."""

    def __init__(self, ctx: ModelContext) -> None:
        super().__init__(OpenVinoBackend(), ctx)


def context(folder: Path, config: ModelConfig = EMPTY, **backend_config: str) -> ModelContext:
    settings = {key.replace("_", "-"): value for key, value in backend_config.items()}
    return ModelContext("m", 1, folder, folder / "1", config, settings)
