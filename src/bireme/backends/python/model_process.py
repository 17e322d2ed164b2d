"""A Python model's worker process: the entry that `bireme.ipc.worker` calls there.

The first message is `Start`. Its settings: ``model_file``, ``model_dir`` (the model's directory), ``version_dir``,
``backend_dir`` (empty: none), ``mode`` (``serve``, or ``complete``: only ``auto_complete_config``), ``args`` (JSON of
what ``initialize`` gets) and ``is_decoupled`` (``1`` or empty).

The answer is `Started`. Its facts: ``config`` (JSON; mode ``complete``, where the model has something to say), else
``is_async`` and ``has_is_ready`` (``1`` or empty).
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import sys
from inspect import iscoroutine, iscoroutinefunction
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bireme.backends.python import dropped, pb_utils, runtime
from bireme.backends.python.async_runner import AsyncRunner, make_loop
from bireme.backends.python.batch import BadReturn
from bireme.backends.python.batches import Batches
from bireme.backends.python.conversions import encodable
from bireme.backends.python.exchange import Exchange
from bireme.backends.python.model_file import format_error, load_model_class
from bireme.backends.python.process_runtime import ProcessRuntime
from bireme.backends.python.runner import Runner
from bireme.ipc.messages import ErrorData, Start, Started

if TYPE_CHECKING:
    from bireme.ipc.channel import Channel
    from bireme.ipc.ledger import Ledger


def main(channel: Channel, ledger: Ledger) -> None:
    """Be the model that the server asks for, until it says `Finalize` or is gone."""
    start = channel.receive()
    if not isinstance(start, Start):
        return
    settings = start.settings
    args: dict[str, str] = json.loads(settings["args"])
    exchange = Exchange(channel, ledger)
    os.register_at_fork(after_in_child=exchange.mark_forked)
    own_runtime = ProcessRuntime(exchange, model_name=args["model_name"], version_dir=settings["version_dir"])
    runtime.set_current(lambda: own_runtime)
    pb_utils.install()
    try:
        if settings["mode"] == "complete":
            own_runtime.logs_to_stderr = True
            exchange.send(_complete(settings, args))
        else:
            _ModelProcess(own_runtime, channel, settings, args).run()
    finally:
        _end_if_forked(exchange)


def _complete(settings: dict[str, str], args: dict[str, str]) -> Started:
    """Return what the model's ``auto_complete_config`` makes of its config."""
    try:
        complete = getattr(_import_class(settings), "auto_complete_config", None)
        if complete is None:
            return Started()
        config = complete(pb_utils.ModelConfig(args["model_config"]))
        if not isinstance(config, pb_utils.ModelConfig):
            raise BadReturn(
                f"auto_complete_config function in model '{args['model_name']}' must return a valid pb.ModelConfig object."
            )
        return Started(facts={"config": json.dumps(config.as_dict())})
    except BaseException as error:  # noqa: BLE001 - whatever a model does, the server is told
        return _failed(error)


class _ModelProcess:
    """One model instance, from import to ``finalize``."""

    def __init__(
        self, runtime: ProcessRuntime, channel: Channel, settings: dict[str, str], args: dict[str, str]
    ) -> None:
        self._runtime = runtime
        self._channel = channel
        self._settings = settings
        self._args = args
        self._loop: asyncio.AbstractEventLoop | None = None

    def run(self) -> None:
        exchange = self._runtime.exchange
        try:
            model = self._make_model()
        except BaseException as error:  # noqa: BLE001 - whatever a model does, the server is told
            exchange.send(_failed(error))
            return
        # What a model loads stays: the collector need not look at it again and again.
        gc.collect()
        gc.freeze()
        exchange.send(
            Started(
                facts={
                    "is_async": "1" if self._loop is not None else "",
                    "has_is_ready": "1" if hasattr(model, "is_ready") else "",
                    "has_drop_sequence": "1" if hasattr(model, dropped.HOOK) else "",
                }
            )
        )
        self._serve(model)

    def _make_model(self) -> Any:
        model_class: Any = _import_class(self._settings)
        if iscoroutinefunction(model_class.execute):
            self._loop = make_loop()
            asyncio.set_event_loop(self._loop)  # of what the model makes for it in ``initialize``
        model = model_class()
        initialize = getattr(model, "initialize", None)
        if initialize is not None:
            initialize(dict(self._args))
        return model

    def _serve(self, model: Any) -> None:
        batches = self._make_batches()
        if self._loop is None:
            Runner(model, batches).run()
            self._finalize(model)
            return
        runner = AsyncRunner(model, batches, self._loop, self._channel.fileno())
        runner.run()
        self._finalize(model)
        runner.close()

    def _make_batches(self) -> Batches:
        args = self._args
        outputs = json.loads(args["model_config"]).get("output", ())
        return Batches(
            self._runtime,
            instance_name=args["model_instance_name"],
            model_version=int(args["model_version"]),
            is_decoupled=self._settings["is_decoupled"] == "1",
            output_names=[output["name"] for output in outputs],
        )

    def _finalize(self, model: Any) -> None:
        if self._runtime.exchange.is_forked or not hasattr(model, "finalize"):
            return
        try:
            result = model.finalize()
            if iscoroutine(result):
                if self._loop is not None:
                    self._loop.run_until_complete(result)
                else:
                    asyncio.run(result)
        except BaseException as error:  # noqa: BLE001 - the process ends anyway
            self._runtime.log_error(f"Failed to finalize the model: {format_error(error)}")


def _import_class(settings: dict[str, str]) -> type:
    """Import the model's file and return its ``TritonPythonModel``."""
    backend_dir = settings["backend_dir"]
    return load_model_class(
        Path(settings["model_file"]),
        model_dir=Path(settings["model_dir"]),
        version_dir=Path(settings["version_dir"]),
        backend_dir=Path(backend_dir) if backend_dir else None,
    )


def _failed(error: BaseException) -> Started:
    text = str(error) if isinstance(error, BadReturn) else format_error(error)
    return Started(ErrorData("INTERNAL", encodable(text)))


def _end_if_forked(exchange: Exchange) -> None:
    """End a copy that the model's code forked and that ran on into ours, before it does anything else."""
    if exchange.is_forked:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)
