"""IsolatedBackend, IsolatedModel and IsolatedInstance: the server's side of a model whose framework runs in a process."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import orjson

from bireme.backends.interface import Host, ModelContext, Placement
from bireme.backends.isolated.worker import IsolatedWorker
from bireme.backends.lone_host import LoneHost
from bireme.backends.supervised import Launch
from bireme.config import ModelConfig, parse_json, to_json
from bireme.types import Array, InvalidArgument

PARAMETER: Final = "isolation"
ENTRY: Final = "bireme.backends.isolated.model_process:main"
"""What the process runs."""


def wants_process(config: ModelConfig, *, default: bool = False) -> bool:
    """Whether a model is to run in a process of its own; ``default``: what holds where its config doesn't say.

    Raises:
        InvalidArgument: the parameter is neither ``process`` nor ``none``.
    """
    value = config.parameter(PARAMETER, "")
    if value not in {"", "process", "none"}:
        raise InvalidArgument(
            f"model '{config.name}': parameter {PARAMETER} is '{value}'; expected 'process', 'none', or no such parameter"
        )
    return value == "process" if value else default


class IsolatedBackend:
    """Runs the models of another backend in processes; that backend's framework is not even imported here."""

    def __init__(self, name: str) -> None:
        """``name`` is that of the other backend, as `bireme.backends.registry.get_backend` knows it."""
        self.name = name

    def load(self, ctx: ModelContext) -> IsolatedModel:
        """Start the model's process and have it open the model file.

        Raises:
            BiremeError: whatever the backend itself raises there; or the process ended, or did not come up.
        """
        return IsolatedModel(self.name, ctx)


class IsolatedModel:
    """One version of a model, and its process."""

    def __init__(self, backend: str, ctx: ModelContext) -> None:
        """See `IsolatedBackend.load`."""
        host = ctx.host
        self._lone_host: LoneHost | None = None
        if host is None:
            host = self._lone_host = LoneHost()
        self._num_instances = 0
        self._steps: list[tuple[str, str]] = []
        self._settings = _settings(backend, ctx)
        launch = Launch(
            f"model '{ctx.name}' version {ctx.version}", ctx.name, partial(_spawn, host), self._settings
        )
        self._worker = IsolatedWorker(host.loop, launch)
        try:
            self._worker.open()
        except BaseException:
            self._close_host()
            raise

    def complete_config(self, config: ModelConfig) -> ModelConfig:
        """As that of the backend itself."""
        completed = self._do("complete_config", _config_text(config))
        return parse_json(completed, f"the completed config of model '{config.name}'")

    def check_config(self, config: ModelConfig) -> None:
        """As that of the backend itself."""
        self._do("check_config", _config_text(config))

    def create_instance(self, placement: Placement) -> IsolatedInstance:
        """As that of the backend itself, in the model's one process."""
        self._do("create_instance", orjson.dumps(dataclasses.asdict(placement)).decode())
        self._num_instances += 1
        return IsolatedInstance(self._worker, self._num_instances - 1)

    def close(self) -> None:
        """End the process; the instances in it are closed first."""
        self._worker.close()
        self._close_host()

    def _do(self, method: str, argument: str) -> str:
        """Have the process do a step of the load. A process that is started again later does them all by itself."""
        result = self._worker.ask(method, argument)
        self._steps.append((method, argument))
        self._settings["steps"] = orjson.dumps(self._steps).decode()
        return result

    def _close_host(self) -> None:
        if self._lone_host is not None:
            self._lone_host.close()


class IsolatedInstance:
    """One instance in the model's process: `bireme.backends.interface.Instance`, and a `SupervisedInstance`."""

    __slots__ = ("_index", "_worker")

    may_run_inline: Final = False
    """It waits for another process."""

    def __init__(self, worker: IsolatedWorker, index: int) -> None:
        self._worker = worker
        self._index = index

    @property
    def unavailable(self) -> str | None:
        """See `SupervisedInstance`."""
        return self._worker.unavailable

    @property
    def retry_delay_s(self) -> float:
        """See `SupervisedInstance`."""
        return self._worker.retry_delay_s

    def watch(self, change: Callable[[], None]) -> None:
        """See `SupervisedInstance`."""
        self._worker.watch(change)

    def execute(self, inputs: dict[str, Array]) -> dict[str, Array]:
        """Run the model there. The results are views of the process's memory.

        Raises:
            Unavailable: the process has died.
            Exception: with the text of what was raised there.
        """
        return self._worker.execute(self._index, inputs)

    def kill(self) -> None:
        """End the process with all that runs in it; it is started again. On the loop thread."""
        self._worker.kill()

    def close(self) -> None:
        """Nothing is held here: the process closes its instances when it ends."""


def _settings(backend: str, ctx: ModelContext) -> dict[str, str]:
    """Return the settings of the `Start` message, as `bireme.backends.isolated.model_process` reads them."""
    return {
        "backend": backend,
        "name": ctx.name,
        "version": str(ctx.version),
        "model_dir": str(ctx.model_dir),
        "version_dir": str(ctx.version_dir),
        "config": _config_text(ctx.config),
        "backend_config": orjson.dumps(dict(ctx.backend_config)).decode(),
        "log_level": str(logging.getLogger("bireme").getEffectiveLevel()),
        "steps": "[]",
    }


def _config_text(config: ModelConfig) -> str:
    return orjson.dumps(to_json(config)).decode()


def _spawn(host: Host) -> Any:
    from bireme.ipc.worker_process import WorkerProcess

    return WorkerProcess.start(ENTRY, host.arena)
