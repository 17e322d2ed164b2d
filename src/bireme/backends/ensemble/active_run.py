"""ActiveRun: a run with the request it belongs to, what it has in flight, and what its steps have taken."""

from __future__ import annotations

import asyncio
import threading
import time

from bireme.scheduling.ensemble_plan import EnsemblePlan
from bireme.scheduling.ensemble_run import EnsembleRun, SequenceFields, StepCall
from bireme.types import BiremeError, Execution, InferenceRequest, InferenceResponse

_now_ns = time.monotonic_ns


class ActiveRun(EnsembleRun):
    """The run of one request. Loop thread only."""

    __slots__ = (
        "current",
        "done",
        "execution",
        "goes_by_loop",
        "infer_ns",
        "input_ns",
        "is_answered",
        "is_blocked",
        "is_called",
        "is_closed",
        "is_driven",
        "open",
        "output_ns",
        "request",
        "response",
        "stop_error",
        "valve",
        "waiting",
    )

    def __init__(self, plan: EnsemblePlan, execution: Execution) -> None:
        (request,) = execution.requests
        self.execution = execution
        self.request = request
        self.open: set[InferenceRequest] = set()
        """Requests to steps that have not had their final response."""
        self.waiting: dict[int, set[StepCall]] = {}
        """Calls that wait for others of their step to end (``max_inflight_requests``), by step."""
        self.is_blocked = False
        """Whether too many responses of a step wait for tensors from elsewhere."""
        self.valve: asyncio.TimerHandle | None = None
        """Lets producers that are held go on after a while."""
        self.is_driven = False
        """Whether a thread has it: then nobody else touches its steps."""
        self.goes_by_loop = False
        """Whether its next step is made by the loop in any case."""
        self.current: InferenceRequest | None = None
        """The step's request that the thread runs at this moment."""
        self.stop_error: BiremeError | None = None
        """Why the thread should make no further step."""
        self.is_called = False
        """Whether the caller waits for the response on a thread of its own."""
        self.done: threading.Event | None = None
        """Set when ``response`` is there, for a caller that does no more itself."""
        self.response: InferenceResponse | None = None
        self.is_answered = False
        """Whether the final response has been given."""
        self.is_closed = False
        self.input_ns = self.infer_ns = self.output_ns = 0
        """The sums over the steps."""
        super().__init__(
            plan,
            request.inputs,
            outputs=request.outputs,
            batch_size=request.batch_size,
            sequence=SequenceFields(request.sequence_id, request.sequence_start, request.sequence_end),
        )

    def add_times(self, execution: Execution | None) -> None:
        """Add what the execution of a step's request took."""
        if execution is None or not execution.compute_start_ns:
            return
        start_ns = execution.compute_start_ns
        if not execution.compute_end_ns:  # the answer came before the execution has ended
            self.infer_ns += _now_ns() - start_ns
            return
        self.input_ns += execution.compute_input_end_ns - start_ns
        self.infer_ns += execution.compute_output_start_ns - execution.compute_input_end_ns
        self.output_ns += execution.compute_end_ns - execution.compute_output_start_ns

    @property
    def num_waiting(self) -> int:
        """How many calls wait for others of their step."""
        return sum(map(len, self.waiting.values()))

    @property
    def has_one_call(self) -> bool:
        """Whether exactly one step is to be made, and nothing else is going on."""
        return self.num_in_flight == 1 and len(self.calls) == 1 and not self.answers

    def set_times(self) -> None:
        """Let the execution show what the steps took, one after the other. Source: Triton's ``infer_stats.cc``."""
        execution = self.execution
        execution.compute_input_end_ns = execution.compute_start_ns + self.input_ns
        execution.compute_output_start_ns = execution.compute_input_end_ns + self.infer_ns
        execution.compute_end_ns = execution.compute_output_start_ns + self.output_ns

    def producers(self) -> list[InferenceRequest]:
        """Return the open requests to decoupled steps."""
        return [request for request in self.open if request.context.step.is_decoupled]
