"""OpenVinoBackend and OpenVinoModel: from a file to a compiled model that all instances of the version share.

The file is read when the model is loaded, and compiled when its config is final: the config decides on shapes, data types
and batch size. OpenVINO lets go of the GIL for both: with 320 MB of weights no pause was longer than 12 ms. Giving them back holds
it, for 50 ms there.

Source: Triton's openvino_backend ``openvino.cc``.
"""

from __future__ import annotations

from typing import Any

from bireme.backends.config_check import find_faults, mismatch
from bireme.backends.devices import refuse_gpu
from bireme.backends.interface import Execute, ExecuteInto, ModelContext, Placement
from bireme.backends.openvino import shapes
from bireme.backends.openvino.compilation import compile_model, convert_types
from bireme.backends.openvino.data_types import narrowed, with_config_types
from bireme.backends.openvino.devices import CPU, check_device
from bireme.backends.openvino.direct_output import DirectOutput, can_place
from bireme.backends.openvino.errors import reason_of
from bireme.backends.openvino.fixed_batch import FixedBatch
from bireme.backends.openvino.instance import Input, OpenVinoInstance, Output, Runner
from bireme.backends.openvino.model_files import find_file, read_model
from bireme.backends.openvino.runtime import log, ov
from bireme.backends.openvino.settings import ModelSettings, read_model_settings
from bireme.backends.openvino.signature import fixed_shape_of, read_signature
from bireme.backends.openvino.states import find_start, without_foreign_controls
from bireme.backends.settings import read_default_max_batch_size
from bireme.backends.signature import complete, quoted
from bireme.config import ModelConfig
from bireme.config.state_tensors import with_state_tensors
from bireme.ipc.cpu_limit import cpu_limit
from bireme.types import InvalidArgument


class OpenVinoBackend:
    """The openvino backend."""

    name = "openvino"

    def __init__(self) -> None:
        self._core = _make_core(ModelSettings())

    def load(self, ctx: ModelContext) -> OpenVinoModel:
        """Read the model file. Blocking, with the GIL released for nearly all of its time.

        Raises:
            InvalidArgument: the file or a parameter is wrong.
            NotFound: there is no such file.
            Unsupported: there is no such device.
        """
        default_max_batch_size = read_default_max_batch_size(self.name, ctx.backend_config)
        settings = read_model_settings(ctx.config)
        check_device(ctx.name, settings.device, self._core.available_devices)
        core = self._core
        if settings.maps_weights or settings.extension:
            core = _make_core(settings)
        if settings.extension:
            _extend(core, ctx.name, settings.extension)
        model = read_model(core, ctx.name, find_file(ctx))
        return OpenVinoModel(ctx, core, model, settings, default_max_batch_size)


class OpenVinoModel:
    """One version's model, compiled once. Weights are in memory once, whatever the number of instances."""

    def __init__(
        self, ctx: ModelContext, core: Any, model: Any, settings: ModelSettings, default_max_batch_size: int
    ) -> None:
        """Give ``model`` the shapes that the config asks for.

        Raises:
            InvalidArgument: it cannot have them.
        """
        self._core = core
        self._model = model
        self._settings = settings
        self._default_max_batch_size = default_max_batch_size
        self._config = with_state_tensors(ctx.config)
        self._compiled: Any = None
        self._why_fixed = ""
        if settings.takes_config_shapes:
            shapes.take_config_shapes(model, ctx.config)
        if settings.has_fixed_batch:
            shapes.fix_batch(model, ctx.config)
        else:
            self._why_fixed = shapes.make_batchable(model, ctx.config)
        signature = read_signature(model, ctx.config)
        self.signature = shapes.as_batchable(signature) if settings.has_fixed_batch else signature
        """What the file declares."""
        self._has_states = bool(model.get_variables())

    def complete_config(self, config: ModelConfig) -> ModelConfig:
        """Fill in batching, inputs and outputs from the file.

        Raises:
            InvalidArgument: the config asks for batching and the file cannot batch.
            Unsupported: an input or output to fill in is of a type that the protocol has not.
        """
        try:
            completed = complete(config, self.signature, self._default_max_batch_size)
        except InvalidArgument as error:
            raise self._explained(error.message) from error
        return completed

    def check_config(self, config: ModelConfig) -> None:
        """Compare the final config with the file, and compile the model for it.

        Raises:
            InvalidArgument: tells all faults, each with what the config says and what the file has; or the model cannot
                be compiled.
        """
        config = with_state_tensors(config)
        wanted = with_config_types(self.signature, config)
        checked = without_foreign_controls(config, wanted) if self._has_states else config
        faults = find_faults(checked, wanted)
        if faults:
            raise self._explained(mismatch(config, faults).message)
        if self._compiled is None:
            model = convert_types(self._model, self.signature, wanted)
            self._model = None  # its weights are the compiled model's now
            self._compiled = compile_model(self._core, model, config, self._settings, cpu_limit())
            self._tell(config)
        self.signature = wanted
        self._config = config

    def create_instance(self, placement: Placement) -> OpenVinoInstance:
        """Make an infer request; it has the memory that its runs need, and no weights.

        Raises:
            Unsupported: it is to be placed on a GPU of the kind that the server counts.
        """
        devices = quoted(self._core.available_devices)
        refuse_gpu(
            placement,
            self._config.name,
            "openvino",
            f"which of OpenVINO's devices ({devices}) is used the parameter TARGET_DEVICE says",
        )
        outputs = self._outputs()
        runner = self._runner(outputs)
        execute: Execute = runner.execute
        into: ExecuteInto | None = None
        if self._settings.has_fixed_batch:
            execute = FixedBatch(execute, self._config.max_batch_size, pads=self._settings.pads_batches)
        else:
            placed = [output for output in outputs if can_place(output)]
            if placed and self._settings.device == CPU and not self._has_states:
                into = DirectOutput(runner, placed)
        return OpenVinoInstance(execute, into, may_run_inline=self._settings.device == CPU)

    def close(self) -> None:
        """Give the compiled model back. Results that are still held keep their own memory."""
        self._compiled = None
        self._model = None

    def _outputs(self) -> list[Output]:
        """Return the outputs that the config lists."""
        num_dims = {tensor.name: len(tensor.dims) for tensor in self._config.output}
        ports = self._compiled.outputs
        return [
            Output(
                spec.name,
                index,
                spec.datatype or "",
                fixed_shape_of(ports[index]),
                num_dims[spec.name],
            )
            for index, spec in enumerate(self.signature.outputs.values())
            if spec.name in num_dims
        ]

    def _runner(self, outputs: list[Output]) -> Runner:
        inputs = [
            Input(spec.name, index, spec.datatype or "", is_scalar=not spec.shape)
            for index, spec in enumerate(self.signature.inputs.values())
        ]
        # That of `openvino.CompiledModel` itself wraps the request.
        base: Any = super(ov.CompiledModel, self._compiled)
        return Runner(
            base.create_infer_request,
            inputs,
            outputs,
            returns_text=any(spec.datatype == "BYTES" for spec in self.signature.outputs.values()),
            start=find_start(self._config),
        )

    def _explained(self, message: str) -> InvalidArgument:
        """Return an error that says why the file's first dimension is fixed, too, if that was tried to change."""
        if not self._why_fixed:
            return InvalidArgument(message)
        return InvalidArgument(
            f"{message}; a dynamic batch dimension was tried: {self._why_fixed}; with the parameter "
            f"SKIP_OV_DYNAMIC_BATCHSIZE, value YES, the model is compiled for batches of max_batch_size alone"
        )

    def _tell(self, config: ModelConfig) -> None:
        if self._has_states:
            log.info(
                "model '%s': the states of its own begin anew with every %s",
                config.name,
                "sequence" if find_start(config) is not None else "request",
            )
        wide = narrowed(self.signature)
        if wide and self._settings.device == CPU:
            log.info(
                "model '%s': OpenVINO computes 64-bit and unsigned 32-bit integers in 32 bits and FP64 in FP32; it has such "
                "values in %s",
                config.name,
                quoted(wide),
            )


def _make_core(settings: ModelSettings) -> Any:
    """Return a core; models that want it otherwise than most have one of their own.

    A file that is mapped and then made smaller, as by ``cp`` over it, ends the process with SIGBUS.
    """
    core = ov.Core()
    core.set_property({"ENABLE_MMAP": settings.maps_weights})
    return core


def _extend(core: Any, model: str, path: str) -> None:
    """Add the operators of a library."""
    try:
        core.add_extension(path)
    except Exception as error:
        raise InvalidArgument(
            f"model '{model}': parameter CPU_EXTENSION_PATH: '{path}' cannot be loaded: {reason_of(error)}"
        ) from error
