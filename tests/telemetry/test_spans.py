"""Spans of traced requests, as they are told."""

from bireme.telemetry.spans import MAX_SPANS, to_json
from bireme.types import Span


def count(told):
    return 1 + sum(map(count, told.get("calls", ())))


def test_calls_of_batches_are_not_told_more_often_than_a_trace_has_room_for():
    """Two requests of a batch share its calls, which share those of their batch, and so on: 2^30 ways through 60 spans."""
    budget = [MAX_SPANS]
    level = [Span("last", 1, "", 0, 0, budget)]
    for depth in range(30):
        above = [Span(f"m{depth}", 1, "", 0, 0, budget) for _ in range(2)]
        for span in above:
            span.children += level
        level = above
    told = to_json(level[0], 0)

    assert count(told) <= MAX_SPANS
    assert "dropped_calls" in str(told)
    assert told["calls"][0]["calls"]
