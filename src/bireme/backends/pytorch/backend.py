"""PyTorchBackend and PyTorchModel: from a file to a program that the instances of the model version share.

Source: Triton ``pytorch_backend`` ``src/pt/`` (TorchScript), ``src/pt2/`` (AOTInductor), ``src/model.py`` (eager classes).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from bireme.backends.config_check import find_faults, mismatch
from bireme.backends.interface import ModelContext, Placement
from bireme.backends.model_file import explain_failure, find_model_file
from bireme.backends.pytorch.aoti import CompiledPackage
from bireme.backends.pytorch.archive import ArchiveKind, read_kind
from bireme.backends.pytorch.arguments import Arguments
from bireme.backends.pytorch.compilation import make_compile
from bireme.backends.pytorch.eager import EagerProgram
from bireme.backends.pytorch.errors import one_line
from bireme.backends.pytorch.exported import ExportedProgram
from bireme.backends.pytorch.gpus import find_gpu, first_device
from bireme.backends.pytorch.instance import Call, TorchInstance, make_mode
from bireme.backends.pytorch.naming import (
    Bindings,
    bind,
    describe_missing,
    find_type_faults,
    position_in,
)
from bireme.backends.pytorch.operators import load_libraries, with_operators
from bireme.backends.pytorch.process_settings import has_threads_of_its_own, process_state
from bireme.backends.pytorch.program import Program
from bireme.backends.pytorch.results import Results
from bireme.backends.pytorch.runtime import log
from bireme.backends.pytorch.settings import (
    COMPILE,
    PARAMETERS,
    ModelSettings,
    read_model_settings,
)
from bireme.backends.pytorch.torchscript import TorchScriptProgram
from bireme.backends.settings import describe_unknown, num_instances, read_default_max_batch_size
from bireme.backends.signature import Signature, TensorSpec, complete
from bireme.config import ModelConfig
from bireme.config.backend_rules import filenames_of
from bireme.config.model_config import SequenceControlInput
from bireme.config.state_tensors import with_state_tensors
from bireme.ipc.cpu_limit import cpu_limit
from bireme.types import BiremeError, InvalidArgument
from bireme.types.datatypes import from_config_name

_FILENAMES: Final = filenames_of("pytorch")
_PYTHON: Final = "model.py"


class PyTorchBackend:
    """The pytorch backend."""

    name = "pytorch"

    def load(self, ctx: ModelContext) -> PyTorchModel:
        """Open the model file. Blocking, with the GIL released while torch reads.

        Raises:
            InvalidArgument: the file or a parameter is wrong.
            NotFound: there is no such file.
            Unsupported: this torch or this machine cannot run it.
        """
        for line in describe_unknown(ctx.config, PARAMETERS):
            log.warning("%s", line)
        settings = read_model_settings(ctx.config, cpu_limit())
        default_max_batch_size = read_default_max_batch_size(self.name, ctx.backend_config)
        path = _find_file(ctx)
        process_state.apply(ctx.name, settings.process)
        try:
            load_libraries(ctx)
            program = with_operators(ctx.name, lambda: _open(ctx, path, settings))
        except (BiremeError, MemoryError):
            raise
        except Exception as error:
            reason = explain_failure(path, one_line(error))
            raise InvalidArgument(f"unable to load model '{ctx.name}': '{path}': {reason}") from error
        return PyTorchModel(ctx, program, settings, default_max_batch_size)


def _find_file(ctx: ModelContext) -> Path:
    """Return the model file. The runtime ``model.py`` prefers the file of that name, and takes another if there is none."""
    named = ctx.config.default_model_filename
    has_python = (ctx.version_dir / _PYTHON).is_file()
    if ctx.config.runtime == _PYTHON and has_python and named in ("", *_FILENAMES):
        return ctx.version_dir / _PYTHON
    if named == _PYTHON and not has_python:
        ctx = replace(ctx, config=replace(ctx.config, default_model_filename=""))
    return find_model_file(ctx, _FILENAMES)


def _open(ctx: ModelContext, path: Path, settings: ModelSettings) -> Program:
    device = first_device(ctx.config)
    if path.suffix == ".py":
        compiles = make_compile(ctx.name, settings.compile_options)
        return EagerProgram(ctx, path, settings.module_class, device, compiles)
    kind = read_kind(path)
    if kind is ArchiveKind.EXPORTED:
        return ExportedProgram(ctx.name, path, make_compile(ctx.name, settings.compile_options))
    if settings.compile_options is not None:
        log.warning("model '%s': parameter %s does nothing for %s", ctx.name, COMPILE, kind.value)
    if kind is ArchiveKind.AOTI:
        return CompiledPackage(ctx.name, path, device, max(1, num_instances(ctx.config)))
    if kind is ArchiveKind.TORCHSCRIPT:
        return TorchScriptProgram(ctx.name, path, device)
    raise InvalidArgument(
        f"unable to load model '{ctx.name}': '{path}': {explain_failure(path, _not_a_model(kind, path))}"
    )


def _not_a_model(kind: ArchiveKind, path: Path) -> str:
    if kind is ArchiveKind.NO_ARCHIVE:
        return "it is no TorchScript, exported or compiled model, or it was cut off: no zip archive with its end there"
    way_out = (
        f'to load it into the class in {_PYTHON}, set runtime: "{_PYTHON}"'
        if path.with_name(_PYTHON).is_file()
        else f"save the model itself, by torch.export.save or torch.jit.save, or put its class into {_PYTHON} beside it"
    )
    return f"it is {kind.value}, not a model; {way_out}"


class PyTorchModel:
    """One version's program. Weights are in memory once on each device, whatever the number of instances."""

    def __init__(
        self, ctx: ModelContext, program: Program, settings: ModelSettings, default_max_batch_size: int
    ) -> None:
        self._program = program
        self._settings = settings
        self._default_max_batch_size = default_max_batch_size
        self._config = with_state_tensors(ctx.config)
        self._bindings: Bindings | None = None

    def complete_config(self, config: ModelConfig) -> ModelConfig:
        """Fill in batching, inputs and outputs from a file that describes its tensors; of another, ask for them.

        Raises:
            InvalidArgument: the file contradicts the config, or does not tell what the config leaves open.
            Unsupported: an input or output to fill in is no tensor of the protocol.
        """
        program = self._program
        signature = program.signature or Signature({}, {})
        has_inputs = config.input or config.batch_input or signature.inputs
        if not (has_inputs and (config.output or signature.outputs)):
            raise InvalidArgument(describe_missing(config, program.interface))
        if program.signature is None:
            return config
        default = self._default_max_batch_size
        if program.max_rows is not None:
            default = min(default, program.max_rows)
        return complete(config, _as_named(program, config), default)

    def check_config(self, config: ModelConfig) -> None:
        """Compare the final config with the file.

        Raises:
            InvalidArgument: tells all faults, each with what the config says and what the file has.
        """
        config = with_state_tensors(config)
        program = self._program
        faults: list[str] = []
        if program.signature is not None:
            # A compiled package tells of its inputs alone, if at all.
            tells_all = bool(program.signature.outputs)
            if program.signature.inputs:
                known = config if tells_all else replace(config, output=())
                faults = find_faults(known, _as_named(program, config))
            if program.max_rows is not None and config.max_batch_size > program.max_rows:
                faults.append(
                    f"max_batch_size is {config.max_batch_size}, but the model was exported for at most {program.max_rows}"
                )
        if not faults:
            self._bindings = bind(config, program.interface)
            faults = find_type_faults(config, self._bindings, program.interface)
        if faults:
            raise mismatch(config, faults)
        self._config = config

    def create_instance(self, placement: Placement) -> TorchInstance:
        """Make an instance, which shares the weights with the others on its device.

        Raises:
            InvalidArgument: the config does not fit the file.
            Unsupported: it is to be placed on a GPU that is not there.
        """
        if self._bindings is None:
            self.check_config(self._config)
        assert self._bindings is not None
        config, settings, program = self._config, self._settings, self._program
        gpu = find_gpu(placement, config.name, cleans_cache=settings.cache_cleaning)
        device = gpu.device if gpu is not None else _device_of(placement)
        if self._bindings.by_order:
            _tell_order(config, self._bindings)
        call = Call(
            forward=program.place(device, sharing=settings.weight_sharing),
            arguments=Arguments(program.interface, self._bindings.inputs, _input_types(config)),
            results=Results(config, self._bindings.outputs),
            mode=make_mode(inference=settings.inference_mode, optimized=settings.optimized_execution),
            num_threads=settings.num_intra_op_threads if has_threads_of_its_own() else 0,
            gpu=gpu,
            may_run_inline=program.may_run_inline and gpu is None and settings.compile_options is None,
        )
        return TorchInstance(call)

    def close(self) -> None:
        """Give the weights back. Results that are still held keep their own memory."""
        self._program.close()


def _device_of(placement: Placement) -> Any:
    from bireme.backends.pytorch.runtime import torch

    return None if placement.kind == "KIND_MODEL" else torch.device("cpu")


def _tell_order(config: ModelConfig, bindings: Bindings) -> None:
    taken = ", ".join(f"'{each.name}' as {each.argument.names[0]}" for each in bindings.inputs)
    log.info("model '%s': inputs are taken in the config's order: %s", config.name, taken)


def _input_types(config: ModelConfig) -> dict[str, str]:
    """Return the protocol's data type of each input, of what the server makes too."""
    types = {tensor.name: from_config_name(tensor.data_type) for tensor in config.input}
    for entry in config.batch_input:
        types.update(dict.fromkeys(entry.target_name, from_config_name(entry.data_type)))
    for control in _controls(config):
        is_text = any(each.data_type == "TYPE_STRING" for each in control.control)
        types.setdefault(control.name, "BYTES" if is_text else "INT32")  # of numbers, whichever
    return types


def _controls(config: ModelConfig) -> tuple[SequenceControlInput, ...]:
    return config.sequence_batching.control_input if config.sequence_batching is not None else ()


def _as_named(program: Program, config: ModelConfig) -> Signature:
    """Return what the file declares, under the names by which the config calls its tensors."""
    config = with_state_tensors(config)
    signature = program.signature
    assert signature is not None
    inputs = [tensor.name for tensor in config.input]
    inputs.extend(name for entry in config.batch_input for name in entry.target_name)
    inputs.extend(control.name for control in _controls(config))
    names = tuple(argument.names for argument in program.interface.arguments)
    outputs = [tensor.name for tensor in config.output]
    return Signature(
        _renamed(signature.inputs, names, inputs),
        _renamed(signature.outputs, program.interface.outputs or (), outputs),
    )


def _renamed(
    tensors: Mapping[str, TensorSpec], names: tuple[tuple[str, ...], ...], wanted: list[str]
) -> dict[str, TensorSpec]:
    known = {name: index for index, each in enumerate(names) for name in each}
    called: dict[int, str] = {}
    for name in wanted:
        index = known.get(name, position_in(name))
        if index is not None:
            called.setdefault(index, name)
    renamed: dict[str, TensorSpec] = {}
    for index, each in enumerate(names):
        spec = tensors.get(each[0])
        if spec is not None:
            name = called.get(index, each[0])
            renamed[name] = replace(spec, name=name)
    return renamed
