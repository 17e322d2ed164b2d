"""TensorFlowBackend and TensorFlowModel: from a folder or file to a session that all instances of the model version share.

TensorFlow takes seconds to import, starts threads that nothing ends, and gives memory back only when its process ends: models
run in processes of their own unless a config says otherwise (see `bireme.backends.registry`).

Source: Triton ``tensorflow.cc`` (ModelState).
"""

from __future__ import annotations

from typing import Final, Protocol

from bireme.backends.config_check import find_faults, mismatch
from bireme.backends.devices import refuse_gpu
from bireme.backends.interface import Execute, ModelContext, Placement
from bireme.backends.model_file import find_model_file
from bireme.backends.settings import describe_unknown
from bireme.backends.signature import complete
from bireme.backends.tensorflow.frozen_graph import FrozenGraph
from bireme.backends.tensorflow.instance import TensorFlowInstance, make_execute
from bireme.backends.tensorflow.runtime import log
from bireme.backends.tensorflow.saved_model import SavedModel
from bireme.backends.tensorflow.session import OpenGraph
from bireme.backends.tensorflow.settings import (
    PARAMETERS,
    BackendSettings,
    ModelSettings,
    read_backend_settings,
    read_model_settings,
)
from bireme.backends.tensorflow.signature import GraphSignature, check_ranks, with_ranks
from bireme.config import ModelConfig
from bireme.config.state_tensors import with_state_tensors
from bireme.ipc.cpu_limit import cpu_limit
from bireme.types import InvalidArgument

_SAVED_MODEL: Final = "tensorflow_savedmodel"
_FROZEN_GRAPH: Final = "tensorflow_graphdef"
_FILENAMES: Final = {_SAVED_MODEL: "model.savedmodel", _FROZEN_GRAPH: "model.graphdef"}


class _ModelFile(Protocol):
    """What the two kinds of model files have in common."""

    opened: OpenGraph

    def describe(self, config: ModelConfig) -> GraphSignature: ...


class TensorFlowBackend:
    """The tensorflow backend, on the CPU."""

    name = "tensorflow"

    def load(self, ctx: ModelContext) -> TensorFlowModel:
        """Open the model in one session. Blocking.

        Raises:
            InvalidArgument: the file, a parameter or the platform is wrong.
            NotFound: there is no such file or folder.
            Unsupported: the config asks for an accelerator, or a setting for something that there is not.
        """
        backend_settings = read_backend_settings(ctx.backend_config)
        settings = read_model_settings(ctx.config, cpu_limit())
        for line in describe_unknown(ctx.config, PARAMETERS, ("TF_",)):
            log.warning("%s", line)
        model_file = _open(ctx, settings, backend_settings)
        return TensorFlowModel(ctx, model_file, backend_settings.default_max_batch_size)


def _open(ctx: ModelContext, settings: ModelSettings, backend_settings: BackendSettings) -> _ModelFile:
    filename = ctx.config.default_model_filename
    platform = ctx.config.platform
    if not platform:
        path = ctx.version_dir / (filename or _FILENAMES[_SAVED_MODEL])
        platform = _FROZEN_GRAPH if path.is_file() else _SAVED_MODEL
    if platform == _SAVED_MODEL:
        folder = ctx.version_dir / (filename or _FILENAMES[platform])
        return SavedModel(ctx, folder, settings, backend_settings)
    if platform == _FROZEN_GRAPH:
        path = find_model_file(ctx, (_FILENAMES[platform],))
        return FrozenGraph(ctx, path, settings, backend_settings)
    raise InvalidArgument(
        f"model '{ctx.name}': the tensorflow backend has no platform '{platform}'; expected '{_SAVED_MODEL}' or "
        f"'{_FROZEN_GRAPH}'"
    )


class TensorFlowModel:
    """One version's session. Weights are in memory once, whatever the number of instances."""

    def __init__(self, ctx: ModelContext, model_file: _ModelFile, default_max_batch_size: int) -> None:
        self._model_file = model_file
        self._default_max_batch_size = default_max_batch_size
        self._config = ctx.config
        self._execute: Execute | None = None

    def complete_config(self, config: ModelConfig) -> ModelConfig:
        """Fill in batching, inputs and outputs from the file; a frozen graph tells nothing of its outputs.

        Raises:
            InvalidArgument: the config asks for batching and the file cannot batch, or must say what the file does not.
            Unsupported: an input or output to fill in is no tensor.
        """
        found = self._model_file.describe(config)
        check_ranks(found, config)
        completed = complete(config, with_ranks(found, config), self._default_max_batch_size)
        self._config = completed
        return completed

    def check_config(self, config: ModelConfig) -> None:
        """Compare the final config with the file.

        Raises:
            InvalidArgument: tells all faults, each with what the config says and what the file has.
        """
        stated = with_state_tensors(config)
        faults = find_faults(stated, with_ranks(self._model_file.describe(config), config))
        if faults:
            raise mismatch(config, faults)
        self._config = config

    def create_instance(self, placement: Placement) -> TensorFlowInstance:
        """Make an instance; it costs no memory beyond what its runs need.

        Raises:
            Unsupported: it is to be placed on a GPU.
        """
        refuse_gpu(placement, self._config.name, "tensorflow")
        if self._execute is None:
            found = self._model_file.describe(self._config)
            signature = with_ranks(found, self._config)
            config = with_state_tensors(self._config)
            self._execute = make_execute(self._model_file.opened, found, signature, config)
        return TensorFlowInstance(self._execute)

    def close(self) -> None:
        """Give the session back. Results that are still held keep their own memory."""
        self._execute = None
        self._model_file.opened.close()
