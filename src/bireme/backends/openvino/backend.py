"""OpenVinoBackend and OpenVinoModel: from a file to a compiled model that all instances of the version share.

The file is read when the model is loaded, and compiled when its config is final: the config decides on shapes, data types
and batch size. OpenVINO lets go of the GIL for both.

Source: Triton's openvino_backend ``openvino.cc``.
"""

from __future__ import annotations

from typing import Any, Final

from bireme.backends.config_check import find_faults
from bireme.backends.devices import refuse_gpu
from bireme.backends.interface import ModelContext, Placement
from bireme.backends.openvino import shapes
from bireme.backends.openvino.compilation import check_device, compile_model
from bireme.backends.openvino.instance import OpenVinoInstance, make_runner
from bireme.backends.openvino.model_files import find_file, read_model
from bireme.backends.openvino.runtime import log, ov, reason_of
from bireme.backends.openvino.settings import ModelSettings, read_default_max_batch_size, read_model_settings
from bireme.backends.openvino.signature import read_signature
from bireme.backends.signature import complete
from bireme.config import ModelConfig
from bireme.config.state_tensors import with_state_tensors
from bireme.ipc.cpu_limit import cpu_limit
from bireme.types import InvalidArgument

_CPU: Final = "CPU"


class OpenVinoBackend:
    """The openvino backend."""

    name = "openvino"

    def __init__(self) -> None:
        self._core: Any = ov.Core()

    def load(self, ctx: ModelContext) -> OpenVinoModel:
        """Read the model file. Blocking, with the GIL released for nearly all of its time.

        Raises:
            InvalidArgument: the file or a parameter is wrong.
            NotFound: there is no such file.
            Unsupported: there is no such device.
        """
        default_max_batch_size = read_default_max_batch_size(ctx.backend_config)
        settings = read_model_settings(ctx.config)
        check_device(ctx.name, settings.device, self._core.available_devices)
        core = self._core if not settings.extension else _extended_core(ctx.name, settings.extension)
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
        if settings.takes_config_shapes:
            shapes.take_config_shapes(model, ctx.config)
        self._fixed_because = shapes.make_batchable(model, ctx.config)
        self.signature = read_signature(model, ctx.config)
        """What the file declares."""

    def complete_config(self, config: ModelConfig) -> ModelConfig:
        """Fill in batching, inputs and outputs from the file.

        Raises:
            InvalidArgument: the config asks for batching and the file cannot batch.
            Unsupported: an input or output to fill in is of a type that the protocol has not.
        """
        completed = complete(config, self.signature, self._default_max_batch_size)
        if completed.max_batch_size != config.max_batch_size:
            log.info(
                "model '%s': max_batch_size is set to %d, since the model file batches and the config gives none",
                config.name,
                completed.max_batch_size,
            )
        self._config = with_state_tensors(completed)
        return completed

    def check_config(self, config: ModelConfig) -> None:
        """Compare the final config with the file, and compile the model for it.

        Raises:
            InvalidArgument: tells all faults, each with what the config says and what the file has; or the model cannot
                be compiled.
        """
        config = with_state_tensors(config)
        wanted = shapes.with_config_types(self.signature, config)
        faults = find_faults(config, wanted)
        if faults:
            raise InvalidArgument(f"unable to load model '{config.name}': {'; '.join(faults)}")
        self._config = config
        if self._compiled is None:
            model = shapes.convert_types(self._model, self.signature, wanted)
            self.signature = wanted
            self._model = None
            self._compiled = compile_model(self._core, model, config, self._settings, cpu_limit())

    def create_instance(self, placement: Placement) -> OpenVinoInstance:
        """Make an infer request; it has the memory that its runs need, and no weights.

        Raises:
            Unsupported: it is to be placed on a GPU of the kind that the server counts.
        """
        refuse_gpu(placement, self._config.name, "openvino", "OpenVINO's devices are chosen by TARGET_DEVICE")
        runner = make_runner(self._compiled, self._config, self.signature)
        return OpenVinoInstance(runner, None, may_run_inline=self._settings.device == _CPU)

    def close(self) -> None:
        """Give the compiled model back. Results that are still held keep their own memory."""
        self._compiled = None
        self._model = None


def _extended_core(model: str, path: str) -> Any:
    """Return a core with the operators of a library, for the models that ask for it alone."""
    core = ov.Core()
    try:
        core.add_extension(path)
    except Exception as error:
        raise InvalidArgument(
            f"model '{model}': parameter CPU_EXTENSION_PATH: '{path}' cannot be loaded: {reason_of(error)}"
        ) from error
    return core
