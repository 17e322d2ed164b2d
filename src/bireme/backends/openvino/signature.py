"""What a model declares, as OpenVINO tells it, under the names that its config uses.

A tensor may have several names (TensorFlow's ``x`` and ``x:0``), or none. It goes by the one that the config uses, else by the
shortest, else by that of the operation that makes it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

from bireme.backends.openvino.data_types import DATATYPES
from bireme.backends.signature import Signature, TensorSpec
from bireme.config import ModelConfig
from bireme.config.state_tensors import server_inputs, with_state_tensors


def read_signature(model: Any, config: ModelConfig) -> Signature:
    """Take over what an ``openvino.Model`` says. The order is that of the model: the index of an input or output."""
    config = with_state_tensors(config)
    inputs = {tensor.name for tensor in config.input} | server_inputs(config)
    inputs.update(name for entry in config.batch_input for name in entry.target_name)
    outputs = {tensor.name for tensor in config.output}
    return Signature(_by_name(model.inputs, inputs), _by_name(model.outputs, outputs))


def shape_of(port: Any) -> tuple[int, ...]:
    """Return the shape of an input or output, -1 for what is dynamic; () for an unknown rank, too."""
    shape = port.get_partial_shape()
    if shape.rank.is_dynamic:
        return ()
    return tuple(-1 if dim.is_dynamic else dim.get_length() for dim in shape)


def fixed_shape_of(port: Any) -> tuple[int, ...] | None:
    """Return the shape of an input or output if no dimension of it is dynamic."""
    shape = port.get_partial_shape()
    return tuple(shape.to_shape()) if shape.is_static else None


def has_known_rank(port: Any) -> bool:
    """Whether it is known how many dimensions an input or output has."""
    return not port.get_partial_shape().rank.is_dynamic


def _by_name(ports: Iterable[Any], wanted: Collection[str]) -> dict[str, TensorSpec]:
    specs: dict[str, TensorSpec] = {}
    for index, port in enumerate(ports):
        name = _choose_name(port, index, wanted, specs)
        type_name = port.get_element_type().get_type_name()
        specs[name] = TensorSpec(name, DATATYPES.get(type_name), shape_of(port), type_name)
    return specs


def _choose_name(port: Any, index: int, wanted: Collection[str], taken: Collection[str]) -> str:
    """Return the name that the tensor goes by; one tensor may be an output twice, under the same names."""
    names = sorted(port.get_names(), key=lambda name: (name not in wanted, len(name), name))
    operation = _operation_of(port)
    if operation in wanted and (not names or names[0] not in wanted):
        names.insert(0, operation)
    return next((name for name in (*names, operation) if name not in taken), f"{operation}:{index}")


def _operation_of(port: Any) -> str:
    node = port.get_node()
    if node.get_type_name() == "Result":
        node = node.input_value(0).get_node()
    name: str = node.get_friendly_name()
    return name
