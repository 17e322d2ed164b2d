"""EnsembleInstance: runs an ensemble's requests by making requests to the models of its steps.

A `bireme.backends.interface.RequestInstance` that takes any number of requests at a time. All decisions are
`bireme.scheduling.ensemble_run`'s; this submits the calls, passes the responses on, and ends each request exactly once.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import Final

from bireme.backends.ensemble.active_run import ActiveRun
from bireme.backends.ensemble.direct_runs import DirectRuns
from bireme.backends.ensemble.limits import StepLimits, calls_below
from bireme.backends.ensemble.steps import name_error, name_fault, name_refusal, step_request
from bireme.backends.interface import Host, ResponseSink
from bireme.backends.loop_calls import LoopCalls
from bireme.scheduling.ensemble_plan import EnsemblePlan, Step
from bireme.scheduling.ensemble_run import Answer, SequenceFields, StepCall
from bireme.types import (
    BiremeError,
    Cancelled,
    Execution,
    InferenceRequest,
    InferenceResponse,
    Internal,
    InvalidArgument,
    Parameter,
    Unavailable,
)

_now_ns = time.monotonic_ns
_SHORT_NS: Final = 300_000
"""Behind a step that took no longer, the processes of the next steps are woken while it runs."""
_ANY_NUMBER: Final = 1 << 31
_LOOP_CHECK_S: Final = 1.0
"""A thread that waits for the loop looks this often whether that still exists."""


class EnsembleInstance:
    """The one instance of an ensemble. Loop thread only."""

    def __init__(self, plan: EnsemblePlan, host: Host, version: int) -> None:
        self.max_concurrent = _ANY_NUMBER
        self.unavailable: str | None = None
        self.retry_delay_s = 0.0
        self.has_ready_hook = False
        self.can_be_called = (
            not plan.is_decoupled and not plan.max_inflight_requests and _all_called(plan, host)
        )
        self._plan = plan
        self._host = host
        self._version = version
        self._loop_calls = LoopCalls(host.loop)
        self._direct = DirectRuns(plan, host, self._take_back)
        self._runs: dict[InferenceRequest, ActiveRun] = {}
        self._limits = StepLimits(plan, host, self._runs) if plan.max_inflight_requests else None
        self._due: deque[ActiveRun] = deque()
        """Runs in which something has happened."""
        self._granted: deque[StepCall] = deque()
        """Calls that have waited for others of their step, and need not wait any longer."""
        self._took_ns = [0] * len(plan.steps)
        """How long the last request of each step was on its way."""
        self._is_working = False
        self._sink: ResponseSink
        self._respond = self._on_response

    def start(self, sink: ResponseSink) -> None:
        """See `RequestInstance.start`."""
        self._sink = sink

    def execute_requests(self, execution: Execution) -> None:
        """See `RequestInstance.execute_requests`."""
        run = ActiveRun(self._plan, execution)
        self._runs[run.request] = run
        self._advance(run)

    def call(self, execution: Execution) -> InferenceResponse:
        """See `RequestInstance.call`. Where a step cannot be made on this thread, it waits for the loop to go on."""
        run = ActiveRun(self._plan, execution)
        run.is_called = run.is_driven = True
        self._runs[run.request] = run
        if run.request.cancelled:  # before `cancel` could find it
            run.stop_error = self._cancelled(run.request)
        self._direct.drive(run)
        if run.is_over:
            self._runs.pop(run.request, None)
        else:
            self._let_loop_go_on(run)
        run.set_times()
        return run.response or self._only_response(run)

    def _let_loop_go_on(self, run: ActiveRun) -> None:
        """Wait until the loop has made the rest of ``run``."""
        run.done = threading.Event()
        run.goes_by_loop = True
        self._loop_calls.put(self._adopt, run)
        while not run.done.wait(_LOOP_CHECK_S):
            if self._loop_calls.loop.is_closed():
                run.fail(Unavailable(f"ensemble '{self._plan.name}' was ended before its steps"))
                break

    def _adopt(self, run: ActiveRun) -> None:
        run.is_driven = False
        if run.is_closed:
            assert run.done is not None
            run.done.set()
        self._take_back(run)

    def cancel(self, request: InferenceRequest) -> None:
        """See `RequestInstance.cancel`: steps that wait are taken back, those that run are told."""
        run = self._runs.get(request)
        if run is None:
            return
        error = self._cancelled(request)
        if not run.is_driven:
            self._fail(run, error)
            self._advance(run)
            return
        run.stop_error = error
        self._give_up_step(run)

    def _give_up_step(self, run: ActiveRun) -> None:
        """Tell the models whose code a thread runs for ``run`` at this moment that nobody waits for it."""
        current = run.current
        for request in (current, *calls_below(current)) if current is not None else ():
            if request.owner is not None:
                self._host.cancel(request)
                continue
            request.cancelled = True
            if (instance := request.instance) is not None:
                instance.cancel(request)

    def _cancelled(self, request: InferenceRequest) -> Cancelled:
        return Cancelled(f"{request.id_prefix}in ensemble '{self._plan.name}', the request was cancelled")

    def expect(self) -> None:
        """Nothing is to do: an ensemble does not sleep."""

    def hold(self, request: InferenceRequest) -> None:
        """See `RequestInstance.hold`: the decoupled steps are held."""
        run = self._runs.get(request)
        for each in run.producers() if run is not None else ():
            self._host.hold(each)

    def resume(self, request: InferenceRequest) -> None:
        """See `RequestInstance.resume`."""
        run = self._runs.get(request)
        if run is None:
            return
        for each in run.producers():
            if self._limits is None or not self._limits.is_holding(run, each):
                self._host.resume(each)

    async def check_ready(self) -> bool:
        """See `RequestInstance.check_ready`: its models answer for themselves."""
        return True

    def kill(self) -> None:
        """See `RequestInstance.kill`. What the steps still answer is dropped."""
        for run in list(self._runs.values()):
            error = Unavailable(
                f"{run.request.id_prefix}ensemble '{self._plan.name}' was ended before its steps"
            )
            if run.is_driven:  # its thread is left alone with it
                run.error = run.stop_error = error
                self._give_up_step(run)
            else:
                self._fail(run, error)
            if not run.is_closed:
                self._close(run)

    def close(self) -> None:
        """End the threads."""
        self._direct.close()

    def _take_back(self, run: ActiveRun) -> None:
        """Go on with a run that a thread had."""
        if run.is_closed:
            return
        if run.stop_error is not None:
            self._fail(run, run.stop_error)
        self._advance(run)

    def _advance(self, run: ActiveRun) -> None:
        """Do what ``run`` now asks for. Steps that answer at once lead here again: one loop does the work of all."""
        self._due.append(run)
        if self._is_working:
            return
        self._is_working = True
        try:
            while self._due or self._granted:
                while self._granted:
                    self._submit(self._granted.popleft())
                if self._due:
                    self._work(self._due.popleft())
        finally:
            self._is_working = False

    def _work(self, run: ActiveRun) -> None:
        if run.is_driven:  # a step that answered at once let a thread have it while it was in ``_due``
            return
        while not run.is_closed and (run.answers or run.calls):
            while run.answers:
                self._answer(run, run.answers.popleft())
            if run.calls and self._limits is None:
                self._direct.drive_here(run)
                if run.answers:
                    continue
                if self._direct.take(run):
                    return
            if run.calls:
                run.goes_by_loop = False
                call = run.calls.popleft()
                if self._limits is None or self._limits.enter(call):
                    self._submit(call)
        if run.is_over and not run.is_closed:
            self._close(run)

    def _submit(self, call: StepCall) -> None:
        run = call.run
        assert isinstance(run, ActiveRun)
        step = call.step
        request = step_request(run, call, self._respond)
        call.inputs = {}  # the request has them: they go when it goes
        run.open.add(request)
        call.begin_ns = _now_ns()
        try:
            self._host.submit(request)
            if self._took_ns[step.index] < _SHORT_NS:
                for reader in self._plan.readers[step.index]:
                    self._host.expect(reader.model_name, reader.model_version)
        except BiremeError as error:
            self._end_call(run, request, step)
            self._fail(run, name_refusal(self._plan, step, error))
        except Exception as error:  # noqa: BLE001 - it is logged there
            self._end_call(run, request, step)
            self._fail(run, name_fault(self._plan, step, error))
        else:
            return
        self._due.append(run)

    def _on_response(self, request: InferenceRequest, response: InferenceResponse) -> None:
        """Take a response of a step's model."""
        call: StepCall = request.context
        run = call.run
        assert isinstance(run, ActiveRun)
        if response.final:
            self._took_ns[call.step.index] = _now_ns() - call.begin_ns
            self._end_call(run, request, call.step)
        if response.error is not None:
            self._fail(run, name_error(self._plan, call.step, response.error))
        elif not response.flag_only:
            try:
                run.take(call, response.outputs, response.parameters)
            except InvalidArgument as error:
                self._fail(run, name_error(self._plan, call.step, error))
            if run.error is not None:  # something behind this step is wrong
                self._withdraw(run)
            elif run.num_blocked and self._limits is not None:
                self._limits.look(run)
        self._advance(run)

    def _end_call(self, run: ActiveRun, request: InferenceRequest, step: Step) -> None:
        run.open.discard(request)
        run.end()
        run.add_times(request.execution)
        if self._limits is not None:
            self._granted.extend(self._limits.leave(step))

    def _fail(self, run: ActiveRun, error: BiremeError) -> None:
        """Let ``run`` end with ``error`` as soon as what it has in flight has; nobody needs the answers of that."""
        if run.error is None:
            run.fail(error)
            self._withdraw(run)

    def _withdraw(self, run: ActiveRun) -> None:
        """Take back what a failed run has in flight."""
        if self._limits is not None:
            self._limits.drop(run)
        for request in list(run.open):
            self._host.cancel(request)

    def _answer(self, run: ActiveRun, answer: Answer) -> None:
        run.is_answered = run.is_over and not run.answers
        if run.is_answered:
            run.set_times()
        response = self._response(run, answer, final=run.is_answered)
        if run.is_called:
            run.response = response
        else:
            self._sink.respond(run.request, response)

    def _response(self, run: ActiveRun, answer: Answer, *, final: bool) -> InferenceResponse:
        return InferenceResponse(
            run.request.model_name,
            self._version,
            run.request.id,
            answer.outputs,
            parameters=_sequence_parameters(answer.sequence),
            final=final,
        )

    def _only_response(self, run: ActiveRun) -> InferenceResponse:
        """Return the response of a run that is over and gives one."""
        if run.error is None and run.answers:
            return self._response(run, run.answers.popleft(), final=True)
        error = run.error or Internal(
            f"{run.request.id_prefix}ensemble '{self._plan.name}' has ended without its outputs"
        )
        return InferenceResponse(run.request.model_name, self._version, run.request.id, error=error)

    def _close(self, run: ActiveRun) -> None:
        """End a run in which nothing is in flight any more."""
        run.is_closed = True
        request = run.request
        self._runs.pop(request, None)
        run.set_times()
        if run.is_called:
            if run.done is not None:
                run.done.set()
            return
        error = run.error
        if error is None and not run.is_answered:
            if self._plan.is_decoupled:
                final = InferenceResponse(request.model_name, self._version, request.id, flag_only=True)
                self._sink.respond(request, final)
            else:
                error = self._only_response(run).error
        self._sink.finish(run.execution, error)

    def __repr__(self) -> str:
        return f"EnsembleInstance({self._plan.name!r}, {len(self._runs)} requests)"


def _all_called(plan: EnsemblePlan, host: Host) -> bool:
    """Whether the models of all steps run on threads of this process."""
    return all(host.way_to(step.model_name, step.model_version) != "queue" for step in plan.steps)


def _sequence_parameters(sequence: SequenceFields | None) -> dict[str, Parameter] | None:
    if sequence is None:
        return None
    return {
        "sequence_id": sequence.id,
        "sequence_start": sequence.is_start,
        "sequence_end": sequence.is_end,
    }
