"""What is read from a trace: the phases of each step, without gaps, and where a caller waits for what it called."""

from __future__ import annotations

from itertools import pairwise

import pytest

from bireme.cli.steps import Phase, Step, read_step
from trace_records import record


def phases(step: Step) -> list[tuple[str, float, float]]:
    return [(segment.phase.name, segment.start, segment.end) for segment in step.segments]


def test_every_moment_has_its_phase():
    step = read_step(record("m", 0, 1, 3, 6, 16, 18, 20))

    assert phases(step) == [
        ("BETWEEN", 0, 1),
        ("QUEUE", 1, 3),
        ("INPUT", 3, 6),
        ("COMPUTE", 6, 16),
        ("OUTPUT", 16, 18),
        ("BETWEEN", 18, 20),
    ]
    assert (2, 5) == (step.time_in(Phase.QUEUE), step.time_in(Phase.INPUT, Phase.OUTPUT))


def test_a_caller_waits_for_its_calls():
    """They may overlap, come out of order, and end after their caller's code."""
    calls = [
        record("b", 12, 12, 12, 12, 15, 15, 15),
        record("a", 5, 5, 5, 5, 13, 13, 13),
        record("c", 18, 19),
    ]
    step = read_step(record("m", 0, 0, 2, 2, 20, 20, 22, calls=calls))

    assert ["a", "b", "c"] == [call.model for call in step.calls]
    assert phases(step) == [
        ("QUEUE", 0, 2),
        ("COMPUTE", 2, 5),
        ("CALLS", 5, 13),
        ("CALLS", 13, 15),
        ("COMPUTE", 15, 18),
        ("CALLS", 18, 20),
        ("BETWEEN", 20, 22),
    ]
    assert step.calls[2].is_open
    assert 22 == step.calls[2].end


def test_an_ensemble_does_not_compute():
    calls = [record("a", 5, 5, 5, 5, 13, 13, 13)]
    step = read_step({**record("e", 0, 1, 2), "request_end": 20, "ensemble": True, "calls": calls})

    assert phases(step) == [
        ("BETWEEN", 0, 1),
        ("QUEUE", 1, 2),
        ("BETWEEN", 2, 5),
        ("CALLS", 5, 13),
        ("BETWEEN", 13, 20),
    ]


@pytest.mark.parametrize(
    ("times", "expected"),
    [
        ({"request_end": 4}, [("BETWEEN", 0, 4)]),  # refused
        ({"queue_start": 1, "request_end": 4}, [("BETWEEN", 0, 1), ("QUEUE", 1, 4)]),  # waited in vain
        ({}, []),
    ],
)
def test_a_request_may_not_go_the_whole_way(times, expected):
    assert expected == phases(read_step({"model": "m", "request_start": 0, **times}))


def test_times_that_contradict_each_other_give_no_negative_ones():
    """A process's clock may be read a moment before the server's."""
    step = read_step(record("m", 0, 1, 3, 2, 30, 10, 20))

    assert all(before.end == after.start for before, after in pairwise(step.segments))
    assert (0, 20) == (step.segments[0].start, step.segments[-1].end)
    assert all(segment.end > segment.start for segment in step.segments)
