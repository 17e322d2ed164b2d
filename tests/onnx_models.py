"""Small ONNX models and repositories made on the fly; each ``save_*`` writes one file and makes its folders."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

ONNX_TYPES = {
    "BOOL": TensorProto.BOOL,
    "UINT8": TensorProto.UINT8,
    "UINT16": TensorProto.UINT16,
    "UINT32": TensorProto.UINT32,
    "UINT64": TensorProto.UINT64,
    "INT8": TensorProto.INT8,
    "INT16": TensorProto.INT16,
    "INT32": TensorProto.INT32,
    "INT64": TensorProto.INT64,
    "FP16": TensorProto.FLOAT16,
    "FP32": TensorProto.FLOAT,
    "FP64": TensorProto.DOUBLE,
    "BF16": TensorProto.BFLOAT16,
    "BYTES": TensorProto.STRING,
}
"""ONNX element type of every protocol data type."""

Save = Callable[[Path], Path]


def tensor_info(name: str, datatype: str, dims: Sequence[int], *, batch: bool = False) -> onnx.ValueInfoProto:
    """Describe a graph input or output; -1 is a dynamic dimension, ``batch`` adds one called "batch" in front."""
    shape: list[int | str] = [f"{name}_{axis}" if dim == -1 else dim for axis, dim in enumerate(dims)]
    if batch:
        shape.insert(0, "batch")
    return helper.make_tensor_value_info(name, ONNX_TYPES[datatype], shape)


def save_graph(
    path: Path,
    nodes: Iterable[onnx.NodeProto],
    inputs: Iterable[onnx.ValueInfoProto],
    outputs: Iterable[onnx.ValueInfoProto],
    initializers: Iterable[onnx.TensorProto] = (),
    *,
    opset: int = 17,
    **save_options: Any,
) -> Path:
    """Write a graph as an ONNX file and return its path. ``save_options`` go to `onnx.save` (external data, ...)."""
    graph = helper.make_graph(list(nodes), "graph", list(inputs), list(outputs), list(initializers))
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(model, path, **save_options)
    return path


def save_add(path: Path, dims: Sequence[int] = (16,), batch: bool = False, datatype: str = "FP32") -> Path:
    """Write a model with OUTPUT0 = INPUT0 + INPUT1 and OUTPUT1 = INPUT0 - INPUT1."""
    inputs = [tensor_info(name, datatype, dims, batch=batch) for name in ("INPUT0", "INPUT1")]
    outputs = [tensor_info(name, datatype, dims, batch=batch) for name in ("OUTPUT0", "OUTPUT1")]
    nodes = [
        helper.make_node("Add", ["INPUT0", "INPUT1"], ["OUTPUT0"]),
        helper.make_node("Sub", ["INPUT0", "INPUT1"], ["OUTPUT1"]),
    ]
    return save_graph(path, nodes, inputs, outputs)


def save_plus_one(path: Path, batch: bool = False) -> Path:
    """Write a model with Y = X + 1, both FP32[-1]."""
    one = helper.make_tensor("one", TensorProto.FLOAT, [], [1.0])
    return save_graph(
        path,
        [helper.make_node("Add", ["X", "one"], ["Y"])],
        [tensor_info("X", "FP32", (-1,), batch=batch)],
        [tensor_info("Y", "FP32", (-1,), batch=batch)],
        [one],
    )


def save_identity(
    path: Path, datatype: str = "FP32", dims: Sequence[int] = (-1,), batch: bool = False
) -> Path:
    """Write a model with Y = X of any data type, strings included."""
    return save_graph(
        path,
        [helper.make_node("Identity", ["X"], ["Y"])],
        [tensor_info("X", datatype, dims, batch=batch)],
        [tensor_info("Y", datatype, dims, batch=batch)],
    )


def save_widened(path: Path, size: int) -> Path:
    """Write a model with Y = X repeated ``size`` times, from FP32[1]: a small request with a large answer."""
    shape = numpy_helper.from_array(np.array([size], np.int64), "shape")
    return save_graph(
        path,
        [helper.make_node("Expand", ["X", "shape"], ["Y"])],
        [tensor_info("X", "FP32", (1,))],
        [tensor_info("Y", "FP32", (size,))],
        [shape],
    )


def save_matmul(path: Path, size: int = 256, num_layers: int = 4, batch: bool = True) -> Path:
    """Write a model with Y = X times ``num_layers`` identity matrices: some work, and a known answer."""
    weight = numpy_helper.from_array(np.eye(size, dtype=np.float32), "weight")
    names = ["X", *(f"hidden_{layer}" for layer in range(num_layers - 1)), "Y"]
    return save_graph(
        path,
        [helper.make_node("MatMul", [names[i], "weight"], [names[i + 1]]) for i in range(num_layers)],
        [tensor_info("X", "FP32", (size,), batch=batch)],
        [tensor_info("Y", "FP32", (size,), batch=batch)],
        [weight],
    )


def add_model(
    root: Path, name: str, save: Save, *, config: str | None = None, versions: Sequence[int] = (1,)
) -> Path:
    """Write ``<root>/<name>/<version>/model.onnx`` by ``save`` and, if given, config.pbtxt; return the folder.

    Options of a ``save_*`` function are bound with `functools.partial`.
    """
    model_dir = root / name
    for version in versions:
        save(model_dir / str(version) / "model.onnx")
    if config is not None:
        (model_dir / "config.pbtxt").write_text(config, encoding="utf-8")
    return model_dir


def make_repository(root: Path, models: Mapping[str, Save | tuple[Save, str]]) -> Path:
    """Write a repository and return ``root``; a value is a ``save_*`` function, alone or with a config text.

    Example: ``make_repository(tmp_path, {"add": save_add, "one": (save_plus_one, "max_batch_size: 0")})``.
    """
    root.mkdir(parents=True, exist_ok=True)
    for name, spec in models.items():
        save, config = spec if isinstance(spec, tuple) else (spec, None)
        add_model(root, name, save, config=config)
    return root
