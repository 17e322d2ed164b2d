"""Batches: from an `Execute` message to the requests a model gets, and from what it returns to `Executed`."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Final

from bireme.backends.python.batch import check_open, check_returned, failure_text, is_rescheduled
from bireme.backends.python.conversions import from_response, to_request
from bireme.backends.python.pb_utils import InferenceRequest
from bireme.backends.python.process_runtime import ABANDONED, RETURNED, RUNNING, ProcessRuntime
from bireme.ipc.messages import ErrorData, Execute, Executed, Orphaned, ResponseData

_now_ns: Final = time.monotonic_ns


class Batches:
    """What all batches of one model instance have in common."""

    def __init__(
        self,
        runtime: ProcessRuntime,
        *,
        instance_name: str,
        model_version: int,
        is_decoupled: bool,
        all_outputs: Sequence[str] | None,
    ) -> None:
        """``all_outputs`` are the outputs of the model's config; None: it names none."""
        self.runtime = runtime
        self.instance_name = instance_name
        self.model_version = model_version
        self.is_decoupled = is_decoupled
        self.all_outputs = all_outputs

    def open(self, message: Execute) -> Batch:
        """Return the batch that the server asks for; its requests are open from now on."""
        return Batch(self, message)


class Batch:
    """One run of ``execute``: `finish` or `fail` it, then `answer`."""

    __slots__ = ("_batches", "_end_ns", "_error", "_message", "_responses", "_start_ns", "requests")

    def __init__(self, batches: Batches, message: Execute) -> None:
        self._batches = batches
        self._message = message
        self._responses: list[ResponseData | None] = []
        self._error: ErrorData | None = None
        self._end_ns = 0
        runtime = batches.runtime
        adopt = runtime.ledger.adopt
        wrap = InferenceRequest._wrap  # noqa: SLF001 (our own class)
        name, version, all_outputs = runtime.model_name, batches.model_version, batches.all_outputs
        self.requests: list[Any] = []
        """The model's: `pb_utils.InferenceRequest`."""
        for data in message.requests:
            runtime.open_request(data.number, is_cancelled=data.is_cancelled)
            self.requests.append(wrap(to_request(data, adopt, name, version, all_outputs)))
        self._start_ns = _now_ns()

    def finish(self, returned: Any) -> None:
        """Take what ``execute`` returned. Raises what makes it wrong: then the batch is to `fail`."""
        self._end_ns = _now_ns()
        batches = self._batches
        requests = self.requests
        responses = check_returned(
            returned,
            requests,
            instance_name=batches.instance_name,
            is_decoupled=batches.is_decoupled,
        )
        runtime = batches.runtime
        export = runtime.ledger.export
        results: list[ResponseData | None] = []
        for response, pb_request in zip(responses, requests, strict=True):
            if response is None:
                results.append(None)
                continue
            request = pb_request._request  # noqa: SLF001 (our own class)
            check_open(request.context, runtime.open)
            results.append(from_response(response.to_response(request, final=True), export))
        self._responses = results

    def fail(self, error: BaseException) -> None:
        """All requests that are still open fail with ``error``."""
        self._end_ns = self._end_ns or _now_ns()
        self._error = ErrorData("INTERNAL", failure_text(error, self._batches.instance_name))

    def answer(self) -> None:
        """Tell the server. What the requests lent and nobody holds any more goes back with it."""
        runtime = self._batches.runtime
        message = self._message
        if self._error is not None:
            rescheduled: list[int] = []
            for data in message.requests:
                runtime.close(data.number)
            orphans: list[int] = []
        else:
            rescheduled, orphans = self._settle()
        self.requests.clear()
        exchange = runtime.exchange
        exchange.send(
            Executed(
                message.number,
                self._start_ns,
                self._end_ns,
                self._responses,
                self._error,
                exchange.take_released(),
                rescheduled,
            )
        )
        for number in orphans:
            exchange.send(Orphaned(number))

    def _settle(self) -> tuple[list[int], list[int]]:
        """Close what is answered; return the numbers of those the model wants again, and of those it cannot answer."""
        runtime = self._batches.runtime
        open_requests = runtime.open
        rescheduled: list[int] = []
        orphans: list[int] = []
        for data, response, request in zip(
            self._message.requests, self._responses, self.requests, strict=True
        ):
            number = data.number
            if response is not None:
                runtime.close(number)
            elif is_rescheduled(request):
                rescheduled.append(number)
                runtime.close(number)
            elif open_requests.get(number) == ABANDONED:
                orphans.append(number)
                runtime.close(number)
            elif open_requests.get(number) == RUNNING:
                open_requests[number] = RETURNED
        return rescheduled, orphans
