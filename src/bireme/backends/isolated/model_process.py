"""The process of an isolated model: the entry that `bireme.ipc.worker` calls there.

The first message is `Start`; its settings are those of `bireme.backends.isolated.backend`. Then the steps of the load come as
`Ask`; a process that is started again finds them in ``steps`` and does them all before it says `Started`. An `Execute` has
one request, the batch, whose number is that of the instance.

The error code UNKNOWN stands for what a framework raised.
"""

from __future__ import annotations

import gc
import json
import logging
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Final, cast

from bireme.backends.interface import ExecuteInto, Instance, LoadedModel, ModelContext, Placement
from bireme.backends.registry import get_backend
from bireme.config import ModelConfig, parse_json, to_json
from bireme.ipc.channel import Channel
from bireme.ipc.ledger import INLINE_SIZE, Ledger
from bireme.ipc.messages import (
    Answer,
    Ask,
    ErrorData,
    Execute,
    Executed,
    Finalize,
    LogLine,
    Released,
    ResponseData,
    Start,
    Started,
)
from bireme.types import Array, BiremeError, Tensor

_now_ns: Final = time.monotonic_ns
_FRAMEWORK: Final = "UNKNOWN"


def main(channel: Channel, ledger: Ledger) -> None:
    """Be the model that the server asks for, until it says `Finalize` or is gone."""
    start = channel.receive()
    if isinstance(start, Start):
        _forward_logs(channel, int(start.settings["log_level"]))
        _ModelProcess(channel, ledger).run(start.settings)


class _ModelProcess:
    """The model and its instances. The main thread reads; one instance alone runs there, too."""

    def __init__(self, channel: Channel, ledger: Ledger) -> None:
        self._channel = channel
        self._ledger = ledger
        self._model: LoadedModel
        self._lanes: list[_Lane] = []
        self._steps: dict[str, Callable[[str], str]] = {
            "complete_config": self._complete_config,
            "check_config": self._check_config,
            "create_instance": self._create_instance,
        }

    def run(self, settings: dict[str, str]) -> None:
        try:
            self._model = _load(settings)
            for method, argument in json.loads(settings["steps"]):
                self._steps[method](argument)
        except BaseException as error:  # noqa: BLE001 - the server is told
            self._channel.send(Started(_describe_failure(error)))
            return
        self._channel.send(Started())
        self._serve()

    def _serve(self) -> None:
        channel = self._channel
        while (message := channel.receive()) is not None:
            kind = type(message)
            if kind is Execute:
                self._execute(message)
            elif kind is Released:
                self._ledger.take_back(message.released)
            elif kind is Ask:
                channel.send(self._answer(message))
            elif kind is Finalize:
                self._close()
                return

    def _execute(self, message: Execute) -> None:
        if message.released:
            self._ledger.take_back(message.released)
        (batch,) = message.requests
        adopt = self._ledger.adopt
        job = (message.number, [adopt(data) for data in batch.inputs])
        lane = self._lanes[batch.number]
        if len(self._lanes) == 1:
            lane.run(*job)
        else:
            lane.put(job)

    def _answer(self, message: Ask) -> Answer:
        try:
            result = self._steps[message.method](message.argument)
        except BaseException as error:  # noqa: BLE001 - the server is told
            return Answer(message.number, error=_describe_failure(error))
        if self._lanes:
            # What was loaded stays: the collector need not look at it again and again.
            gc.collect()
            gc.freeze()
        return Answer(message.number, result)

    def _complete_config(self, argument: str) -> str:
        return json.dumps(to_json(self._model.complete_config(_parse(argument))))

    def _check_config(self, argument: str) -> str:
        self._model.check_config(_parse(argument))
        return ""

    def _create_instance(self, argument: str) -> str:
        placement = Placement(**json.loads(argument))
        instance = self._model.create_instance(placement)
        assert not hasattr(instance, "execute_requests")
        self._lanes.append(_Lane(instance, placement.name, self._channel, self._ledger))
        return ""

    def _close(self) -> None:
        for lane in self._lanes:
            lane.close()
        self._model.close()


_Job = tuple[int, list[Tensor]]


class _Lane:
    """One instance, and its thread once there are several."""

    def __init__(self, instance: Instance, name: str, channel: Channel, ledger: Ledger) -> None:
        self._instance = instance
        self._name = name
        self._channel = channel
        self._ledger = ledger
        self._execute_into: ExecuteInto | None = getattr(instance, "execute_into", None)
        self._sizes: dict[str, int] = {}
        """Bytes of the large outputs of the last batch: the next one's are given memory that the server can see."""
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def put(self, job: _Job) -> None:
        """Run ``job`` on the instance's thread."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name=self._name, daemon=True)
            self._thread.start()
        self._jobs.put(job)

    def run(self, number: int, inputs: list[Tensor]) -> None:
        """Run the instance over one batch, and tell the server what came of it."""
        outputs: list[ResponseData | None] = []
        failure: ErrorData | None = None
        start_ns = _now_ns()
        try:
            results = self._execute({tensor.name: tensor.to_numpy() for tensor in inputs})
            export = self._ledger.export
            exported = [export(Tensor.from_numpy(name, array)) for name, array in results.items()]
            outputs.append(ResponseData(exported))
        except BaseException as error:  # noqa: BLE001 - SystemExit, too: it ends the batch, not the process
            failure = _describe(error)
        end_ns = _now_ns()
        # What lies in the inputs' memory is let go of first: the leases go back with the answer.
        inputs.clear()
        results = {}
        self._channel.send(Executed(number, start_ns, end_ns, outputs, failure, self._ledger.take_released()))

    def _execute(self, inputs: dict[str, Array]) -> dict[str, Array]:
        if self._execute_into is None:
            return self._instance.execute(inputs)
        allocate = self._ledger.arena.allocate
        targets = {name: memoryview(cast("Any", allocate(nbytes))) for name, nbytes in self._sizes.items()}
        results = self._execute_into(inputs, targets) if targets else self._instance.execute(inputs)
        self._sizes = {name: array.nbytes for name, array in results.items() if array.nbytes > INLINE_SIZE}
        return results

    def close(self) -> None:
        """Finish what is there, end the thread and close the instance."""
        if self._thread is not None:
            self._jobs.put(None)
            self._thread.join()
        self._instance.close()

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            self.run(*job)
            del job


class _LogHandler(logging.Handler):
    """Sends the log lines of this process to the server's log."""

    def __init__(self, channel: Channel) -> None:
        super().__init__()
        self._channel = channel

    def emit(self, record: logging.LogRecord) -> None:
        """Send ``record``."""
        text = self.format(record)
        self._channel.send(LogLine(record.levelno, text, record.pathname, record.lineno))


def _forward_logs(channel: Channel, level: int) -> None:
    logger = logging.getLogger("bireme")
    logger.addHandler(_LogHandler(channel))
    logger.setLevel(level)
    logger.propagate = False


def _load(settings: dict[str, str]) -> LoadedModel:
    context = ModelContext(
        name=settings["name"],
        version=int(settings["version"]),
        model_dir=Path(settings["model_dir"]),
        version_dir=Path(settings["version_dir"]),
        config=_parse(settings["config"]),
        backend_config=json.loads(settings["backend_config"]),
    )
    return get_backend(settings["backend"]).load(context)


def _parse(text: str) -> ModelConfig:
    return parse_json(text, "the config that the server sent")


def _describe(error: BaseException) -> ErrorData:
    if isinstance(error, BiremeError):
        return ErrorData(error.code, error.message)
    traceback.print_exception(error)  # the server knows only its text
    text = str(error).strip()
    return ErrorData(_FRAMEWORK, text if isinstance(error, Exception) else f"{type(error).__name__}: {text}")


def _describe_failure(error: BaseException) -> ErrorData:
    if isinstance(error, BiremeError):
        return ErrorData(error.code, error.message)
    traceback.print_exception(error)
    return ErrorData("INTERNAL", f"{type(error).__name__}: {error}")
