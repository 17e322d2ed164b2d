"""Where the time of a request went: each moment counts once, for what matters most in it."""

from __future__ import annotations

import pytest
from rich.console import Console

from bireme.cli.steps import read_step
from bireme.cli.symbols import ASCII, Clock
from bireme.cli.time_shares import find_shares, show_shares
from trace_records import record


def test_the_parts_make_up_the_total():
    calls = [record("a", 10, 12, 15, 20, 50, 55, 60), record("b", 60, 60, 60, 60, 80, 80, 80)]
    shares = find_shares(read_step(record("m", 0, 1, 3, 5, 90, 95, 100, calls=calls)))

    assert {"a": 30, "b": 20, "m": 15} == shares.models  # "m" computes from 5 to 10 and from 80 to 90
    assert 2 + 5 + 5 + 5 == shares.transfer
    assert 2 + 3 == shares.queue
    assert 1 + 2 + 5 + 5 == shares.between
    assert 100 == shares.total == shares.in_models + shares.transfer + shares.queue + shares.between


def test_models_that_compute_at_once_share_the_moment():
    calls = [record("a", 0, 0, 0, 0, 30, 30, 30), record("b", 0, 0, 10, 10, 30, 30, 30)]
    shares = find_shares(
        read_step({**record("e", 0, 0, 0), "request_end": 30, "ensemble": True, "calls": calls})
    )

    assert {"a": 20, "b": 10} == shares.models
    assert 0 == shares.queue  # something computed meanwhile


def test_what_goes_on_after_the_answer_does_not_count():
    shares = find_shares(
        read_step(record("m", 0, 0, 0, 0, 10, 10, 10, calls=[record("a", 8, 8, 9, 9, 40, 40, 40)]))
    )

    assert {"m": 8, "a": 1} == shares.models
    assert 10 == shares.total


@pytest.mark.parametrize("end", [0, 1])
def test_a_request_that_took_no_time_has_no_shares(end):
    assert end == find_shares(read_step(record("m", 0, 0, 0, 0, 0, 0, end))).total


def test_the_table(capsys):
    calls = [record("a", 100, 100, 100, 100, 300, 300, 300), record("a", 300, 300, 300, 300, 898, 898, 900)]
    root = read_step(record("m", 0, 0, 0, 0, 1000, 1000, 1000, calls=calls))

    show_shares(Console(width=60), root, Clock(1000, ASCII), ASCII)

    assert capsys.readouterr().out.splitlines() == [
        "where the time went",
        "a x2                   798 us   80 %  ##################",
        "m, its own code        200 us   20 %  ####",
        "inputs and outputs       0 us    0 %",
        "waiting in queues        0 us    0 %",
        "between the models       2 us   <1 %",
        "",
        "in the models 998 us (100 %), around them 2 us (<1 %)",
    ]
