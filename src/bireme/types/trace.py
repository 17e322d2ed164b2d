"""Span: where the time of one request to one model went, and which calls to other models were made for it."""

from __future__ import annotations


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
        "model",
        "num_dropped",
        "num_responses",
        "queue_ns",
        "rows",
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
