"""Gives a model the shapes and data types that its config wants, before it is compiled.

- ``RESHAPE_IO_LAYERS``: inputs get the dims of the config.
- Batching: where the config has a ``max_batch_size`` and the file a fixed first dimension (models are often exported for
  one item), or where the file's layouts say that the first dimension is a batch, it becomes dynamic.
- Data types: where the config has another type of the same sort (both integers, or both floating point; for inputs an
  integer for floating point, too: pictures), OpenVINO converts. Other differences are a fault of the config.

Source: Triton's openvino_backend ``openvino.cc`` (ValidateInputs, ValidateOutputs, AutoCompleteBatching).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

from bireme.backends.openvino.runtime import ov, reason_of
from bireme.backends.openvino.signature import TYPE_NAMES, has_known_rank, read_signature, shape_of
from bireme.backends.signature import Signature, TensorSpec
from bireme.config import ModelConfig
from bireme.config.model_config import ModelInput, ModelOutput
from bireme.config.state_tensors import with_state_tensors
from bireme.types import InvalidArgument, datatypes

_INTEGERS: Final = frozenset({"UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64"})
_FLOATS: Final = frozenset({"FP16", "FP32", "FP64", "BF16"})


def take_config_shapes(model: Any, config: ModelConfig) -> None:
    """Give the inputs that ``config`` lists its dims, with a dynamic batch dimension in front when it batches.

    Raises:
        InvalidArgument: the model cannot have these shapes.
    """
    names = list(read_signature(model, config).inputs)
    batch = (-1,) if config.max_batch_size > 0 else ()
    shapes = {
        names.index(tensor.name): (
            *batch,
            *(tensor.reshape.shape if tensor.reshape is not None else tensor.dims),
        )
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

    Returns why that could not be done; empty: it is, or nothing asked for it. The model is as before then.
    """
    shapes = [shape_of(port) for port in model.inputs]
    if all(shape[:1] == (-1,) for shape in shapes):
        return ""
    if config.max_batch_size <= 0 and not _has_batch_layout(model):
        return ""
    if not all(map(has_known_rank, model.inputs)) or not all(shapes):
        return "an input of the model file has no first dimension"
    before = dict(enumerate(shapes))
    try:
        _reshape(model, {index: (-1, *shape[1:]) for index, shape in before.items()})
    except RuntimeError as error:
        return reason_of(error)
    fixed = [port for port in model.outputs if has_known_rank(port) and shape_of(port)[:1] != (-1,)]
    if fixed:
        _reshape(model, before)
        return f"the first dimension of {len(fixed)} of its outputs does not follow that of the inputs"
    return ""


def fix_batch(model: Any, max_batch_size: int) -> None:
    """Make the first dimension of all inputs ``max_batch_size``.

    Raises:
        RuntimeError: the model cannot have it.
    """
    _reshape(model, {index: (max_batch_size, *shape_of(port)[1:]) for index, port in enumerate(model.inputs)})


def _reshape(model: Any, shapes: Mapping[int, Iterable[int]]) -> None:
    model.reshape({index: ov.PartialShape(list(shape)) for index, shape in shapes.items()})


def _has_batch_layout(model: Any) -> bool:
    """Whether the file says of every input and output that its first dimension is a batch."""
    return all(_begins_with_batch(port) for port in (*model.inputs, *model.outputs))


def _begins_with_batch(port: Any) -> bool:
    helpers = ov.layout_helpers
    layout = port.get_node().get_layout()
    return bool(helpers.has_batch(layout)) and helpers.batch_idx(layout) == 0


def with_config_types(signature: Signature, config: ModelConfig) -> Signature:
    """Return ``signature`` with the data types of ``config`` where OpenVINO can convert."""
    config = with_state_tensors(config)
    return replace(
        signature,
        inputs=_converted(signature.inputs, config.input, _can_take),
        outputs=_converted(signature.outputs, config.output, _can_give),
    )


def convert_types(model: Any, found: Signature, wanted: Signature) -> Any:
    """Return the model with the data types of ``wanted`` instead of ``found``; both describe it, in its order."""
    inputs = _differences(found.inputs, wanted.inputs)
    outputs = _differences(found.outputs, wanted.outputs)
    if not inputs and not outputs:
        return model
    processor = ov.preprocess.PrePostProcessor(model)
    for index, type_name in inputs.items():
        processor.input(index).tensor().set_element_type(getattr(ov.Type, type_name))
    for index, type_name in outputs.items():
        processor.output(index).tensor().set_element_type(getattr(ov.Type, type_name))
    return processor.build()


def _differences(found: Mapping[str, TensorSpec], wanted: Mapping[str, TensorSpec]) -> dict[int, str]:
    return {
        index: TYPE_NAMES[spec.datatype]
        for index, (name, spec) in enumerate(wanted.items())
        if spec.datatype is not None and spec.datatype != found[name].datatype
    }


def _converted(
    specs: Mapping[str, TensorSpec], tensors: Iterable[ModelInput | ModelOutput], can_convert: Any
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
