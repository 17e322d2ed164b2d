"""Opens sessions: from checked settings to onnxruntime's options, and from its errors to ours."""

from __future__ import annotations

import re
import threading
from pathlib import Path
from typing import Any, Final

from bireme.backends.interface import ModelContext
from bireme.backends.model_file import explain_failure
from bireme.backends.onnxruntime.operators import register_operators
from bireme.backends.onnxruntime.providers import choose_providers
from bireme.backends.onnxruntime.runtime import log, ort, preload_gpu_libraries
from bireme.backends.onnxruntime.settings import BackendSettings, ModelSettings
from bireme.types import BackendFailed, InvalidArgument

# "[ONNXRuntimeError] : 7 : INVALID_PROTOBUF : Load model from <path> failed:Protobuf parsing failed."
_ERROR_PREFIX: Final = re.compile(r"^\[ONNXRuntimeError\] : \d+ : \w+ : (Load model from .*? failed:)?")


def open_session(
    ctx: ModelContext,
    path: Path,
    settings: ModelSettings,
    backend_settings: BackendSettings,
    gpu: int | None = None,
) -> Any:
    """Return an ``onnxruntime.InferenceSession`` over the file at ``path``; ``gpu`` None: on the CPU.

    Raises:
        InvalidArgument: an accelerator is not available, an operator library or the file cannot be loaded.
        Unsupported: this installation cannot use a GPU.
        BackendFailed: the GPU cannot be used now.
    """
    providers = choose_providers(ctx.config, ort.get_all_providers(), ort.get_available_providers(), gpu)
    options = _session_options(ctx, settings, backend_settings)
    if gpu is not None:
        preload_gpu_libraries()
    try:
        # Without its fallback, which prints to stdout and hides that an accelerator did not work.
        session = ort.InferenceSession(path, options, providers=providers, enable_fallback=False)
    except Exception as error:
        raise InvalidArgument(
            f"model '{ctx.name}': onnxruntime cannot load '{path}': {explain_failure(path, _without_prefix(error))}"
        ) from error
    if gpu is not None:
        _check_started(ctx.name, session, [name for name, _ in providers], gpu)
    return session


def _check_started(model: str, session: Any, wanted: list[str], gpu: int) -> None:
    """Onnxruntime only warns of a provider whose libraries it does not find, and runs the model on the CPU instead."""
    missing = [name for name in wanted if name not in session.get_providers()]
    if missing:
        raise BackendFailed(
            f"model '{model}': onnxruntime could not start {', '.join(missing)} on GPU {gpu}, as a rule for want of the CUDA and "
            f"cuDNN libraries that it was built with (pip install 'onnxruntime-gpu[cuda,cudnn]'); its reason is in the log"
        )


def _session_options(ctx: ModelContext, settings: ModelSettings, backend_settings: BackendSettings) -> Any:
    options = ort.SessionOptions()
    options.logid = ctx.name
    if _global_pool.use(backend_settings):
        options.use_per_session_threads = False
    else:
        options.intra_op_num_threads = settings.num_intra_op_threads
        options.inter_op_num_threads = settings.num_inter_op_threads
    modes = ort.ExecutionMode
    options.execution_mode = modes.ORT_PARALLEL if settings.runs_parallel else modes.ORT_SEQUENTIAL
    options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, settings.graph_level)
    if settings.enable_mem_arena is not None:
        options.enable_cpu_mem_arena = settings.enable_mem_arena
    if settings.enable_mem_pattern is not None:
        options.enable_mem_pattern = settings.enable_mem_pattern
    for key, value in settings.session_entries.items():
        options.add_session_config_entry(key, value)
    _register_op_libraries(ctx, options)
    return options


def _register_op_libraries(ctx: ModelContext, options: Any) -> None:
    operations = ctx.config.model_operations
    for filename in operations.op_library_filename if operations is not None else ():
        try:
            register_operators(ctx, filename, options)
        except Exception as error:
            raise InvalidArgument(
                f"model '{ctx.name}': model_operations: operator library '{filename}' cannot be loaded: "
                f"{_without_prefix(error)}"
            ) from error


class _GlobalPool:
    """The thread pool that all sessions of this process share, once one server has asked for it."""

    def __init__(self) -> None:
        self._sizes: tuple[int, int] | None = None
        self._lock = threading.Lock()

    def use(self, settings: BackendSettings) -> bool:
        """Whether sessions use the pool from now on; makes it when ``settings`` ask for it first."""
        sizes = (settings.num_intra_op_threads, settings.num_inter_op_threads)
        with self._lock:
            if settings.uses_global_pool and self._sizes is None:
                ort.set_global_thread_pool_sizes(*sizes)
                self._sizes = sizes
            elif settings.uses_global_pool and self._sizes != sizes:
                log.warning(
                    "the global thread pool of this process has sizes %s (intra, inter) already; %s is ignored",
                    self._sizes,
                    sizes,
                )
            return self._sizes is not None


_global_pool: Final = _GlobalPool()


def _without_prefix(error: Exception) -> str:
    return " ".join(_ERROR_PREFIX.sub("", str(error)).split())
