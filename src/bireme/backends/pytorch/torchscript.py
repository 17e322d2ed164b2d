"""TorchScript files: what their ``forward()`` declares, and modules of them for instances.

Source: Triton ``pytorch_backend`` ``src/pt/`` (LoadModel, ValidateInputs).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from bireme.backends.pytorch.interface import DICTIONARY, SCALARS, TENSOR, TEXTS, Argument, Interface
from bireme.backends.pytorch.program import Forward
from bireme.backends.pytorch.runtime import log, quiet, torch
from bireme.backends.signature import Signature
from bireme.types import InvalidArgument

_ARGUMENT_TYPES: Final = frozenset({TENSOR, TEXTS, "str", *SCALARS})


class TorchScriptProgram:
    """An open TorchScript file. Several threads may run one module, unless ``forward()`` changes its attributes."""

    signature: Signature | None = None
    max_rows: int | None = None
    may_run_inline = True

    def __init__(self, model: str, path: Path, device: Any) -> None:
        """Load the file to ``device``; None: to where it says.

        Raises:
            InvalidArgument: it has no ``forward()`` that can be served.
            Exception: it cannot be read.
        """
        self._model = model
        self._path = path
        self._device = device
        self._modules = {str(device): self._load(device)}
        self._num_placed: dict[str, int] = {}
        forward = getattr(self._modules[str(device)], "forward", None)
        if forward is None or not hasattr(forward, "schema"):
            raise InvalidArgument(f"model '{model}': the TorchScript file '{path}' has no method forward()")
        self.interface = read_schema(model, forward.schema)

    def place(self, device: Any, *, sharing: bool | None) -> Forward:
        """Return ``forward()``; see `Program`."""
        key = str(device)
        if key not in self._modules:
            self._modules[key] = self._load(device)
        module = self._modules[key]
        self._num_placed[key] = self._num_placed.get(key, 0) + 1
        if self._num_placed[key] > 1 and not sharing:
            if sharing is False:
                module = self._load(device)
            elif changes_itself(module):
                log.info("model '%s': forward() keeps state, so each instance has its own", self._model)
                module = self._load_state(device, module)
        hooks = module._forward_hooks or module._forward_pre_hooks  # noqa: SLF001 - nothing public tells
        return module if hooks else module.forward  # type: ignore[no-any-return]

    def close(self) -> None:
        """Let go of the weights."""
        self._modules.clear()

    def _load(self, device: Any) -> Any:
        with quiet():
            module = torch.jit.load(str(self._path), map_location=device)
            return module.eval()

    def _load_state(self, device: Any, first: Any) -> Any:
        """Load a module that takes its parameters from ``first``; only what is read twice costs memory, for a moment."""
        module = self._load(device)
        for own, shared in zip(module.parameters(), first.parameters(), strict=True):
            own.data = shared.data
        return module


def read_schema(model: str, schema: Any) -> Interface:
    """Take over a ``torch._C.FunctionSchema``.

    Raises:
        InvalidArgument: an argument that has no default value is of a type that no tensor can be made to.
    """
    arguments = tuple(_argument(each) for each in schema.arguments[1:])  # without self
    takes_dictionary = sum(each.is_required for each in arguments) == 1 and arguments[0].type == DICTIONARY
    for argument in arguments:
        if argument.is_required and argument.type not in _ARGUMENT_TYPES and not takes_dictionary:
            raise InvalidArgument(
                f"model '{model}': argument '{argument.names[0]}' of forward() is a {argument.type}, which no tensor can be "
                f"made to; expected {TENSOR}, {TEXTS}, {', '.join(sorted(SCALARS))}, or one {DICTIONARY} for all inputs. "
                f"The model file has forward({', '.join(map(str, arguments))})"
            )
    types = _return_types(schema.returns[0].type) if len(schema.returns) == 1 else None
    by_key = types == (DICTIONARY,)
    return Interface(
        arguments,
        outputs=None if types is None or by_key else ((),) * len(types),
        output_types=() if types is None or by_key else types,
        by_key=by_key,
        takes_dictionary=takes_dictionary,
    )


def _argument(schema_argument: Any) -> Argument:
    kind = str(schema_argument.type)
    if kind.startswith("Optional["):
        kind = kind.removeprefix("Optional[").removesuffix("]")
    return Argument(
        names=(schema_argument.name,),
        type=kind,
        is_required=not schema_argument.has_default_value(),
        default=schema_argument.default_value,
        keyword=schema_argument.name if schema_argument.kwarg_only else "",
    )


def _return_types(returned: Any) -> tuple[str, ...] | None:
    """Return the type of each output; None: only a run tells how many there are."""
    kind = returned.kind()
    if kind == "TupleType":
        return tuple(str(element) for element in returned.elements())
    name = str(returned)
    return (name,) if name in {TENSOR, TEXTS, DICTIONARY, "str", *SCALARS} else None


def changes_itself(module: Any) -> bool:
    """Whether a run of ``forward()`` changes attributes of the module, such as a state that it keeps."""
    graph = module.inlined_graph
    writers = graph.alias_db()
    for node in _nodes(graph):
        if node.kind() == "prim::SetAttr":
            return True
        if node.kind() == "prim::GetAttr" and any(writers.has_writers(value) for value in node.outputs()):
            return True
    return False


def _nodes(block: Any) -> Iterator[Any]:
    for node in block.nodes():
        yield node
        for inner in node.blocks():
            yield from _nodes(inner)
