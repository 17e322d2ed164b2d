"""DeviceEngine: a plan file, deserialised on one GPU, with its weights in memory there once for all instances of that GPU.

Source: Triton ``loader.cc`` (LoadPlan), ``model_state.cc`` (CreateEngine), ``instance_state.cc`` (Create).
"""

from __future__ import annotations

import mmap
import threading
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, Final

from bireme.backends.interface import ModelContext
from bireme.backends.model_file import explain_failure, find_model_file, missing_file
from bireme.backends.tensorrt import cuda
from bireme.backends.tensorrt.advice import advise
from bireme.backends.tensorrt.runtime import ErrorRecorder, log, logger, trt
from bireme.backends.tensorrt.settings import BackendSettings
from bireme.backends.tensorrt.signature import EngineInfo, read_engine
from bireme.types import BackendFailed, InvalidArgument

DEFAULT_FILENAME: Final = "model.plan"

_opening: Final = threading.Lock()
"""TensorRT does not deserialise two engines at once in one process."""


class DeviceEngine:
    """One engine on one GPU."""

    def __init__(self, ctx: ModelContext, device_id: int, settings: BackendSettings) -> None:
        """Open the file for the device's compute capability. Blocking, for seconds; the GIL is free meanwhile.

        Raises:
            NotFound: there is no such file.
            InvalidArgument: TensorRT does not take it; says why, and what to do.
            BackendFailed: there is no such device, or it has no memory left.
        """
        cuda.use_device(device_id)
        self.device_id = device_id
        self.path = find_plan(ctx, cuda.compute_capability(device_id))
        self.recorder = ErrorRecorder()
        with _opening:
            self._runtime = self._make_runtime(ctx.name, settings)
            self.engine = self._deserialize(ctx.name)
        self.info: EngineInfo = read_engine(self.engine)
        self.turn: AbstractContextManager[Any] = (
            threading.Lock() if settings.begins_in_turn else nullcontext()
        )
        """Held by an instance while it begins its work on the device."""
        log.info("model '%s': engine '%s' is on GPU %d", ctx.name, self.path, device_id)

    def _make_runtime(self, model: str, settings: BackendSettings) -> Any:
        try:
            runtime = trt.Runtime(logger)
        except Exception as error:  # pybind11 makes a TypeError of the library's null pointer
            raise BackendFailed(
                f"model '{model}': TensorRT cannot be started on GPU {self.device_id}; see the log ({error})"
            ) from error
        runtime.error_recorder = self.recorder
        if settings.is_version_compatible:
            runtime.engine_host_code_allowed = True
        return runtime

    def _deserialize(self, model: str) -> Any:
        """Return the engine. The file is mapped, not read: TensorRT copies its weights to the device."""
        try:
            with self.path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as plan:
                engine = self._runtime.deserialize_cuda_engine(plan)
        except (OSError, ValueError) as error:  # a file of no bytes cannot be mapped
            raise InvalidArgument(self._failure(model, str(error))) from error
        if engine is None:
            raise InvalidArgument(self._failure(model, self.recorder.take("it gives no reason; see the log")))
        return engine

    def _failure(self, model: str, reason: str) -> str:
        explained = explain_failure(self.path, advise(reason, trt.__version__))
        return f"model '{model}': TensorRT cannot load '{self.path}' on GPU {self.device_id}: {explained}"

    def close(self) -> None:
        """Give the engine's memory back; its contexts are gone already."""
        cuda.use_device(self.device_id)
        self.engine = None
        self._runtime = None


def find_plan(ctx: ModelContext, capability: str) -> Path:
    """Return the file for a GPU of a compute capability: that of ``cc_model_filenames``, else the default one.

    Raises:
        NotFound: names the file and lists what the version directory holds.
    """
    filename = ctx.config.cc_model_filenames.get(capability)
    if filename is None:
        return find_model_file(ctx, (DEFAULT_FILENAME,))
    path = ctx.version_dir / filename
    if not path.is_file():
        raise missing_file(ctx.name, path, ctx.version_dir)
    return path
