"""InferenceRequest, InferenceResponse and Execution: what travels between front end, engine and backends."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

from bireme.types.errors import BiremeError
from bireme.types.sequence import SequenceSlot
from bireme.types.tensor import Tensor
from bireme.types.trace import Span

Parameter = bool | int | float | str
Way = Literal["queue", "thread", "inline"]
"""The shortest way to a model for a call of another one: by its queue, as a function call on a thread of this process, or as
one on the loop's own thread."""
Respond = Callable[["InferenceRequest", "InferenceResponse"], None]


class Execution:
    """One run of an instance over one batch; its requests share it. All times are ``time.monotonic_ns``.

    ``close_reason`` says why the batch was closed (`bireme.scheduling.CloseReason`).
    """

    __slots__ = (
        "batch_size",
        "calls",
        "close_reason",
        "compute_end_ns",
        "compute_input_end_ns",
        "compute_output_start_ns",
        "compute_start_ns",
        "cpu_ns",
        "holder",
        "holding",
        "requests",
        "sequence_slots",
    )

    def __init__(self, requests: list[InferenceRequest], batch_size: int, close_reason: str) -> None:
        self.requests = requests
        self.batch_size = batch_size
        self.close_reason = close_reason
        self.compute_start_ns = 0
        self.compute_input_end_ns = 0
        self.compute_output_start_ns = 0
        self.compute_end_ns = 0
        self.cpu_ns = 0
        """CPU time that the instance's run took of the thread it ran on; 0: not measured."""
        self.calls: set[InferenceRequest] | None = None
        """Requests to other models that its code waits for; None: never any. The engine's."""
        self.holder: Any = None
        """The slot that it occupies; None: it does not run (any more). The engine's."""
        self.holding: Any = None
        """What it holds of the resources that are limited; None: nothing. The engine's."""
        self.sequence_slots: list[SequenceSlot | None] | None = None
        """Of a model with sequences: the place of each request's sequence, None for a null request (one that only fills the row of
        an empty slot; its outputs are discarded). None: the model has no sequences, or is being warmed up."""

    def __repr__(self) -> str:
        return f"Execution(requests={len(self.requests)}, rows={self.batch_size}, closed={self.close_reason})"


class InferenceRequest:
    """A request as the engine sees it, whatever protocol it came by.

    ``respond`` is called exactly once with a final response (before that, by decoupled models, with others), on the
    server's loop. The caller fills the first group of fields; the engine owns the second.
    """

    __slots__ = (
        "batch_key",
        "batch_size",
        "cancelled",
        "context",
        "deadline_ns",
        "execution",
        "failure",
        "held",
        "id",
        "inputs",
        "instance",
        "model_name",
        "model_version",
        "num_responses",
        "outputs",
        "owner",
        "parameters",
        "parent",
        "priority",
        "queue_ns",
        "respond",
        "sequence_end",
        "sequence_id",
        "sequence_start",
        "start_ns",
        "targets",
        "timeout_us",
        "trace",
        "trace_context",
    )

    def __init__(
        self,
        model_name: str,
        inputs: dict[str, Tensor],
        respond: Respond,
        *,
        model_version: int = -1,
        id: str = "",
        outputs: Sequence[str] | None = None,
        parameters: dict[str, Parameter] | None = None,
        priority: int = 0,
        timeout_us: int = 0,
        sequence_id: int | str = 0,
        sequence_start: bool = False,
        sequence_end: bool = False,
        context: Any = None,
    ) -> None:
        self.model_name = model_name
        self.model_version = model_version
        """-1: the highest READY version."""
        self.id = id
        self.inputs = inputs
        self.outputs = outputs
        """Names of the wanted outputs; None: all."""
        self.parameters = parameters
        """In the order received; None when there are none."""
        self.priority = priority
        self.timeout_us = timeout_us
        self.sequence_id = sequence_id
        self.sequence_start = sequence_start
        self.sequence_end = sequence_end
        self.respond = respond
        self.context = context
        """The caller's own; the engine never looks at it."""
        self.targets: dict[str, memoryview] | None = None
        """Writable memory for large outputs, by name. A backend that can puts an output there, if it fits; the array in
        the response then is a view of it. The caller looks, and copies what was not put there."""

        self.parent: Execution | None = None
        """The execution whose model asks (BLS); None: the request comes from outside."""
        self.trace_context: str | None = None
        """What links the calls that it leads to with it: its OpenTelemetry context as JSON, or the number of its span where
        traces are written to a file. None: the trace extension has not sampled it."""

        self.trace: Span | None = None
        """Where its time goes; None: nobody asked."""
        self.batch_size = 1
        """Rows this request adds to a batch."""
        self.batch_key: object = None
        """Requests share a batch only if their keys are equal."""
        self.cancelled = False
        self.deadline_ns = 0
        """When the caller wants the answer at the latest, of ``time.monotonic_ns``. 0: the model decides; negative: never."""
        self.owner: Any = None
        """The model that holds the request, from acceptance to the final response."""
        self.start_ns = 0
        self.queue_ns = 0
        self.execution: Execution | None = None
        self.instance: Any = None
        """The instance that takes whole requests and has this one; None: it waits, or its model takes tensors."""
        self.num_responses = 0
        """How many responses came that were not the final one."""
        self.held: InferenceResponse | None = None
        """The one response of a model that answers once, until it says that no more will come."""
        self.failure: BiremeError | None = None
        """The first error among the responses; for the statistics."""

    @property
    def id_prefix(self) -> str:
        """The prefix of error messages that come from validation, queueing or scheduling."""
        return f"[request id: {self.id or '<id_unknown>'}] "

    def __repr__(self) -> str:
        state = " cancelled" if self.cancelled else ""
        return f"InferenceRequest({self.model_name!r}, id={self.id!r}, rows={self.batch_size}{state})"


class InferenceResponse:
    """A response: outputs or an error. ``final`` marks the last one of its request.

    One that is ``flag_only`` is no response of the model at all, only that mark; it is always final. If it has parameters,
    they are the engine's, and the client is told.
    """

    __slots__ = ("error", "final", "flag_only", "id", "model_name", "model_version", "outputs", "parameters")

    def __init__(
        self,
        model_name: str,
        model_version: int,
        id: str = "",
        outputs: Sequence[Tensor] = (),
        *,
        parameters: dict[str, Parameter] | None = None,
        error: BiremeError | None = None,
        final: bool = True,
        flag_only: bool = False,
    ) -> None:
        self.model_name = model_name
        self.model_version = model_version
        self.id = id
        self.outputs = outputs
        self.parameters = parameters
        self.error = error
        self.final = final
        self.flag_only = flag_only

    def __repr__(self) -> str:
        result = repr(self.error) if self.error else f"outputs={list(self.outputs)}"
        return f"InferenceResponse({self.model_name!r} v{self.model_version}, {result})"
