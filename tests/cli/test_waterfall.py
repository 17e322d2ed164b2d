"""The picture of a request: a tree of steps, their numbers, and bars to scale in any width."""

from __future__ import annotations

import pytest

from bireme.cli.steps import read_step
from bireme.cli.symbols import ASCII, UNICODE, Clock, Symbols, symbols_for
from bireme.cli.waterfall import Waterfall
from trace_records import record

PIPELINE = record(
    "pipeline",
    *(0, 0, 160, 160, 1900, 1900, 2000),
    calls=[
        record("find", 300, 300, 400, 500, 900, 1000, 1000),
        record("read", 1000, 1000, 1400, 1400, 1800, 1800, 1800),
    ],
)


def draw(root: dict[str, object], width: int, symbols: Symbols = UNICODE, **settings: bool) -> list[str]:
    step = read_step(root)
    waterfall = Waterfall(step, Clock(step.end - step.start, symbols), symbols, **settings)
    return [line.plain for line in waterfall.draw(width)]


def test_a_line_for_each_step():
    assert draw(PIPELINE, 72) == [
        "step      start  queue  in+out  compute  total  0                2.00 ms",
        "pipeline   0.00   0.16    0.00     0.24   2.00  ░░██──────────────────█·",
        "├─ find    0.30   0.10    0.20     0.40   0.70      ░▒█████▓",
        "└─ read    1.00   0.40    0.00     0.40   0.80              ░░░░░█████",
        "",
        "░░ queue  ▒▒ inputs  ██ compute  ▓▓ outputs  ── waits for calls  ·· between",
    ]


def test_a_narrow_terminal_keeps_the_bars():
    assert draw(PIPELINE, 48, ASCII) == [
        "step      start  total  0                2.00 ms",
        "pipeline   0.00   2.00  ..##------------------#:",
        "|- find    0.30   0.70      .<#####>",
        "`- read    1.00   0.80              .....#####",
        "",
        ".. queue  << inputs  ## compute  >> outputs  -- waits for calls  :: between",
    ]


@pytest.mark.parametrize("width", [1, 10, 30, 200, 1000])
def test_any_width_will_do(width):
    lines = draw(PIPELINE, width)
    assert 6 == len(lines)
    assert max(map(len, lines[:4])) <= max(width, 30, 8 + 44 + 122)


def test_trees_have_branches():
    leaf = record("leaf", 1, 1, 1, 1, 2, 2, 2)
    root = record(
        "a", 0, 0, 0, 0, 9, 9, 9, calls=[record("b", 0, 0, 0, 0, 3, 3, 3, calls=[leaf, leaf]), leaf]
    )

    assert [line.split("leaf")[0] for line in draw(root, 100)[3:6]] == ["│  ├─ ", "│  └─ ", "└─ "]


def test_many_equal_calls_in_a_row_share_a_line():
    calls = [record("token", at, at, at, at, at + 5, at + 5, at + 10) for at in range(0, 100, 10)]
    root = record(
        "decode", 0, 0, 0, 0, 100, 100, 100, calls=[*calls, record("end", 100, 100, 100, 100, 100, 100, 100)]
    )

    lines = draw(root, 100)
    assert 3 + 3 == len(lines)
    assert lines[2].startswith("├─ token ×10      0      0       0       50    100")

    assert 12 + 3 == len(draw(root, 100, shows_all=True))


def test_a_failed_call_keeps_its_line_and_says_why():
    calls = [record("token", at, at, at, at, at + 5, at + 5, at + 10) for at in range(0, 100, 10)]
    calls[4]["error"] = "no more\nTraceback"
    lines = draw(record("decode", 0, 0, 0, 0, 100, 100, 100, calls=calls), 100)

    assert [line.split("  ")[0] for line in lines[2:12]].count("├─ token") == 9
    assert "│     failed: no more" in lines


def test_notes():
    calls = [
        record("many", 0, 0, 0, 0, 5, 5, 5, responses=3, first_response=2),
        record("late", 5, 5, 6),
    ]
    lines = draw(record("m", 0, 0, 0, 0, 9, 9, 9, calls=calls, dropped_calls=2), 100)

    assert "│  and 2 more calls, for which the trace has no room" in lines
    assert "│     3 responses, the first after 2 µs" in lines
    assert "      not answered yet when the whole request was" in lines


def test_batches_have_a_column_of_their_own():
    calls = [
        record("all", 0, 0, 0, 0, 5, 5, 5, rows=8, batch_size=8),
        record("some", 0, 0, 0, 0, 5, 5, 5, rows=3, batch_size=8),
        {"model": "refused", "request_start": 5, "request_end": 6},
        *(record("token", 6, 6, 6, 6, 7, 7, 7, rows=2, batch_size=4) for _ in range(9)),
    ]
    lines = draw(record("m", 0, 0, 0, 0, 9, 9, 9, calls=calls), 100)

    assert ["rows", "1", "8", "3 of 8", "1", "18"] == [line[13:20].strip() for line in lines[:6]]


def test_a_step_too_short_for_a_cell_has_one():
    root = record(
        "m", 0, 0, 0, 0, 9999, 9999, 9999, calls=[record("a", 5000, 5000, 5000, 5000, 5001, 5001, 5001)]
    )
    assert draw(root, 100)[2].rstrip().endswith("█")


def test_a_long_name_leaves_room():
    assert draw(record("m" * 200, 0, 0, 0, 0, 1, 1, 1), 100)[1].startswith("m" * 35 + "…  ")


@pytest.mark.parametrize(
    ("longest", "time", "written"),
    [
        (1999, 1234, "1,234 µs"),
        (2000, 1234, "1.23 ms"),
        (999_999, 1234, "1.23 ms"),
        (1_000_000, 1_234_500, "1,234 ms"),
        (10_000_000, 1_234_500, "1.23 s"),
    ],
)
def test_all_times_have_the_unit_of_the_longest(longest, time, written):
    assert written == Clock(longest, UNICODE).with_unit(time)


@pytest.mark.parametrize(
    ("encoding", "symbols"), [("utf-8", UNICODE), ("UTF8", UNICODE), ("ascii", ASCII), ("latin-1", ASCII)]
)
def test_symbols_are_such_that_the_terminal_has_them(encoding, symbols):
    assert symbols is symbols_for(encoding)
    for each in (symbols.branch, symbols.ellipsis, symbols.micro, *symbols.phases.values()):
        each.encode(encoding)
