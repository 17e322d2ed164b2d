"""Frozen graphs (``model.graphdef``): any node's output is an input or output of the model, if the config says so.

Where it doesn't, outputs are what nothing in the graph takes, and inputs the placeholders that they need. Triton wants both to
be in the config.

Source: Triton ``tensorflow_backend_tf.cc`` (TRITONTF_ModelCreateFromGraphDef), ``tensorflow.cc`` (graphdef::ValidateTRITONTFModel).
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from bireme.backends.interface import ModelContext
from bireme.backends.model_file import explain_failure
from bireme.backends.signature import Signature, TensorSpec, quoted
from bireme.backends.tensorflow.runtime import describe_error, tf, v1
from bireme.backends.tensorflow.session import opening
from bireme.backends.tensorflow.settings import BackendSettings, ModelSettings
from bireme.backends.tensorflow.signature import GraphSignature, make_spec
from bireme.config import ModelConfig
from bireme.config.faults import near_name
from bireme.config.state_tensors import server_inputs, with_state_tensors
from bireme.types import InvalidArgument

_PLACEHOLDER: Final = "Placeholder"
_WITH_DEFAULT: Final = "PlaceholderWithDefault"
_INPUTS: Final = frozenset({_PLACEHOLDER, _WITH_DEFAULT})
_CONSTANTS: Final = frozenset({"Const", "VarHandleOp", "VariableV2"})
_MAX_LISTED: Final = 10


class FrozenGraph:
    """A graph without signatures, open."""

    def __init__(
        self,
        ctx: ModelContext,
        path: Path,
        settings: ModelSettings,
        backend_settings: BackendSettings,
    ) -> None:
        """Read the ``GraphDef`` at ``path``.

        Raises:
            InvalidArgument: it is none.
        """
        definition = _read(ctx, path)
        for node in definition.node:
            node.device = ""
        with opening(ctx, settings, backend_settings) as opened:
            try:
                tf.import_graph_def(definition, name="")
            except Exception as error:
                raise InvalidArgument(
                    f"model '{ctx.name}': TensorFlow cannot load '{path}': {describe_error(error)}"
                ) from error
        self.opened = opened

    def describe(self, config: ModelConfig) -> GraphSignature:
        """Return what the graph says of the inputs and outputs in ``config``, and of the placeholders that they need.

        Raises:
            InvalidArgument: the graph has no such node, or no outputs.
        """
        results = {} if config.output else self._default_results(config)
        config = with_state_tensors(config)
        results |= {tensor.name: self._find(config, "output", tensor.name) for tensor in config.output}
        names = [tensor.name for tensor in config.input]
        names += [name for entry in config.batch_input for name in entry.target_name]
        names += sorted(server_inputs(config) - set(names))
        tensors = {name: self._find(config, "input", name) for name in names}
        fed = {tensor.name for tensor in tensors.values()}
        for placeholder in _placeholders(results.values(), fed):
            tensors.setdefault(placeholder.op.name, placeholder)
        inputs = {name: _spec(name, tensor) for name, tensor in tensors.items()}
        optional = {name for name, tensor in tensors.items() if tensor.op.type == _WITH_DEFAULT}
        return GraphSignature(
            signature=Signature(
                {name: spec for name, spec in inputs.items() if name not in optional},
                {name: _spec(name, tensor) for name, tensor in results.items()},
                {name: inputs[name] for name in optional},
            ),
            tensors={name: tensor.name for name, tensor in tensors.items()},
            results={name: tensor.name for name, tensor in results.items()},
            unranked_inputs=_unranked(tensors.items()),
            unranked_outputs=_unranked(results.items()),
        )

    def _find(self, config: ModelConfig, kind: str, name: str) -> Any:
        """Return the tensor called ``name``, ``node`` or ``node:index``."""
        node, _, index = name.partition(":")
        graph = self.opened.graph
        try:
            return graph.get_tensor_by_name(f"{node}:{index or 0}")
        except (KeyError, ValueError):
            names = [operation.name for operation in graph.get_operations()]
        if node in names:
            num_outputs = len(graph.get_operation_by_name(node).outputs)
            raise InvalidArgument(
                f"model '{config.name}': {kind} '{name}': node '{node}' of the graph has {num_outputs} outputs, so there is "
                f"no such tensor"
            )
        near = near_name(node, names)
        suggestion = f"; did you mean '{near}'?" if near else ""
        usual = self._all_placeholders() if kind == "input" else list(self._last_tensors())
        raise InvalidArgument(
            f"model '{config.name}': {kind} '{name}' is in the config, but the graph has no node '{node}'{suggestion}; its "
            f"{'placeholders' if kind == 'input' else 'last results'} are {quoted(usual[:_MAX_LISTED])}"
        )

    def _all_placeholders(self) -> list[str]:
        return [each.name for each in self.opened.graph.get_operations() if each.type in _INPUTS]

    def _default_results(self, config: ModelConfig) -> dict[str, Any]:
        results = self._last_tensors()
        if not results:
            raise InvalidArgument(
                f"model '{config.name}': the graph does not show what its outputs are; list them in config.pbtxt"
            )
        return results

    def _last_tensors(self) -> dict[str, Any]:
        """Return what nothing in the graph takes, by name; what is there for training and for saving variables is left out."""
        return {
            f"{operation.name}:{index}" if index else operation.name: tensor
            for operation in self.opened.graph.get_operations()
            if operation.type not in _INPUTS | _CONSTANTS
            and not operation.type.startswith("Assign")
            and not operation.name.startswith("save/")
            and not any(tensor.consumers() for tensor in operation.outputs)
            for index, tensor in enumerate(operation.outputs)
        }


def _placeholders(results: Iterable[Any], fed: set[str]) -> list[Any]:
    """Return the placeholders that ``results`` are computed from, beyond the tensors that are ``fed``."""
    waiting = [tensor.op for tensor in results if tensor.name not in fed]
    seen: set[str] = set()
    found = []
    while waiting:
        operation = waiting.pop()
        if operation.name in seen:
            continue
        seen.add(operation.name)
        if operation.type == _PLACEHOLDER:
            found.append(operation.outputs[0])
        waiting += [tensor.op for tensor in operation.inputs if tensor.name not in fed]
        waiting += operation.control_inputs
    return sorted(found, key=lambda tensor: str(tensor.name))


def _read(ctx: ModelContext, path: Path) -> Any:
    definition = v1.GraphDef()
    try:
        definition.ParseFromString(path.read_bytes())
    except Exception as error:
        raise InvalidArgument(
            f"model '{ctx.name}': '{path}' is no GraphDef: {explain_failure(path, describe_error(error))}"
        ) from error
    if not definition.node:
        raise InvalidArgument(
            f"model '{ctx.name}': '{path}' is no GraphDef: {explain_failure(path, 'there is no node in it')}"
        )
    return definition


def _spec(name: str, tensor: Any) -> TensorSpec:
    dims = () if tensor.shape.rank is None else tensor.shape.as_list()
    return make_spec(name, tensor.dtype.as_datatype_enum, tuple(-1 if dim is None else dim for dim in dims))


def _unranked(tensors: Iterable[tuple[str, Any]]) -> frozenset[str]:
    return frozenset(name for name, tensor in tensors if tensor.shape.rank is None)
