"""Gives a model the shapes that its config wants, before it is compiled.

- ``RESHAPE_IO_LAYERS``: inputs get the dims of the config.
- Batching: where the config has a ``max_batch_size`` and the file a fixed first dimension (models are often exported for
  one item), or where the file's layouts say that the first dimension is a batch, it becomes dynamic.
- ``SKIP_OV_DYNAMIC_BATCHSIZE``: it becomes ``max_batch_size``, for models that cannot have a dynamic one.

Source: Triton's openvino_backend ``openvino.cc`` (ValidateInputs, AutoCompleteBatching).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from bireme.backends.openvino.errors import reason_of
from bireme.backends.openvino.signature import has_known_rank, read_signature, shape_of
from bireme.backends.signature import Signature, TensorSpec
from bireme.config import ModelConfig
from bireme.config.reshape import model_dims
from bireme.types import InvalidArgument


def take_config_shapes(model: Any, config: ModelConfig) -> None:
    """Give the inputs that ``config`` lists its dims, with a dynamic batch dimension in front when it batches.

    Raises:
        InvalidArgument: the model cannot have these shapes.
    """
    names = list(read_signature(model, config).inputs)
    batch = (-1,) if config.max_batch_size > 0 else ()
    shapes = {
        names.index(tensor.name): (*batch, *model_dims(tensor))
        for tensor in config.input
        if tensor.name in names
    }
    try:
        _reshape(model, shapes)
    except RuntimeError as error:
        wanted = ", ".join(f"'{names[index]}' {list(shape)}" for index, shape in shapes.items())
        raise InvalidArgument(
            f"model '{config.name}': parameter RESHAPE_IO_LAYERS: the model file cannot have inputs {wanted}: "
            f"{reason_of(error)}"
        ) from error


def make_batchable(model: Any, config: ModelConfig) -> str:
    """Make the first dimension of all inputs dynamic, if the config or the file's layouts ask for batching.

    Returns why that could not be done, and leaves the model as it was; empty: it is done, or nothing asked for it.
    """
    shapes = {index: shape_of(port) for index, port in enumerate(model.inputs)}
    if all(shape[:1] == (-1,) for shape in shapes.values()):
        return ""
    if config.max_batch_size <= 0 and not _has_batch_layout(model):
        return ""
    if not all(shapes.values()):
        return "an input has no first dimension"
    try:
        _reshape(model, {index: (-1, *shape[1:]) for index, shape in shapes.items()})
    except RuntimeError as error:
        return reason_of(error)
    fixed = [port for port in model.outputs if has_known_rank(port) and shape_of(port)[:1] != (-1,)]
    if not fixed:
        return ""
    shape = list(shape_of(fixed[0]))
    _reshape(model, shapes)
    return f"with a dynamic one in its inputs, it has an output of shape {shape}"


def fix_batch(model: Any, config: ModelConfig) -> None:
    """Make the first dimension of all inputs ``max_batch_size``.

    Raises:
        InvalidArgument: the model cannot have it.
    """
    size = config.max_batch_size
    shapes = {index: shape_of(port) for index, port in enumerate(model.inputs)}
    reason = "" if all(shapes.values()) else "an input has no first dimension"
    if not reason:
        try:
            _reshape(model, {index: (size, *shape[1:]) for index, shape in shapes.items()})
        except RuntimeError as error:
            reason = reason_of(error)
    if not reason:
        outputs = [shape_of(port) for port in model.outputs]
        reason = next((f"it has an output of shape {list(s)} then" for s in outputs if s[:1] != (size,)), "")
    if reason:
        raise InvalidArgument(
            f"model '{config.name}': parameter SKIP_OV_DYNAMIC_BATCHSIZE: the model file cannot have a first dimension of "
            f"{size}, the max_batch_size: {reason}"
        )


def as_batchable(signature: Signature) -> Signature:
    """Return ``signature`` with a dynamic first dimension, for a model that is given batches of the one size it takes."""
    return replace(signature, inputs=_with_batch(signature.inputs), outputs=_with_batch(signature.outputs))


def _with_batch(specs: Mapping[str, TensorSpec]) -> dict[str, TensorSpec]:
    return {name: replace(spec, shape=(-1, *spec.shape[1:])) for name, spec in specs.items()}


def _reshape(model: Any, shapes: Mapping[int, Iterable[int]]) -> None:
    model.reshape({index: list(shape) for index, shape in shapes.items()})


def _has_batch_layout(model: Any) -> bool:
    """Whether the file says of every input and output that its first dimension is a batch."""
    return all(str(port.get_node().get_layout()).startswith("[N") for port in (*model.inputs, *model.outputs))
