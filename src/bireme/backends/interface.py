"""The interface that every backend implements. Nothing above this floor knows which framework runs a model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, runtime_checkable

from bireme.config import ModelConfig
from bireme.types import Array, InferenceRequest


@dataclass(frozen=True, slots=True)
class ModelContext:
    """Everything a backend may know when it loads one version of a model."""

    name: str
    version: int
    model_dir: Path
    """The model's directory: holds config.pbtxt and the version directories."""
    version_dir: Path
    config: ModelConfig
    """Normalised: backend, default file name and instance groups are filled in."""
    backend_config: Mapping[str, str] = field(default_factory=dict)
    """``--backend-config`` settings for this backend, the global ones included."""


@dataclass(frozen=True, slots=True)
class Placement:
    """Where one instance runs."""

    name: str
    kind: str = "KIND_CPU"
    device_id: int = 0


ExecuteInto = Callable[[dict[str, Array], Mapping[str, memoryview]], dict[str, Array]]
"""``execute_into(inputs, targets)``: as `Instance.execute`, where an output that fits into the memory ``targets`` has for
its name may be written to the start of that; its array then is a view of it. What does not fit is no error."""


class Instance(Protocol):
    """One executable copy of a model. The engine never runs two executions of one instance at a time.

    ``execute`` runs on the instance's thread. An instance may have an attribute ``may_run_inline``; where it is true
    (native code that waits for nothing), a model that proves to be fast runs on the loop thread instead.

    It may also have an ``execute_into`` (see `ExecuteInto`), for large outputs whose memory the caller provides.
    """

    def execute(self, inputs: dict[str, Array]) -> dict[str, Array]:
        """Run the model over one batch.

        ``inputs`` are borrowed, shaped as the backend sees them (batch dimension first when the model batches;
        ``reshape`` applied) and may be absent when optional. They are C-contiguous, unless a caller in this process
        gave a strided array and it makes up the whole batch. The result is owned by the caller; it holds every
        configured output that the model produced. BYTES are object arrays (results may hold bytes or str).

        Raises:
            Exception: whatever the framework raises; the engine answers it as `BackendFailed`.
        """

    def close(self) -> None:
        """Give back what the instance holds. Called once, when nothing runs on it any more."""


@runtime_checkable
class RequestInstance(Protocol):
    """An instance that takes whole requests instead of tensors (python models, decoupled ones)."""

    def execute_requests(self, requests: list[InferenceRequest]) -> None:
        """Run the requests; the instance answers each through ``request.respond``."""

    def close(self) -> None:
        """As `Instance.close`."""


class LoadedModel(Protocol):
    """A model file that is open: its weights are in memory once, whatever the number of instances."""

    def complete_config(self, config: ModelConfig) -> ModelConfig:
        """Return ``config`` with what the model file itself says filled in.

        May change only ``max_batch_size``, ``input``, ``output``, the scheduling choice where none was made and
        ``model_transaction_policy``. Not called with ``--disable-auto-complete-config``.

        Raises:
            InvalidArgument: the file contradicts the config.
        """

    def check_config(self, config: ModelConfig) -> None:
        """Compare the final config with the model file (names, data types, shapes).

        Raises:
            InvalidArgument: names the tensor, what the config says and what the file has.
        """

    def create_instance(self, placement: Placement) -> Instance | RequestInstance:
        """Make an instance. Weights are shared by all instances of this model where the framework can."""

    def close(self) -> None:
        """Give the weights back. Called once, after every instance was closed."""


class Backend(Protocol):
    """A framework. Imported lazily, on the first model that names it; one object per server."""

    name: str

    def load(self, ctx: ModelContext) -> LoadedModel:
        """Open the model file of one version. Runs on a loading thread, never on the serving one.

        Raises:
            InvalidArgument: the file or a setting is wrong; names the file, what was found and what is expected.
            NotFound: the file is missing; lists what the directory holds.
        """
