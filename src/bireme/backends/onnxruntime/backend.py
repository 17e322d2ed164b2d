"""OnnxRuntimeBackend and OnnxModel: from a file to a session that all instances of the model version share.

onnxruntime lets go of the GIL while it reads a file and while it prepares a session, so loading on another thread does
not hold up the loop: over a 500 MB model (1 to 2 s on two cores) no pause of the loop was longer than 4 ms, with one at
2.5 ms as the rule, the price of two threads wanting the interpreter. Bytes in memory instead of a path cost 27 ms.
Giving the session back holds the GIL: 2 ms for 500 MB, 31 ms if the weights are external data.

Source: Triton ``onnxruntime.cc`` (LoadModel).
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from bireme.backends.config_check import find_faults, mismatch
from bireme.backends.interface import ModelContext, Placement
from bireme.backends.model_file import find_model_file
from bireme.backends.onnxruntime.instance import OnnxInstance, check_mix, make_execute, make_execute_into
from bireme.backends.onnxruntime.runtime import log
from bireme.backends.onnxruntime.session import open_session
from bireme.backends.onnxruntime.settings import ModelSettings, read_backend_settings, read_model_settings
from bireme.backends.onnxruntime.signature import read_signature
from bireme.backends.signature import complete
from bireme.config import ModelConfig
from bireme.config.backend_rules import filenames_of
from bireme.config.state_tensors import with_state_tensors
from bireme.ipc.cpu_limit import cpu_limit

_GPU: Final = "KIND_GPU"


class OnnxRuntimeBackend:
    """The onnxruntime backend."""

    name = "onnxruntime"

    def load(self, ctx: ModelContext) -> OnnxModel:
        """Open the model file in a session on the first instance's device. Blocking, with the GIL free for nearly all of it.

        Raises:
            InvalidArgument: the file, a parameter or an accelerator is wrong.
            NotFound: there is no such file.
            Unsupported: an instance is to be on a GPU, and this onnxruntime cannot use one.
            BackendFailed: the GPU cannot be used now.
        """
        num_cpus = cpu_limit()
        backend_settings = read_backend_settings(ctx.backend_config, num_cpus)
        settings = read_model_settings(ctx.config, num_cpus)
        path = find_model_file(ctx, filenames_of(self.name))
        optimization = ctx.config.optimization
        accelerators = optimization.execution_accelerators if optimization is not None else None
        if accelerators is not None and accelerators.gpu_execution_accelerator and not _uses_gpus(ctx.config):
            log.info(
                "model '%s': gpu_execution_accelerator has no effect, as no instance is on a GPU", ctx.name
            )
        open_on = partial(open_session, ctx, path, settings, backend_settings)
        return OnnxModel(ctx, open_on, settings, backend_settings.default_max_batch_size)


class OnnxModel:
    """One version's sessions, one for each device. Weights are there once, whatever the number of instances."""

    def __init__(
        self,
        ctx: ModelContext,
        open_on: Callable[[int | None], Any],
        settings: ModelSettings,
        default_max_batch_size: int,
    ) -> None:
        """``open_on`` opens a session on a GPU, or on the CPU for None; it is called now for the first instance's device."""
        first = ctx.config.instance_group[0] if ctx.config.instance_group else None
        device = first.gpus[0] if first is not None and first.kind == _GPU else None
        session = open_on(device)
        self._open_on = open_on
        self._lock = threading.Lock()
        self._sessions = {device: session}
        self._settings = settings
        self._default_max_batch_size = default_max_batch_size
        self._config = with_state_tensors(ctx.config)
        self.signature = read_signature(session)
        """What the file declares."""

    def complete_config(self, config: ModelConfig) -> ModelConfig:
        """Fill in batching, inputs and outputs from the file.

        Raises:
            InvalidArgument: the config asks for batching and the file cannot batch.
            Unsupported: an input or output to fill in is no tensor.
        """
        completed = complete(config, self.signature, self._default_max_batch_size)
        self._config = with_state_tensors(completed)
        return completed

    def check_config(self, config: ModelConfig) -> None:
        """Compare the final config with the file.

        Raises:
            InvalidArgument: tells all faults, each with what the config says and what the file has.
        """
        config = with_state_tensors(config)
        faults = find_faults(config, self.signature)
        if faults:
            raise mismatch(config, faults)
        check_mix(config, self.signature)
        self._config = config

    def create_instance(self, placement: Placement) -> OnnxInstance:
        """Make an instance; it costs no memory beyond what its runs need.

        The first one on a device opens the session there.

        Raises:
            Unsupported: it is to be placed on a GPU, and this onnxruntime cannot use one.
            BackendFailed: the GPU cannot be used now.
        """
        gpu = placement.device_id if placement.kind == _GPU else None
        model = (self._session_on(gpu), self._config, self.signature, self._settings)
        execute = make_execute(*model)
        # With a GPU it waits for the device.
        return OnnxInstance(execute, make_execute_into(*model, execute), may_run_inline=gpu is None)

    def _session_on(self, gpu: int | None) -> Any:
        with self._lock:
            if gpu not in self._sessions:
                self._sessions[gpu] = self._open_on(gpu)
            return self._sessions[gpu]

    def close(self) -> None:
        """Give the sessions back. Results that are still held keep their own memory."""
        self._sessions.clear()


def _uses_gpus(config: ModelConfig) -> bool:
    return any(group.kind == _GPU for group in config.instance_group)
