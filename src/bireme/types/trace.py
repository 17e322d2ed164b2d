"""Span: where the time of one request to one model went, and which calls to other models were made for it."""

from __future__ import annotations

from typing import Any


class Sample:
    """A span's place in a trace that is written to a file or exported, as Triton's trace extension has sampled it."""

    __slots__ = ("link", "number", "parent_number", "span_id", "tensors", "trace")

    def __init__(self, trace: Any, number: int, parent_number: int, span_id: int, link: str) -> None:
        self.trace = trace
        """The whole trace: `bireme.telemetry.tracing.SampledTrace`. Its spans share it."""
        self.number = number
        """Triton's id of the span; no other of this process has it."""
        self.parent_number = parent_number
        """0: it is the first."""
        self.span_id = span_id
        """OpenTelemetry's id of the span."""
        self.link = link
        """The ``trace_context`` of its request, and of the calls that it passes its trace to."""
        self.tensors: list[tuple[int, str, Any]] = []
        """When each was seen, as what, and a copy of it."""


class Span:
    """The record of one traced request of a model. All times are ``time.monotonic_ns``; 0: it did not come to that.

    Requests that share a batch share the calls that its code makes: such a span is a child of several. Threads that call
    directly append to ``children`` while the loop reads it; each does so in one step.
    """

    __slots__ = (
        "batch_size",
        "budget",
        "children",
        "close_reason",
        "compute_end_ns",
        "compute_input_end_ns",
        "compute_output_start_ns",
        "compute_start_ns",
        "depth",
        "end_ns",
        "error",
        "first_response_ns",
        "id",
        "is_decoupled",
        "is_ensemble",
        "is_wanted",
        "model",
        "num_dropped",
        "num_responses",
        "queue_ns",
        "rows",
        "sample",
        "start_ns",
        "version",
    )

    def __init__(
        self, model: str, version: int, request_id: str, start_ns: int, depth: int, budget: list[int]
    ) -> None:
        """``budget`` holds one number: how many spans the trace may still get; all of its spans share it."""
        self.model = model
        self.version = version
        """-1: the latest, as long as nobody has said which that is."""
        self.id = request_id
        self.start_ns = start_ns
        self.budget = budget
        self.depth = depth
        """How many calls lie above it; 0: the request came from outside, and its answer tells the trace."""
        self.is_wanted = False
        """Whether the client asked for the record, so that every call belongs to it."""
        self.sample: Sample | None = None
        """None: it belongs to no trace but the client's."""
        self.is_decoupled = False
        self.is_ensemble = False
        self.children: list[Span] = []
        self.num_dropped = 0
        """Calls of this request that are not among ``children``, as the trace was full."""
        self.queue_ns = 0
        self.compute_start_ns = 0
        self.compute_input_end_ns = 0
        self.compute_output_start_ns = 0
        self.compute_end_ns = 0
        self.end_ns = 0
        self.rows = 1
        """What the request added to its batch."""
        self.batch_size = 0
        """Rows of the batch that it ran in; 0: it did not run."""
        self.close_reason = ""
        """Why that batch was closed."""
        self.num_responses = 0
        self.first_response_ns = 0
        self.error: str | None = None

    def set_model(
        self, name: str, version: int, *, is_decoupled: bool = False, is_ensemble: bool = False
    ) -> None:
        """Say which model answered."""
        self.model = name
        self.version = version
        self.is_decoupled = is_decoupled
        self.is_ensemble = is_ensemble

    def __repr__(self) -> str:
        return f"Span({self.model!r} v{self.version}, {len(self.children)} calls)"
