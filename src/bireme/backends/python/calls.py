"""Calls: what the code of one worker process asks of the server: other models (BLS), model control, metrics, log lines.

An `Infer` becomes a request like any other, submitted on the loop; its responses go back as `Reply` messages. A tensor
that lies in another worker's memory is lent on, not copied. What is still open when the process ends is cancelled.

Source: Triton ``request_executor.cc`` (RequestExecutor::Infer) for the error texts.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from bireme.backends.interface import Host
from bireme.backends.python.backlog import Backlog
from bireme.backends.python.callee import check_callee
from bireme.backends.python.holds import size_of
from bireme.ipc.ledger import Ledger
from bireme.ipc.messages import (
    Call,
    CancelCall,
    ErrorData,
    Infer,
    LogLine,
    Reply,
    ResponseData,
    Result,
    Taken,
)
from bireme.telemetry.log import get_logger, verbose_level
from bireme.types import BiremeError, Execution, InferenceRequest, InferenceResponse, InvalidArgument

log = logging.getLogger("bireme.backends.python")

_SEQUENCE_START: Final = 1
_SEQUENCE_END: Final = 2
_MODEL_VERBOSE: Final = 5
"""The level of verbose lines in a `LogLine`."""

Executions = Mapping[int, tuple[Execution, int, int]]
"""The batches that a worker runs, by number: each with the number of its first request and how many it has."""


class Calls:
    """The open calls of one worker process. Loop thread only."""

    __slots__ = (
        "_backlogs",
        "_executions",
        "_host",
        "_is_closed",
        "_ledger",
        "_logger",
        "_open",
        "_send",
        "_tasks",
    )

    def __init__(
        self,
        host: Host,
        ledger: Ledger,
        send: Callable[[Reply | Result], None],
        executions: Executions,
        model_name: str,
    ) -> None:
        """``send`` takes messages for the worker, ``ledger`` is that of its channel, ``executions`` what it runs now."""
        self._host = host
        self._ledger = ledger
        self._send = send
        self._executions = executions
        self._logger = get_logger(f"bireme.model.{model_name}")
        self._open: dict[int, InferenceRequest] = {}
        self._backlogs: dict[int, Backlog] = {}
        """Of open calls with any number of replies."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_closed = False

    def infer(self, message: Infer) -> None:
        """Run another model for the worker."""
        if message.released:
            self._ledger.take_back(message.released)
        data = message.request
        number = data.number
        name = data.model_name
        flags = data.flags
        adopt = self._ledger.adopt
        try:
            request = InferenceRequest(
                name,
                {tensor.name: adopt(tensor) for tensor in data.inputs},
                self._reply,
                model_version=data.model_version,
                id=data.id,
                outputs=data.outputs,
                parameters=data.parameters,
                priority=data.priority,
                timeout_us=data.timeout_us,
                sequence_id=data.sequence_id,
                sequence_start=flags & _SEQUENCE_START != 0,
                sequence_end=flags & _SEQUENCE_END != 0,
                context=number,
            )
            request.trace_context = data.trace_context
            running = self._executions.get(message.execution)
            if running is not None:
                request.parent = running[0]
            check_callee(self._host, request, takes_many=message.is_decoupled)
            if message.is_decoupled:
                self._backlogs[number] = Backlog()
            self._open[number] = request  # before it is submitted: the answer may come within that call
            self._host.submit(request)
        except BiremeError as error:
            self._open.pop(number, None)
            self._backlogs.pop(number, None)
            # Source: whatever kept a call from being run is INTERNAL to the model, whatever its code.
            text = f"Model {name} - Error when running inference: {error.message}"
            self._send(
                Reply(number, ResponseData(error=ErrorData("INTERNAL", text)), self._ledger.take_released())
            )

    def cancel(self, message: CancelCall) -> None:
        """Take a call back; its answer still comes."""
        request = self._open.get(message.call)
        if request is not None:
            self._host.cancel(request)

    def take(self, message: Taken) -> None:
        """The worker has read replies of a call, or reads no more of them: the callee may go on if it was held."""
        number = message.call
        backlog = self._backlogs.get(number)
        if backlog is None:
            return
        if not message.num:
            del self._backlogs[number]
        if backlog.take(message.num) or (backlog.is_full and not message.num):
            self._host.resume(self._open[number])

    def call(self, message: Call) -> None:
        """Do what the worker asks for by name, and answer with a `Result` if it wants one."""
        number, method, arguments = message.call, message.method, message.arguments
        if method == "metric":
            self._finish_call(number, self._metric, arguments)
            return
        if method == "receipt":  # for all that came before
            self._answer_call(number, None, None)
            return
        action = _ACTIONS.get(method)
        if action is None:
            self._answer_call(
                number, None, ErrorData("UNSUPPORTED", f"the server knows no call of the name '{method}'")
            )
            return
        task = self._host.loop.create_task(self._answer(number, action(self._host, arguments)))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def log(self, message: LogLine) -> None:
        """Write a line of the model into the server's log, as if the model's own file had written it."""
        logger = self._logger
        level = verbose_level(1) if message.level <= _MODEL_VERBOSE else message.level
        if logger.isEnabledFor(level):
            logger.handle(
                logger.makeRecord(logger.name, level, message.file, message.line, message.message, (), None)
            )

    def close(self) -> None:
        """The worker is gone: cancel what it waits for, forget its metrics, answer nothing more."""
        self._is_closed = True
        for request in list(self._open.values()):
            self._host.cancel(request)
        self._open.clear()
        self._backlogs.clear()
        self._host.custom_metrics.forget(self)

    def _reply(self, request: InferenceRequest, response: InferenceResponse) -> None:
        """Hand a response of a called model to the worker; as `InferenceRequest.respond`."""
        number = request.context
        backlog = self._backlogs.get(number)
        if response.final:
            self._open.pop(number, None)
            self._backlogs.pop(number, None)
        elif backlog is not None and backlog.add(size_of(response.outputs)):
            self._host.hold(request)
        if self._is_closed:
            return
        failure = response.error
        error = None
        outputs = []
        if failure is None:
            export = self._ledger.export
            try:
                outputs = [export(tensor) for tensor in response.outputs]
            except BiremeError as reason:  # no memory to share: the code that asked must not wait for ever
                error = ErrorData(reason.code, reason.message)
        else:
            error = ErrorData(failure.code, failure.message)
        self._send(
            Reply(
                number,
                ResponseData(
                    outputs,
                    error,
                    response.parameters,
                    response.final,
                    response.flag_only,
                    response.id,
                    response.model_name,
                    response.model_version,
                ),
                self._ledger.take_released(),
            )
        )

    def _metric(self, arguments: Mapping[str, Any]) -> float | None:
        rest = dict(arguments)
        return self._host.custom_metrics.do(self, rest.pop("operation"), rest)

    def _finish_call(
        self, number: int, action: Callable[[Mapping[str, Any]], Any], arguments: Mapping[str, Any]
    ) -> None:
        value: Any = None
        failure: ErrorData | None = None
        try:
            value = action(arguments)
        except Exception as error:  # noqa: BLE001 - the model that asked is told
            failure = _describe(error)
        self._answer_call(number, value, failure)

    async def _answer(self, number: int, action: Awaitable[Any]) -> None:
        value: Any = None
        failure: ErrorData | None = None
        try:
            value = await action
        except Exception as error:  # noqa: BLE001 - the model that asked is told
            failure = _describe(error)
        self._answer_call(number, value, failure)

    def _answer_call(self, number: int, value: Any, failure: ErrorData | None) -> None:
        if self._is_closed:
            return
        if number:
            self._send(Result(number, failure, value))
        elif failure is not None:
            self._logger.warning("a call of the model failed: %s", failure.message)

    def __repr__(self) -> str:
        return f"Calls({len(self._open)} open, {len(self._tasks)} tasks)"


def _describe(error: Exception) -> ErrorData:
    if isinstance(error, BiremeError):
        return ErrorData(error.code, error.message)
    log.error("a call of a model failed", exc_info=error)
    return ErrorData("INTERNAL", f"{type(error).__name__}: {error}")


async def _load_model(host: Host, arguments: Mapping[str, Any]) -> None:
    await host.load_model(arguments["name"], arguments.get("config") or None, arguments.get("files"))


async def _unload_model(host: Host, arguments: Mapping[str, Any]) -> None:
    await host.unload_model(
        arguments["name"], unload_dependents=bool(arguments.get("unload_dependents", False))
    )


async def _is_model_ready(host: Host, arguments: Mapping[str, Any]) -> bool:
    version = str(arguments.get("version") or "-1")
    if not version.removeprefix("-").isdecimal():
        raise InvalidArgument(f"model version '{version}' of '{arguments['name']}' is no number")
    return await host.is_model_ready(arguments["name"], int(version))


_ACTIONS: Final[dict[str, Callable[[Host, Mapping[str, Any]], Awaitable[Any]]]] = {
    "load_model": _load_model,
    "unload_model": _unload_model,
    "is_model_ready": _is_model_ready,
}
