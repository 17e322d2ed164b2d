"""Programs of ``torch.export``: they describe their tensors, dynamic dimensions included.

They are called with flat lists of tensors here, without torch's own walk through nested arguments, which costs 50 µs.

Source: Triton ``pytorch_backend`` README ("AOT Inductor Support"), ``src/pt2/``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bireme.backends.pytorch.call_spec import argument_names, result_names
from bireme.backends.pytorch.compilation import Compile
from bireme.backends.pytorch.interface import Argument, Interface
from bireme.backends.pytorch.modules import Modules
from bireme.backends.pytorch.program import Forward
from bireme.backends.pytorch.runtime import quiet, torch
from bireme.backends.pytorch.tensors import DATATYPES
from bireme.backends.signature import Signature, TensorSpec


class ExportedProgram:
    """An open program of ``torch.export``. It describes its tensors."""

    may_run_inline = True

    def __init__(self, model: str, path: Path, compiles: Compile | None) -> None:
        """Load the file, on the CPU.

        Raises:
            Exception: it cannot be read.
        """
        with quiet():
            # By name torch takes only files that end in .pt2.
            with path.open("rb") as file:
                program = torch.export.load(file)
            module = program.module()
        self._model = model
        self._program = program
        self._compiles = compiles
        self.signature: Signature | None
        self.interface, self.signature = read_program(program)
        self.max_rows = read_max_rows(program)
        self._modules = Modules(_flat(module), torch.device("cpu"), self._move)

    def place(self, device: Any, *, sharing: bool | None) -> Forward:
        """Return ``forward()``; see `Program`."""
        module = self._modules.place(device, sharing=sharing)
        forward: Forward = module.forward if self._compiles is None else self._compiles(module)
        return forward

    def close(self) -> None:
        """Let go of the weights."""
        self._modules.close()
        for tensors in (self._program.state_dict, self._program.constants):
            tensors.clear()
        self._program = None

    def _move(self, _module: Any, device: Any) -> Any:
        """Constants of the program lie on devices, too, so it is moved as a whole."""
        from torch.export.passes import move_to_device_pass

        return _flat(move_to_device_pass(self._program, device).module())


def _flat(module: Any) -> Any:
    """Have ``forward()`` take and return flat lists of tensors."""
    module.graph.set_codegen(torch.fx.graph.CodeGen())
    module.recompile()
    return module


def read_program(program: Any) -> tuple[Interface, Signature]:
    """Return what a ``torch.export.ExportedProgram`` takes and gives back, and its tensors.

    An input is called as the argument of ``forward()`` that it is, an output as its key in a dictionary or by its position.
    """
    dumps = torch.utils._pytree.treespec_dumps  # noqa: SLF001 - nothing public writes it
    values = {node.name: node.meta.get("val") for node in program.graph.nodes}
    arguments: list[Argument] = []
    inputs: dict[str, TensorSpec] = {}
    user_inputs = [spec.arg for spec in program.graph_signature.input_specs if spec.kind.name == "USER_INPUT"]
    paths = argument_names(dumps(program.call_spec.in_spec))
    for argument, names in zip(user_inputs, paths, strict=True):
        is_constant = hasattr(argument, "value")
        is_tensor = isinstance(values.get(argument.name), torch.Tensor)
        arguments.append(
            Argument(
                (argument.name, *names),
                "Tensor" if is_tensor else "int",
                is_required=not is_constant,
                default=argument.value if is_constant else None,
            )
        )
        if is_tensor:
            inputs[argument.name] = _spec(argument.name, values[argument.name])
    outputs: dict[str, TensorSpec] = {}
    user_outputs = [
        spec.arg for spec in program.graph_signature.output_specs if spec.kind.name == "USER_OUTPUT"
    ]
    results = result_names(dumps(program.call_spec.out_spec))
    for argument, names in zip(user_outputs, results, strict=True):
        value = values.get(argument.name)
        if isinstance(value, torch.Tensor):
            outputs[names[0]] = _spec(names[0], value)
    interface = Interface(tuple(arguments), outputs=results, is_strict=True)
    return interface, Signature(inputs, outputs)


def read_max_rows(program: Any) -> int | None:
    """Return the largest batch that the program was exported for; None: any."""
    bounds = []
    for node in program.graph.nodes:
        value = node.meta.get("val")
        if node.op != "placeholder" or not isinstance(value, torch.Tensor) or not value.ndim:
            continue
        found = program.range_constraints.get(getattr(getattr(value.shape[0], "node", None), "expr", None))
        if found is not None:
            bounds.append(found.upper)
    finite = [int(bound) for bound in bounds if bound.is_Integer]
    return min(finite, default=None)


def _spec(name: str, value: Any) -> TensorSpec:
    shape = tuple(dim if isinstance(dim, int) else -1 for dim in value.shape)
    return TensorSpec(name, DATATYPES.get(value.dtype), shape, str(value.dtype))
