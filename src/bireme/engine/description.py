"""What a server says about itself and its models: the JSON objects of the metadata routes.

Source: KServe v2 "Server Metadata", "Model Metadata"; Triton ``tritonserver.cc``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from bireme.engine.model import Model
from bireme.engine.validation import TensorSpec
from bireme.repository import make_key

EXTENSIONS = (
    "classification",
    "sequence",
    "model_repository",
    "model_repository(unload_dependents)",
    "schedule_policy",
    "model_configuration",
    "system_shared_memory",
    "cuda_shared_memory",
    "binary_tensor_data",
    "parameters",
    "statistics",
    "trace",
    "logging",
)
"""In Triton's order."""


def describe_model(model: Model, versions: Iterable[int]) -> dict[str, Any]:
    """Return the metadata of ``model``, which stands for ``versions``. -1 in a shape is any size."""
    return {
        "name": model.name,
        "versions": [str(version) for version in versions],
        "platform": model.config.platform or model.config.backend,
        "inputs": [_describe_tensor(spec) for spec in model.inputs.values()],
        "outputs": [_describe_tensor(spec) for spec in model.outputs.values()],
    }


def status_table(index: Iterable[dict[str, str]]) -> list[str]:
    """Return the repository index as the lines of a table: model, version, status with its reason's first line."""
    rows = [("Model", "Version", "Status")]
    for entry in index:
        status = entry.get("state", "not loaded")
        first_line = entry.get("reason", "").strip().partition("\n")[0]
        rows.append(
            (_identity(entry), entry.get("version", "-"), f"{status}: {first_line}" if first_line else status)
        )
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    rule = "+" + "+".join("-" * (width + 2) for width in widths) + "+"
    lines = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |"
        for row in rows
    ]
    return [rule, lines[0], rule, *lines[1:], rule]


def _identity(entry: dict[str, str]) -> str:
    return make_key(entry.get("namespace", ""), entry["name"])


def _describe_tensor(spec: TensorSpec) -> dict[str, Any]:
    return {"name": spec.name, "datatype": spec.datatype, "shape": list(spec.shape)}
