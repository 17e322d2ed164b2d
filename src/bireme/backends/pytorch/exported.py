"""``.pt2`` files: programs of ``torch.export``, and packages that AOTInductor compiled ahead of time.

Both are called with flat lists of tensors here, without torch's own walk through nested arguments, which costs 15 to 50 µs.

Source: Triton ``pytorch_backend`` README ("AOT Inductor Support"), ``src/pt2/``.
"""

from __future__ import annotations

import zipfile
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
from bireme.types import InvalidArgument, Unsupported


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
        self._program = None

    def _move(self, _module: Any, device: Any) -> Any:
        """Constants of the program lie on devices, too, so it is moved as a whole."""
        from torch.export.passes import move_to_device_pass

        with quiet():
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


class CompiledPackage:
    """An open package of AOTInductor: native code, which tells the number and names of its tensors, not their types."""

    signature: Signature | None = None
    max_rows: int | None = None
    may_run_inline = True

    def __init__(self, model: str, path: Path, device: Any, num_runners: int) -> None:
        """Load the package; ``num_runners`` threads may run it at one time. All instances share its weights.

        Raises:
            Unsupported: it was compiled for another kind of device.
            Exception: it cannot be read, or not be run on this CPU.
        """
        self._model = model
        self._path = path
        self._num_runners = num_runners
        self._loaders: dict[str, Any] = {}
        inputs, outputs = self._loader(device).get_call_spec()
        arguments = tuple(Argument((names[1], names[0])) for names in argument_names(inputs))
        self.interface = Interface(arguments, outputs=result_names(outputs), is_strict=True)

    def place(self, device: Any, *, sharing: bool | None) -> Forward:  # noqa: ARG002 - compiled code has no state
        """Return ``forward()``; see `Program`."""
        run = self._loader(device).run

        def forward(*arguments: Any) -> Any:
            return run(list(arguments))

        return forward

    def close(self) -> None:
        """Let go of the weights."""
        self._loaders.clear()

    def _loader(self, device: Any) -> Any:
        key = str(device)
        if key not in self._loaders:
            with quiet():
                self._loaders[key] = self._open(device)
        return self._loaders[key]

    def _open(self, device: Any) -> Any:
        from torch._inductor.package import load_package

        package = load_package(
            str(self._path),
            model_name=_package_name(self._path),
            num_runners=self._num_runners,
            device_index=-1 if device is None or device.index is None else device.index,
        )
        built_for = package.loader.get_metadata().get("AOTI_DEVICE_KEY", "cpu")
        wanted = "cpu" if device is None else device.type
        if device is not None and built_for != wanted:
            raise Unsupported(
                f"model '{self._model}': '{self._path}' was compiled for '{built_for}' and cannot run on '{wanted}'; compile "
                f"it there, or change the kind of the instance group"
            )
        return package.loader


def _package_name(path: Path) -> str:
    """Return the name of the first model in a package."""
    with zipfile.ZipFile(path) as archive:
        for name in archive.namelist():
            folder, found, rest = name.partition("/data/aotinductor/")
            if folder and found:
                return rest.partition("/")[0]
    raise InvalidArgument(f"'{path}' holds no compiled model")
