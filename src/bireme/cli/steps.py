"""A trace as steps: what each did from when to when. Pure.

Times are microseconds since the traced request came.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple


class Phase(Enum):
    """What a request is doing."""

    BETWEEN = "between the models"  # being checked, being answered; an ensemble's own work
    QUEUE = "waiting in queues"
    INPUT = "taking inputs"
    COMPUTE = "computing"
    OUTPUT = "giving outputs"
    CALLS = "waiting for its calls"


class Segment(NamedTuple):
    """One phase of one step."""

    phase: Phase
    start: float
    end: float


@dataclass(frozen=True, slots=True)
class Step:
    """One request of one model."""

    model: str
    start: float
    end: float
    segments: tuple[Segment, ...]
    """In order, without gaps, from start to end."""
    calls: tuple[Step, ...] = ()
    """In the order in which they began."""
    rows: int = 1
    """What it added to its batch."""
    batch_size: int = 0
    """Rows of the batch that it ran in; 0: it did not run."""
    num_dropped: int = 0
    """Calls that the trace had no room for."""
    num_responses: int | None = None
    """None: its model answers once."""
    first_response: float = 0.0
    error: str | None = None
    is_open: bool = False
    """It had no answer yet when the traced request was answered; it ends there."""

    def time_in(self, *phases: Phase) -> float:
        """Return how long it was in any of ``phases``."""
        return sum(each.end - each.start for each in self.segments if each.phase in phases)

    def walk(self) -> Iterator[Step]:
        """Yield it and all that it called, callers first."""
        yield self
        for call in self.calls:
            yield from call.walk()


def read_step(record: Mapping[str, Any], until: float | None = None) -> Step:
    """Return what the JSON object of a trace tells. ``until`` is when the request at its top was answered.

    What an ensemble does itself is no computing but the way between its steps.
    """
    start = float(record["request_start"])
    end = float(record.get("request_end", start if until is None else until))
    until = end if until is None else until
    calls = tuple(
        sorted(
            (read_step(each, until) for each in record.get("calls", ())),
            key=lambda step: (step.start, step.end),
        )
    )
    own = Phase.BETWEEN if record.get("ensemble") else Phase.COMPUTE
    segments = list(_segments(record, start, end, own))
    if calls:
        segments = [part for segment in segments for part in _without_calls(segment, own, calls)]
    return Step(
        record["model"],
        start,
        end,
        tuple(segment for segment in segments if segment.end > segment.start),
        calls,
        rows=record.get("rows", 1),
        batch_size=record.get("batch_size", 0),
        num_dropped=record.get("dropped_calls", 0),
        num_responses=record.get("responses"),
        first_response=record.get("first_response", 0.0),
        error=record.get("error"),
        is_open="request_end" not in record,
    )


def _segments(record: Mapping[str, Any], start: float, end: float, own: Phase) -> Iterator[Segment]:
    at = start
    for phase, key in (
        (Phase.BETWEEN, "queue_start"),
        (Phase.QUEUE, "compute_start"),
        (Phase.INPUT if own is Phase.COMPUTE else own, "compute_input_end"),
        (own, "compute_output_start"),
        (Phase.OUTPUT if own is Phase.COMPUTE else own, "compute_end"),
    ):
        # Times of another process are as exact as the clocks of the cores: none may lie before the last.
        to = min(max(float(record.get(key, end)), at), end)
        yield Segment(phase, at, to)
        at = to
        if key not in record:
            return
    yield Segment(Phase.BETWEEN, at, end)


def _without_calls(segment: Segment, own: Phase, calls: Sequence[Step]) -> Iterator[Segment]:
    """Split a step's own work where it waits for its calls, which are in order."""
    if segment.phase is not own:
        yield segment
        return
    at, end = segment.start, segment.end
    for call in calls:
        if call.end <= at or call.start >= end:
            continue
        if call.start > at:
            yield Segment(own, at, call.start)
            at = call.start
        yield Segment(Phase.CALLS, at, min(call.end, end))
        at = min(call.end, end)
    yield Segment(own, at, end)
