"""PythonBackend and PythonModel: from a ``model.py`` to the processes that run it.

Parameters of a model (all values are texts, as in Triton):

================================  ==============================================================================
``EXECUTION_MODE``                ``process`` (default): each instance in a process of its own; ``thread``: in a
                                  thread of the server's process; ``inline``: on the server's loop thread
``EXECUTION_ENV_PATH``            see `bireme.backends.python.environment`
``FORCE_CPU_ONLY_INPUT_TENSORS``  ``yes`` (default) or ``no``; inputs are always on the CPU
``MAX_CONCURRENT_EXECUTIONS``     batches that an ``async def execute`` gets at one time (32)
================================  ==============================================================================

Source: Triton ``python_be.cc`` (ModelState), ``stub_launcher.cc``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import orjson

from bireme.backends.interface import Host, LoadedModel, ModelContext, Placement
from bireme.backends.lone_host import LoneHost
from bireme.backends.python.arguments import make_arguments
from bireme.backends.python.debug_desk import desk_for
from bireme.backends.python.environment import Environment, prepare, warn_unused
from bireme.backends.python.instance import ProcessInstance
from bireme.backends.supervised import Completion, Launch
from bireme.config import ModelConfig, parse_json
from bireme.ipc.worker_process import WorkerProcess
from bireme.types import InvalidArgument, NotFound

ENTRY: Final = "bireme.backends.python.model_process:main"
"""What a worker process runs."""
DEFAULT_FILENAME: Final = "model.py"

_METACHARACTERS: Final = frozenset(";|&$`<>()[]{}\\\"'*?~#!")
_DEFAULT_CONCURRENT: Final = 32
_PLAIN_CLASS: Final = re.compile(rb"^class\s+TritonPythonModel\s*(\(\s*(object)?\s*\))?\s*:", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class ModelSettings:
    """What a model's parameters say."""

    mode: str
    """``process``, ``thread`` or ``inline``."""
    max_concurrent: int


class PythonBackend:
    """The python backend."""

    name = "python"

    def load(self, ctx: ModelContext) -> LoadedModel:
        """Find the model file and prepare the interpreter that is to run it.

        Raises:
            InvalidArgument: the name or a parameter is wrong.
            NotFound: there is no model file; lists what the directory holds.
        """
        check_name(ctx.name)
        settings = read_settings(ctx.config)
        model_file = find_model_file(ctx)
        if settings.mode != "process" or desk_for(ctx.name) is not None:
            from bireme.backends.python.thread_instance import ThreadModel

            warn_unused(ctx)
            model: LoadedModel = ThreadModel(ctx)
            return model
        return PythonModel(ctx, model_file, settings, prepare(ctx))


class PythonModel:
    """One version of a model whose instances are processes."""

    def __init__(
        self, ctx: ModelContext, model_file: Path, settings: ModelSettings, environment: Environment
    ) -> None:
        self._ctx = ctx
        self._model_file = model_file
        self._settings = settings
        self._environment = environment
        self._config = ctx.config
        self._lone_host: LoneHost | None = None
        if ctx.host is not None:
            self._host = ctx.host
        else:
            self._host = self._lone_host = LoneHost()

    def complete_config(self, config: ModelConfig) -> ModelConfig:
        """Ask the model's ``auto_complete_config``, if it has one, in a process of its own.

        Raises:
            BiremeError: it failed, or what it returned is no config.
        """
        self._config = config
        if not _may_complete(self._model_file.read_bytes()):
            return config
        completion = Completion(self._host.loop, self._launch("complete", Placement(f"{config.name}_0_0")))
        completion.open()
        completion.close()
        text = completion.facts.get("config")
        if not text:
            return config
        return parse_json(text, f"what auto_complete_config of '{self._model_file}' returned")

    def check_config(self, config: ModelConfig) -> None:
        """Take the final config; a model file says nothing that it could be compared with."""
        self._config = config

    def create_instance(self, placement: Placement) -> ProcessInstance:
        """Start an instance's process and wait until its model is initialised.

        Raises:
            BiremeError: the model's ``initialize`` failed: its exception's text; or the process did not come up.
        """
        check_name(placement.name)
        instance = ProcessInstance(
            self._ctx,
            self._host,
            self._launch("serve", placement),
            max_concurrent=self._settings.max_concurrent,
        )
        instance.open()
        return instance

    def close(self) -> None:
        """See `LoadedModel.close`; the processes belong to the instances."""
        if self._lone_host is not None:
            self._lone_host.close()

    def _launch(self, mode: str, placement: Placement) -> Launch:
        """``mode`` is what `bireme.backends.python.model_process` makes of it: ``serve`` or ``complete``."""
        ctx, config = self._ctx, self._config
        policy = config.model_transaction_policy
        settings = {
            "mode": mode,
            "model_file": str(self._model_file),
            "model_dir": str(ctx.model_dir),
            "version_dir": str(ctx.version_dir),
            "backend_dir": "" if ctx.backend_dir is None else str(ctx.backend_dir),
            "args": orjson.dumps(make_arguments(config, ctx.version, ctx.model_dir, placement)).decode(),
            "is_decoupled": "1" if policy is not None and policy.decoupled else "",
        }
        return Launch(
            f"model '{ctx.name}' version {ctx.version}",
            placement.name,
            partial(_spawn, self._host, self._environment),
            settings,
        )


def read_settings(config: ModelConfig) -> ModelSettings:
    """Return what the parameters say.

    Raises:
        InvalidArgument: names the parameter, what was found and what is expected.
    """
    mode = config.parameter("EXECUTION_MODE", "process")
    if mode not in {"process", "thread", "inline"}:
        raise _misfit(config, "EXECUTION_MODE", mode, "'process', 'thread' or 'inline'")
    forced = config.parameter("FORCE_CPU_ONLY_INPUT_TENSORS", "yes")
    if forced not in {"yes", "no"}:
        raise InvalidArgument(
            f"model '{config.name}': Incorrect value for FORCE_CPU_ONLY_INPUT_TENSORS: '{forced}'; expected 'yes' or 'no'"
        )
    text = config.parameter("MAX_CONCURRENT_EXECUTIONS", str(_DEFAULT_CONCURRENT))
    if not (text.isascii() and text.isdecimal() and 0 < int(text) < 2**31):
        raise _misfit(config, "MAX_CONCURRENT_EXECUTIONS", text, "a number from 1 on")
    return ModelSettings(mode, int(text))


def check_name(name: str) -> None:
    """Refuse a name that Triton refuses, so that a repository goes on working there.

    Raises:
        InvalidArgument: it has a character that means something to a shell.
    """
    found = sorted(_METACHARACTERS.intersection(name))
    if found:
        raise InvalidArgument(
            f"Invalid stub name: contains invalid characters: '{name}' has {' '.join(found)}, which must not be in the "
            f"name of a Python model or of its instances"
        )


def find_model_file(ctx: ModelContext) -> Path:
    """Return the Python file: the backend's own ``model.py`` if it is a directory with one, else the version's file.

    Raises:
        NotFound: names the file and lists what the version directory holds.
    """
    if ctx.backend_dir is not None and (ctx.backend_dir / DEFAULT_FILENAME).is_file():
        return ctx.backend_dir / DEFAULT_FILENAME
    folder = ctx.version_dir
    path = folder / (ctx.config.default_model_filename or DEFAULT_FILENAME)
    if path.is_file():
        return path
    found = sorted(entry.name for entry in folder.iterdir()) if folder.is_dir() else []
    listed = ", ".join(f"'{name}'" for name in found) or "nothing"
    raise NotFound(f"unable to find '{path}' for model '{ctx.name}'; '{folder}' holds {listed}")


def _may_complete(source: bytes) -> bool:
    """Whether the model may have an ``auto_complete_config``: a process that is started to see costs 0.2 s and more."""
    return b"auto_complete_config" in source or not _PLAIN_CLASS.search(source)


def _misfit(config: ModelConfig, key: str, found: str, expected: str) -> InvalidArgument:
    return InvalidArgument(f"model '{config.name}': parameter {key} is '{found}'; expected {expected}")


def _spawn(host: Host, environment: Environment) -> WorkerProcess:
    return WorkerProcess.start(ENTRY, host.arena, executable=environment.executable, env=environment.env)
