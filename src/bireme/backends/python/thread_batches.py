"""From executions to what a model's ``execute`` gets in a thread, and from what it returns to responses."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from inspect import iscoroutine
from typing import TYPE_CHECKING, Any, Final

from bireme.backends.errors import RESCHEDULED
from bireme.backends.python.batch import check_open, check_returned, failure_text, is_rescheduled
from bireme.backends.python.holds import paced
from bireme.backends.python.pb_utils.request import InferenceRequest as ModelRequest, Served
from bireme.backends.python.process_runtime import ABANDONED, RETURNED, RUNNING
from bireme.types import BackendFailed, Execution, InferenceRequest, InferenceResponse, Tensor

if TYPE_CHECKING:
    from bireme.backends.python.thread_worker import UserModel

log = logging.getLogger("bireme.backends.python")

RUN_AGAIN: Final = InferenceResponse("", 0, flag_only=True)
"""In an outcome: the model wants the request again in a later batch."""

Outcome = list[InferenceResponse | None] | BackendFailed
"""What there is for each request of an execution (None: the model answers otherwise), or why the whole batch failed."""

_now_ns: Final = time.monotonic_ns


class Batches:
    """Turns executions into what the model gets, and what it returns into outcomes. Any thread may use it."""

    def __init__(
        self,
        model: UserModel,
        *,
        instance_name: str,
        output_names: Sequence[str],
        is_decoupled: bool,
    ) -> None:
        self.model = model
        self._runtime = model.runtime
        self._instance_name = instance_name
        self.is_decoupled = is_decoupled
        self._served = Served(model.runtime, output_names, is_decoupled)
        self._all_outputs = output_names or None

    def open(self, requests: Sequence[InferenceRequest]) -> list[ModelRequest]:
        """Return the model's view of ``requests``, which are open from now on."""
        opened, served = self._runtime.open, self._served
        wrapped = []
        for request in requests:
            opened[request] = RUNNING
            if request.outputs is None:
                # What the config does not declare is not sent, even to those who ask for everything.
                request.outputs = self._all_outputs
            if request.parent is not None:
                # Others may hold the arrays of a call: they are given to the model read-only.
                request.inputs = {name: _read_only(tensor) for name, tensor in request.inputs.items()}
            wrapped.append(ModelRequest.incoming(request, served))
        return wrapped

    def settle(self, returned: Any, wrapped: list[ModelRequest], requests: list[InferenceRequest]) -> Outcome:
        """Return what ``execute`` has for each request; a wrong result fails the batch."""
        runtime = self._runtime
        opened, version = runtime.open, runtime.model_version
        outcome: list[InferenceResponse | None] = []
        num_missing = 0
        try:
            for response, request in zip(
                check_returned(
                    returned,
                    wrapped,
                    instance_name=self._instance_name,
                    is_decoupled=self._served.is_decoupled,
                ),
                requests,
                strict=True,
            ):
                if response is None:
                    outcome.append(None)
                    num_missing += 1
                    continue
                if request not in opened:
                    check_open(request, opened)
                answer = response.to_response(request, final=True)
                answer.model_version = version  # the request may have asked for the latest
                outcome.append(answer)
        except Exception as error:  # noqa: BLE001 - whatever a model's objects raise
            return self.fail(error, requests)
        if num_missing:
            self._close(outcome, wrapped, requests)
        else:
            for request in requests:
                opened.pop(request, None)
        return outcome

    def _close(
        self,
        outcome: list[InferenceResponse | None],
        wrapped: list[ModelRequest],
        requests: list[InferenceRequest],
    ) -> None:
        """Close what is answered; add the answers to requests that the model cannot answer any more."""
        opened = self._runtime.open
        for index, request in enumerate(requests):
            if outcome[index] is not None:
                opened.pop(request, None)
            elif is_rescheduled(wrapped[index]):
                sender = wrapped[index].sender
                if sender is not None:  # the next run has another
                    sender.close()
                self._runtime.close_request(request)
                outcome[index] = RUN_AGAIN
            elif opened.get(request) == ABANDONED or (request in opened and wrapped[index].sender is None):
                # Its sender was dropped, or never asked for.
                self._runtime.close_request(request)
                outcome[index] = self._runtime.orphan_response(request)
            elif request in opened:
                opened[request] = RETURNED

    def fail(self, error: BaseException, requests: list[InferenceRequest]) -> BackendFailed:
        """Return the answer to all of a batch's requests that are open, when ``execute`` raised ``error``."""
        for request in requests:
            self._runtime.close_request(request)
        text = failure_text(error, self._instance_name)
        log.error("%s", text)
        return BackendFailed(text)

    def refuse_again(self, request: InferenceRequest) -> InferenceResponse:
        """Return the answer to a request that is `RUN_AGAIN`, of a model that must not ask for that."""
        error = BackendFailed(f"model '{self._runtime.model_name}' {RESCHEDULED}")
        return self._runtime.error_response(request, error)

    def run(self, execution: Execution, requests: list[InferenceRequest]) -> Outcome:
        """Run a batch on the calling thread and return its outcome. Never raises."""
        execution.compute_start_ns = _now_ns()
        outcome: Outcome
        try:
            wrapped = self.open(requests)
            execution.compute_input_end_ns = _now_ns()
            returned = self.model.execute(wrapped)
            if returned.__class__ is not list and iscoroutine(returned):
                returned = asyncio.run(returned)
            execution.compute_output_start_ns = _now_ns()
            outcome = self.settle(returned, wrapped, requests)
        except BaseException as error:  # noqa: BLE001 - SystemExit, too: it ends the batch, not the server
            outcome = self.fail(error, requests)
        _note_end(execution)
        return outcome

    async def run_async(self, execution: Execution, requests: list[InferenceRequest]) -> Outcome:
        """As `run`, of a model whose ``execute`` is asynchronous, on its loop."""
        execution.compute_start_ns = _now_ns()
        outcome: Outcome
        try:
            wrapped = self.open(requests)
            execution.compute_input_end_ns = _now_ns()
            returned = self.model.execute(wrapped)
            if iscoroutine(returned):
                returned = await paced(returned, self._runtime.holds, requests)
            execution.compute_output_start_ns = _now_ns()
            outcome = self.settle(returned, wrapped, requests)
        except BaseException as error:  # noqa: BLE001 - as in `run`
            outcome = self.fail(error, requests)
        _note_end(execution)
        return outcome


def _note_end(execution: Execution) -> None:
    now_ns = _now_ns()
    execution.compute_input_end_ns = execution.compute_input_end_ns or now_ns
    execution.compute_output_start_ns = execution.compute_output_start_ns or now_ns
    execution.compute_end_ns = now_ns


def _read_only(tensor: Tensor) -> Tensor:
    if tensor.is_encoded:
        return tensor
    view = tensor.to_numpy().view()
    view.flags.writeable = False
    return Tensor(tensor.name, tensor.datatype, tensor.shape, view)
