"""Batches: from an `Execute` message to the requests a model gets, and from what it returns to `Executed`."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Final

from bireme.backends.python.batch import check_open, check_returned, failure_text, is_rescheduled
from bireme.backends.python.conversions import from_response, to_request
from bireme.backends.python.exchange import UNSENDABLE
from bireme.backends.python.pb_utils.request import InferenceRequest, Served
from bireme.backends.python.process_runtime import ABANDONED, RETURNED, RUNNING, ProcessRuntime
from bireme.ipc.messages import ErrorData, Execute, Executed, Orphaned, ResponseData
from bireme.types import BiremeError

_now_ns: Final = time.monotonic_ns
_incoming: Final = InferenceRequest.incoming


class Batches:
    """What all batches of one model instance have in common."""

    def __init__(
        self,
        runtime: ProcessRuntime,
        *,
        instance_name: str,
        model_version: int,
        is_decoupled: bool,
        output_names: Sequence[str],
    ) -> None:
        """``output_names`` are those of the model's config."""
        self.runtime = runtime
        self.instance_name = instance_name
        self.model_version = model_version
        self.is_decoupled = is_decoupled
        self.served = Served(runtime, output_names, is_decoupled)
        # What a request without names asks for. Source: Triton prunes what is not in the config.
        self.all_outputs = output_names or None

    def open(self, message: Execute) -> Batch:
        """Return the batch that the server asks for; its requests are open from now on."""
        return Batch(self, message)


class Batch:
    """One run of ``execute``: `finish` or `fail` it, then `answer`."""

    __slots__ = (
        "_batches",
        "_end_ns",
        "_error",
        "_failure",
        "_message",
        "_requests",
        "_responses",
        "_start_ns",
        "number",
    )

    def __init__(self, batches: Batches, message: Execute) -> None:
        """On the thread that reads: what the message refers to is adopted before the next one comes."""
        self.number = message.number
        self._batches = batches
        self._message = message
        self._responses: list[ResponseData | None] = []
        self._error: ErrorData | None = None
        self._failure: BiremeError | None = None
        self._start_ns = 0
        self._end_ns = 0
        self._requests: list[InferenceRequest] = []
        runtime = batches.runtime
        adopt, served = runtime.ledger.adopt, batches.served
        name, version, all_outputs = runtime.model_name, batches.model_version, batches.all_outputs
        try:
            for data in message.requests:
                runtime.open_request(data.number, is_cancelled=data.is_cancelled)
                self._requests.append(_incoming(to_request(data, adopt, name, version, all_outputs), served))
        except BiremeError as error:  # no memory can be mapped any more
            self._failure = error

    @property
    def request_numbers(self) -> list[int]:
        """The numbers of its requests."""
        return [data.number for data in self._message.requests]

    def start(self) -> list[InferenceRequest]:
        """Return the requests as the model sees them, in a list that is its own.

        Raises:
            BiremeError: they cannot be had.
        """
        self._start_ns = _now_ns()
        if self._failure is not None:
            raise self._failure
        return self._requests[:]

    def finish(self, returned: Any) -> None:
        """Take what ``execute`` returned. Raises what makes it wrong: then the batch is to `fail`."""
        self._end_ns = _now_ns()
        batches = self._batches
        requests = self._requests
        responses = check_returned(
            returned, requests, instance_name=batches.instance_name, is_decoupled=batches.is_decoupled
        )
        runtime = batches.runtime
        runtime.exchange.check_not_forked()  # its arena is that of the process it is a copy of
        export = runtime.ledger.export
        results: list[ResponseData | None] = []
        for response, seen in zip(responses, requests, strict=True):
            if response is None:
                results.append(None)
                continue
            request = seen._request  # noqa: SLF001 (our own class)
            check_open(request.context, runtime.open)
            results.append(from_response(response.to_response(request, final=True), export))
        self._responses = results

    def fail(self, error: BaseException) -> None:
        """All requests that are still open fail with ``error``."""
        self._end_ns = self._end_ns or _now_ns()
        self._responses = []
        self._error = ErrorData("INTERNAL", failure_text(error, self._batches.instance_name))

    def answer(self) -> None:
        """Tell the server. What the requests lent and nobody holds any more goes back with it."""
        left_open, rescheduled = self._settle()
        self._requests.clear()
        exchange = self._batches.runtime.exchange
        executed = Executed(
            self.number,
            self._start_ns,
            self._end_ns,
            self._responses,
            self._error,
            exchange.ledger.take_released(),
            rescheduled,
        )
        try:
            exchange.send(executed)
        except UNSENDABLE as error:  # of the model's making: a name, a parameter
            executed.responses = []
            executed.error = ErrorData("INTERNAL", failure_text(error, self._batches.instance_name))
            exchange.send(executed)
        if left_open:
            self._leave(left_open)

    def _settle(self) -> tuple[list[int], list[int]]:
        """Close what is answered; return the numbers of requests that stay open, and of those that are to run again."""
        runtime = self._batches.runtime
        left_open: list[int] = []
        rescheduled: list[int] = []
        if self._error is not None:
            for data in self._message.requests:
                runtime.close(data.number)
            for request in self._requests:
                if request.sender is not None:
                    request.sender.close()
            return left_open, rescheduled
        for response, request in zip(self._responses, self._requests, strict=True):
            number = request._request.context  # noqa: SLF001 (our own class)
            if response is None:
                if not is_rescheduled(request):
                    left_open.append(number)
                    # When this was the last of it, the sender's end tells that nobody will answer.
                    request.get_response_sender()
                    continue
                rescheduled.append(number)
            if request.sender is not None:
                request.sender.close()
            runtime.close(number)
        return left_open, rescheduled

    def _leave(self, numbers: list[int]) -> None:
        """The batch is over, and these requests are open: their senders are to answer."""
        runtime = self._batches.runtime
        for number in numbers:
            state = runtime.open.get(number)
            if state == RUNNING:
                runtime.open[number] = RETURNED
            elif state == ABANDONED:
                runtime.close(number)
                runtime.exchange.send(Orphaned(number))
