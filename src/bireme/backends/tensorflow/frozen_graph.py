"""Frozen graphs (``model.graphdef``): any node's output is an input or output of the model, if the config says so.

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
            InvalidArgument: the graph has no such node, or the config lists no outputs.
        """
        config = with_state_tensors(config)
        if not config.output:
            raise InvalidArgument(
                f"model '{config.name}': a frozen graph does not say what its outputs are; list them in config.pbtxt. "
                f"Nothing in the graph takes the results of {quoted(self._last_nodes())}"
            )
        results = {tensor.name: self._find(config, "output", tensor.name) for tensor in config.output}
        names = [tensor.name for tensor in config.input]
        names += [name for entry in config.batch_input for name in entry.target_name]
        names += sorted(server_inputs(config) - set(names))
        tensors = {name: self._find(config, "input", name) for name in names}
        fed = {tensor.name for tensor in tensors.values()}
        for placeholder in self._placeholders(results.values(), fed):
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
        usual = [n.name for n in self._all_placeholders()] if kind == "input" else self._last_nodes()
        raise InvalidArgument(
            f"model '{config.name}': {kind} '{name}' is in the config, but the graph has no node '{node}'{suggestion}; its "
            f"{'placeholders' if kind == 'input' else 'last nodes'} are {quoted(usual[:_MAX_LISTED])}"
        )

    def _all_placeholders(self) -> list[Any]:
        operations = self.opened.graph.get_operations()
        return [operation for operation in operations if operation.type in {_PLACEHOLDER, _WITH_DEFAULT}]

    def _last_nodes(self) -> list[str]:
        return [
            operation.name
            for operation in self.opened.graph.get_operations()
            if operation.outputs
            and operation.type not in {_PLACEHOLDER, _WITH_DEFAULT, "Const"}
            and not any(tensor.consumers() for tensor in operation.outputs)
        ][:_MAX_LISTED]

    @staticmethod
    def _placeholders(results: Iterable[Any], fed: set[str]) -> list[Any]:
        """Return the placeholders that ``results`` are computed from, beyond what is fed."""
        seen: set[str] = set()
        waiting = [tensor for tensor in results if tensor.name not in fed]
        found = []
        while waiting:
            tensor = waiting.pop()
            operation = tensor.op
            if operation.name in seen:
                continue
            seen.add(operation.name)
            if operation.type == _PLACEHOLDER:
                found.append(tensor)
            waiting += [each for each in operation.inputs if each.name not in fed]
            for control in operation.control_inputs:
                waiting += [each for each in control.outputs if each.name not in fed]
        return found[::-1]


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
