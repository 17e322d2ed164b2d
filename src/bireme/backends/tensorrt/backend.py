"""TensorRtBackend and TensorRtModel: from plan files to one engine per GPU, which the instances of that GPU share.

Source: Triton ``tensorrt.cc``, ``model_state.cc``.
"""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Final

from bireme.backends.config_check import find_faults, mismatch
from bireme.backends.interface import ModelContext, Placement
from bireme.backends.model_file import find_named_file
from bireme.backends.signature import complete
from bireme.backends.tensorrt.engine import DeviceEngine
from bireme.backends.tensorrt.instance import TensorRtInstance
from bireme.backends.tensorrt.runtime import load_libraries
from bireme.backends.tensorrt.settings import (
    BackendSettings,
    ModelSettings,
    read_backend_settings,
    read_model_settings,
)
from bireme.backends.tensorrt.signature import (
    check_formats,
    find_mark_faults,
    hinted_batching,
    profile_indices,
    signature_of,
    with_shape_tensors,
)
from bireme.config import ModelConfig
from bireme.config.state_tensors import with_state_tensors
from bireme.types import InvalidArgument, Unsupported

_NAME: Final = "tensorrt"


class TensorRtBackend:
    """The tensorrt backend."""

    name = _NAME

    def load(self, ctx: ModelContext) -> TensorRtModel:
        """Deserialise the engine on the first GPU of the model. Blocking, with the GIL released for nearly all of its time.

        Raises:
            InvalidArgument: a setting, a plugin or the file is wrong.
            NotFound: there is no such file.
            Unsupported: the model is not to run on a GPU, or the engine needs what the backend does not do.
            BackendFailed: CUDA does not work here, or the GPU has no memory left.
        """
        backend_settings = read_backend_settings(ctx.backend_config)
        settings = read_model_settings(ctx.config)
        device_id = _first_device(ctx.config)
        load_libraries(backend_settings.plugins, "backend 'tensorrt'")
        load_libraries(
            (find_named_file(ctx, filename) or filename for filename in settings.libraries),
            f"model '{ctx.name}': model_operations",
        )
        return TensorRtModel(ctx, device_id, settings, backend_settings)


class TensorRtModel:
    """One version: an engine on each GPU that it has instances on."""

    def __init__(
        self, ctx: ModelContext, device_id: int, settings: ModelSettings, backend_settings: BackendSettings
    ) -> None:
        self._ctx = ctx
        self._settings = settings
        self._backend_settings = backend_settings
        self._config = with_state_tensors(ctx.config)
        self._lock = threading.Lock()
        self._engines = {device_id: DeviceEngine(ctx, device_id, backend_settings)}
        self._info = self._engines[device_id].info
        """What the config is held against; engines for other kinds of GPUs are held against it."""
        try:
            check_formats(ctx.name, self._info)
        except BaseException:
            self.close()
            raise

    def complete_config(self, config: ModelConfig) -> ModelConfig:
        """Fill in the batch limit, inputs and outputs from the engine.

        Raises:
            InvalidArgument: the config asks for larger batches than the engine takes.
            Unsupported: an input or output to fill in has a data type that the protocol does not have.
        """
        limit = self._batch_limit(config)
        hinted = hinted_batching(config, self._info, limit)
        completed = complete(hinted, signature_of(self._info, batches=limit > 0), limit)
        completed = with_shape_tensors(completed, self._info)
        if completed.max_batch_size > limit:
            raise InvalidArgument(
                f"autofill failed for model '{config.name}': configuration specified max-batch {completed.max_batch_size} but "
                f"TensorRT engine only supports max-batch {limit}"
            )
        self._config = with_state_tensors(completed)
        return completed

    def check_config(self, config: ModelConfig) -> None:
        """Compare the final config with the engine.

        Raises:
            InvalidArgument: tells all faults, each with what the config says and what the engine has.
        """
        config = with_state_tensors(config)
        faults = [
            *find_faults(config, signature_of(self._info, batches=config.max_batch_size > 0)),
            *find_mark_faults(config, self._info),
        ]
        limit = self._batch_limit(config)
        if config.max_batch_size > limit > 0:
            faults.append(
                f"max_batch_size is {config.max_batch_size}, but the engine takes batches of {limit} at most"
            )
        if faults:
            raise mismatch(config, faults)
        self._config = config

    def _batch_limit(self, config: ModelConfig) -> int:
        """Return the largest batch that some instance takes; 0: the engine does not batch."""
        indices = {
            index
            for group in config.instance_group
            for index in profile_indices(config, group.profile, len(self._info.profiles))
        }
        return self._info.max_batch_size(indices or {0})

    def create_instance(self, placement: Placement) -> TensorRtInstance:
        """Make an instance on its GPU: a stream, and an execution context for each profile of its group.

        Raises:
            Unsupported: it is not to be placed on a GPU.
            InvalidArgument: the engine for this GPU differs from the first one, or cannot be loaded there.
            BackendFailed: the GPU has no memory left.
        """
        if placement.kind != "KIND_GPU":
            raise _gpus_alone(self._config.name, placement.kind)
        engine = self._engine_on(placement.device_id)
        indices = profile_indices(self._config, placement.profile, len(engine.info.profiles))
        return TensorRtInstance(engine, self._config, self._settings, indices)

    def _engine_on(self, device_id: int) -> DeviceEngine:
        with self._lock:
            engine = self._engines.get(device_id)
            if engine is None:
                engine = DeviceEngine(self._ctx, device_id, self._backend_settings)
                self._engines[device_id] = engine
                if _interface(engine) != _interface(next(iter(self._engines.values()))):
                    raise InvalidArgument(
                        f"model '{self._config.name}': engine '{engine.path}' on GPU {device_id} has other inputs, outputs or "
                        f"profiles than that on GPU {next(iter(self._engines))}"
                    )
            return engine

    def close(self) -> None:
        """Give the engines back."""
        for engine in self._engines.values():
            engine.close()
        self._engines.clear()


def _interface(engine: DeviceEngine) -> object:
    """Return what instances of one model must have in common. Where a tensor lies is each engine's own affair."""
    tensors = {replace(tensor, is_on_host=False) for tensor in engine.info.tensors}
    return tensors, engine.info.profiles


def _first_device(config: ModelConfig) -> int:
    """Return the GPU of the first instance.

    Raises:
        Unsupported: a group is not on a GPU.
    """
    for group in config.instance_group:
        if group.kind != "KIND_GPU":
            raise _gpus_alone(config.name, group.kind)
    return next(gpu for group in config.instance_group for gpu in group.gpus)


def _gpus_alone(model: str, kind: str) -> Unsupported:
    return Unsupported(
        f"unable to load model '{model}': TensorRT backend supports only GPU device, and an instance group is {kind}; "
        f"KIND_AUTO is KIND_GPU on a machine with an NVIDIA GPU and its driver"
    )
