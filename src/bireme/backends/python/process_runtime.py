"""ProcessRuntime: what a model in a worker process needs from its server, over the worker's channel."""

from __future__ import annotations

import asyncio
import itertools
import logging
import sys
import threading
import time
from collections.abc import Mapping
from contextvars import ContextVar
from functools import partial
from typing import Any, Final

from bireme.backends.errors import make_error
from bireme.backends.python.conversions import encodable, from_request, from_response
from bireme.backends.python.exchange import UNSENDABLE, Exchange, Waiter
from bireme.backends.python.holds import Holds, Passage, Wake, running_loop, size_of
from bireme.backends.python.reply_stream import FutureReceiver, ReplyStream
from bireme.ipc.ledger import Ledger
from bireme.ipc.messages import (
    Call,
    CancelCall,
    ErrorData,
    Infer,
    LogLine,
    Orphaned,
    Respond,
    ResponseData,
)
from bireme.types import InferenceRequest, InferenceResponse, Unavailable

_NO_ANSWER: Final = frozenset({"increment", "set", "observe", "drop_series", "drop_family"})
"""Metric operations that return nothing: nobody waits for them."""

RUNNING: Final = 0
"""``execute`` has the request now."""
ABANDONED: Final = 1
"""``execute`` has it and dropped its sender: it can be answered by what is returned."""
RETURNED: Final = 2
"""``execute`` is done with it, and its sender is still there."""

LOOK_NS: Final = 100_000
"""Between two looks for a `Hold`: each costs 4 µs, more than half of a small response."""

_now_ns: Final = time.monotonic_ns

execution_of_task: Final[ContextVar[int]] = ContextVar("execution_of_task", default=0)
"""The batch that a task of an async model belongs to."""


class ProcessRuntime:
    """One model instance's way to the server: `bireme.backends.python.runtime.Runtime`. Any thread may use it.

    What the server is asked by name (`Call`): ``load_model`` (name, config, files), ``unload_model`` (name,
    unload_dependents), ``is_model_ready`` (name, version) and ``metric`` (operation, and that one's own arguments).
    """

    def __init__(self, exchange: Exchange, *, model_name: str, version_dir: str) -> None:
        self.model_name = model_name
        self.version_dir = version_dir
        self.exchange = exchange
        self.ledger: Ledger = exchange.ledger
        self.can_infer = False
        """Whether the model executes, so that it may ask other models."""
        self.execution = 0
        """The batch that the main thread runs; 0: none."""
        self.logs_to_stderr = False
        """Whether log lines do not go to the server: it does not serve this model yet."""
        self.loop: asyncio.AbstractEventLoop | None = None
        """The loop of an async model, which reads the channel."""
        self.open: dict[int, int] = {}
        """The model's requests that have no final response yet: `RUNNING`, `ABANDONED` or `RETURNED` by number."""
        self.holds: Holds[int] = Holds()
        self._looked_ns = 0
        """When a sender last looked whether it is to wait."""
        self._passage = Passage(self._ask_receipt)
        self._cancelled: set[int] = set()
        self._calls = itertools.count(1)
        self._main_thread = threading.get_ident()
        exchange.on_cancel = self._note_cancel
        exchange.on_hold = self._note_hold
        exchange.on_resume = self.holds.release
        exchange.on_end = self.holds.end

    # Other models

    def infer(self, request: InferenceRequest) -> InferenceResponse:
        """See `Runtime.infer`."""
        return self._infer(request, self._find_execution())

    def infer_async(self, request: InferenceRequest) -> asyncio.Future[InferenceResponse]:
        """See `Runtime.infer_async`. On the model's own loop no thread is needed; on another one, a thread waits."""
        self._check_can_infer()
        loop = asyncio.get_running_loop()
        execution = self._find_execution()
        if loop is not self.loop:
            return loop.run_in_executor(None, self._infer, request, execution)
        call = next(self._calls)
        receiver = FutureReceiver(loop, partial(self._response_or_loss, request))
        self.exchange.expect(call, receiver)
        receiver.future.add_done_callback(partial(self._end_call, call))
        try:
            self._send_infer(request, call, execution, is_decoupled=False)
        except BaseException:
            receiver.future.cancel()
            raise
        return receiver.future

    def _end_call(self, call: int, future: asyncio.Future[InferenceResponse]) -> None:
        self.exchange.forget(call)
        if future.cancelled():
            self.exchange.send(CancelCall(call))

    def stream(self, request: InferenceRequest) -> ReplyStream:
        """See `Runtime.stream`."""
        self._check_can_infer()
        call = next(self._calls)
        stream = ReplyStream(self, request, call)
        self.exchange.expect(call, stream)
        try:
            self._send_infer(request, call, self._find_execution(), is_decoupled=True)
        except BaseException:
            self.exchange.forget(call)
            raise
        return stream

    def _infer(self, request: InferenceRequest, execution: int) -> InferenceResponse:
        self._check_can_infer()
        call = next(self._calls)
        exchange = self.exchange
        data = from_request(request, call, self.ledger.export)
        response = exchange.ask(Infer(data, execution, False, self.ledger.take_released()), call)
        return self._response_or_loss(request, response)

    def _send_infer(
        self, request: InferenceRequest, call: int, execution: int, *, is_decoupled: bool
    ) -> None:
        data = from_request(request, call, self.ledger.export)
        exchange = self.exchange
        exchange.send(Infer(data, execution, is_decoupled, self.ledger.take_released()))

    def _response_or_loss(
        self, request: InferenceRequest, response: InferenceResponse | None
    ) -> InferenceResponse:
        return self.lost_response(request) if response is None else response

    def _check_can_infer(self) -> None:
        if not self.can_infer:
            raise RuntimeError("BLS is only supported during the 'execute' function.")
        self.exchange.check_not_forked()

    def _find_execution(self) -> int:
        """Return the batch whose code asks, as far as that can be told: 0 in threads that the model started."""
        if threading.get_ident() == self._main_thread and self.loop is None:
            return self.execution
        return execution_of_task.get()

    # The requests that this model runs

    def respond(self, request: InferenceRequest, response: InferenceResponse) -> None:
        """See `Runtime.respond`. What comes after a final response is dropped."""
        number: int = request.context
        if number not in self.open:
            return
        exchange = self.exchange
        exchange.check_not_forked()
        if not response.final:
            self._await_room(number)
            if number not in self.open:  # by another thread, or as the model has ended
                return
        data = from_response(response, self.ledger.export)
        if response.final:
            self.close(number)
        try:
            exchange.send(Respond(number, data, self.ledger.take_released()))
        except UNSENDABLE as error:  # a name, a parameter; its caller is not to wait for ever
            self.close(number)
            failure = ErrorData("INTERNAL", f"the response cannot be sent: {encodable(str(error))}")
            exchange.send(Respond(number, ResponseData(error=failure)))
            raise
        if not response.final:
            self._passage.note(size_of(response.outputs))

    def _await_room(self, number: int) -> None:
        """Return when request ``number`` is not held (any more). Where no thread reads, this one does."""
        exchange, holds = self.exchange, self.holds
        now_ns = _now_ns()
        if now_ns - self._looked_ns > LOOK_NS:
            self._looked_ns = now_ns
            exchange.poll()
        while number in holds:
            # The loop of an async model has other tasks: the one that sends rests when it next awaits something.
            if self.loop is not None and running_loop() is self.loop:
                holds.owe(number)
                return
            waiter = Waiter()
            if holds.join(number, partial(waiter.deliver, True)):
                exchange.wait(waiter)

    def _ask_receipt(self) -> Wake:
        """See `Passage`."""
        call = next(self._calls)
        waiter = Waiter()
        self.exchange.expect(call, waiter)
        self.exchange.send(Call(call, "receipt", {}))
        return partial(self._await_receipt, call, waiter)

    def _await_receipt(self, call: int, waiter: Waiter) -> None:
        self.exchange.wait(waiter)
        self.exchange.forget(call)

    def abandon(self, request: InferenceRequest) -> None:
        """See `Runtime.abandon`."""
        number: int = request.context
        state = self.open.get(number)
        if state == RUNNING:
            self.open[number] = ABANDONED
        elif state == RETURNED and not self.exchange.is_forked:
            self.close(number)
            self.exchange.send(Orphaned(number))

    def is_cancelled(self, request: InferenceRequest) -> bool:
        """See `Runtime.is_cancelled`. Where no thread reads, this reads what is there: one system call."""
        if not request.cancelled:
            if request.context not in self._cancelled:
                self.exchange.poll()
            request.cancelled = request.context in self._cancelled
        return request.cancelled

    def open_request(self, number: int, *, is_cancelled: bool) -> None:
        """Request ``number`` has come."""
        self.open[number] = RUNNING
        if is_cancelled:
            self._cancelled.add(number)

    def close(self, number: int) -> None:
        """Request ``number`` needs no more responses of this run of it."""
        self.open.pop(number, None)
        self.holds.release(number)
        if self._cancelled:
            self._cancelled.discard(number)

    def _note_cancel(self, number: int) -> None:
        if number in self.open:
            self._cancelled.add(number)
            self.holds.release(number)

    def _note_hold(self, number: int) -> None:
        if number in self.open and number not in self._cancelled:
            self.holds.hold(number)

    # The server

    def log(self, level: int, message: str, file: str, line: int) -> None:
        """See `Runtime.log`."""
        if self.logs_to_stderr or self.exchange.is_forked:
            sys.stderr.write(f"{file}:{line}] {message}\n")
            return
        self.exchange.send(LogLine(level, encodable(message), encodable(file), line))

    def log_error(self, message: str) -> None:
        """Write an error that the model's own code caused and nobody is told otherwise."""
        self.log(logging.ERROR, message, f"{self.version_dir}/model.py", 0)

    def load_model(self, name: str, config: str, files: Mapping[str, bytes] | None) -> None:
        """See `Runtime.load_model`."""
        self._call("load_model", name=name, config=config, files=None if files is None else dict(files))

    def unload_model(self, name: str, *, unload_dependents: bool) -> None:
        """See `Runtime.unload_model`."""
        self._call("unload_model", name=name, unload_dependents=unload_dependents)

    def is_model_ready(self, name: str, version: str) -> bool:
        """See `Runtime.is_model_ready`."""
        return bool(self._call("is_model_ready", name=name, version=version))

    def metric(self, operation: str, **arguments: Any) -> float | None:
        """See `Runtime.metric`. Changes of values are sent and not waited for: their errors are in the server's log."""
        if operation in _NO_ANSWER:
            self.exchange.send(Call(0, "metric", {"operation": operation, **arguments}))
            return None
        value = self._call("metric", operation=operation, **arguments)
        return None if value is None else float(value)

    def _call(self, method: str, **arguments: Any) -> Any:
        call = next(self._calls)
        result = self.exchange.ask(Call(call, method, arguments), call)
        if result is None:
            raise Unavailable("the server is gone")
        if result.error is not None:
            raise make_error(result.error.code, result.error.message)
        return result.value

    def lost_response(self, request: InferenceRequest) -> InferenceResponse:
        """Return the answer to a call when the server is gone."""
        error = Unavailable("the server is gone")
        return InferenceResponse(request.model_name, request.model_version, request.id, error=error)
