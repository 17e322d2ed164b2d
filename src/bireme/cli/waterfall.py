"""Draws the steps of one request as a waterfall: a tree of one line a step, its numbers, and a bar to scale."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from math import ceil, floor

from rich.console import Console
from rich.text import Text

from bireme.cli.steps import Phase, Step
from bireme.cli.symbols import STYLES, Clock, Symbols

_MIN_BAR = 20
_MAX_BAR = 120
_MAX_NAME = 36
_FEW_CALLS = 8
"""So many equal calls in a row have lines of their own; more share one."""
_DISPENSABLE = ("in+out", "queue", "compute", "rows", "start")
"""What a narrow terminal does not show, in the order in which it goes: the bar shows all of it."""
_MEANINGS = {
    Phase.QUEUE: "queue",
    Phase.INPUT: "inputs",
    Phase.COMPUTE: "compute",
    Phase.OUTPUT: "outputs",
    Phase.CALLS: "waits for calls",
    Phase.BETWEEN: "between",
}


@dataclass(frozen=True, slots=True)
class Row:
    """One line: a step, or several equal ones in a row."""

    lead: str
    """The branches of the tree in front of the name."""
    below: str
    """What lines that belong to it begin with."""
    steps: tuple[Step, ...]

    def time_in(self, *phases: Phase) -> float:
        """Return how long its steps were in ``phases``, all together."""
        return sum(step.time_in(*phases) for step in self.steps)

    @property
    def total(self) -> float:
        """How long its steps took, all together."""
        return sum(step.end - step.start for step in self.steps)


class Waterfall:
    """The picture of one request."""

    def __init__(self, root: Step, clock: Clock, symbols: Symbols, *, shows_all: bool = False) -> None:
        """Equal calls in a row share a line, unless ``shows_all``."""
        self._root = root
        self._clock = clock
        self._symbols = symbols
        self._rows = list(_rows(root, symbols, shows_all=shows_all))
        self._shown: set[Phase] = set()
        """The phases that bars show, for the legend."""

    def show(self, console: Console) -> None:
        """Print it, as wide as the console is."""
        for line in self.draw(console.width):
            console.print(line, no_wrap=True, overflow="crop")

    def draw(self, width: int) -> Iterator[Text]:
        """Yield the lines."""
        names = ["step", *(self._name(row) for row in self._rows)]
        name_width = max(map(len, names))
        columns, bar_width = self._fit(width - name_width - 2)
        heading, *numbers = zip(*columns, strict=True)
        total = self._clock.with_unit(self._root.end - self._root.start)
        yield Text(f"{'step'.ljust(name_width)}{''.join(heading)}  0{total.rjust(bar_width - 1)}", "bold")
        for row, name, cells in zip(self._rows, names[1:], numbers, strict=True):
            line = Text.assemble((row.lead, STYLES[Phase.CALLS]))
            line.append(name[len(row.lead) :].ljust(name_width - len(row.lead)), "bold")
            line.append("".join(cells) + "  ")
            line.append_text(self._bar(row.steps, bar_width))
            yield line
            for note, style in self._notes(row):
                yield Text.assemble((row.below, STYLES[Phase.CALLS]), (note, style))
        yield Text()
        yield self._legend()

    def _name(self, row: Row) -> str:
        model, symbols = row.steps[0].model, self._symbols
        room = max(8, _MAX_NAME - len(row.lead))
        if len(model) > room:
            model = model[: room - len(symbols.ellipsis)] + symbols.ellipsis
        count = f" {symbols.times}{len(row.steps)}" if len(row.steps) > 1 else ""
        return f"{row.lead}{model}{count}"

    def _fit(self, width: int) -> tuple[list[list[str]], int]:
        """Return the columns that there is room for, each padded and with its heading, and the width of the bar."""
        rows, number = self._rows, self._clock.number
        times = {
            "start": [row.steps[0].start for row in rows],
            "queue": [row.time_in(Phase.QUEUE) for row in rows],
            "in+out": [row.time_in(Phase.INPUT, Phase.OUTPUT) for row in rows],
            "compute": [row.time_in(Phase.COMPUTE) for row in rows],
            "total": [row.total for row in rows],
        }
        columns = {heading: [heading, *map(number, column)] for heading, column in times.items()}
        if any(step.batch_size > 1 for row in rows for step in row.steps):
            columns = {"rows": ["rows", *map(_describe_rows, rows)], **columns}
        widths = {heading: max(map(len, column)) + 2 for heading, column in columns.items()}
        for heading in _DISPENSABLE:
            if width - sum(widths.values()) < _MIN_BAR:
                widths.pop(heading, None)
        padded = [[cell.rjust(widths[heading]) for cell in columns[heading]] for heading in widths]
        return padded, max(1, min(width - sum(widths.values()), _MAX_BAR))

    def _bar(self, steps: Sequence[Step], width: int) -> Text:
        bar = Text()
        for phase, cells in groupby(_cells(steps, self._root, width)):
            num_cells = len(list(cells))
            if phase is None:
                bar.append(" " * num_cells)
            else:
                self._shown.add(phase)
                bar.append(self._symbols.phases[phase] * num_cells, STYLES[phase])
        bar.rstrip()
        return bar

    def _notes(self, row: Row) -> Iterator[tuple[str, str]]:
        """Yield what else there is to say of a line, and in which style."""
        for step in row.steps:
            if step.num_responses is not None:
                first = self._clock.with_unit(step.first_response - step.start)
                plural = "s" * (step.num_responses != 1)
                yield f"{step.num_responses} response{plural}, the first after {first}", "dim"
            if step.error is not None:
                yield f"failed: {step.error.partition(chr(10))[0]}", "red"
            elif step.is_open:
                yield "not answered yet when the whole request was", "yellow"
            if step.num_dropped:
                yield f"and {step.num_dropped} more calls, for which the trace has no room", "yellow"

    def _legend(self) -> Text:
        parts = [
            Text.assemble((self._symbols.phases[phase] * 2, STYLES[phase]), (f" {meaning}", "dim"))
            for phase, meaning in _MEANINGS.items()
            if phase in self._shown
        ]
        return Text("  ").join(parts)


def _describe_rows(row: Row) -> str:
    """Return how many rows of a batch a line's requests are; of how many, where a single one shares its batch."""
    step, *others = row.steps
    if others or step.rows == step.batch_size or not step.batch_size:
        return str(sum(each.rows for each in row.steps))
    return f"{step.rows} of {step.batch_size}"


def _rows(step: Step, symbols: Symbols, *, shows_all: bool) -> Iterator[Row]:
    yield Row("", symbols.trunk if step.calls else "   ", (step,))
    yield from _rows_below(step, "", symbols, shows_all=shows_all)


def _rows_below(step: Step, trunk: str, symbols: Symbols, *, shows_all: bool) -> Iterator[Row]:
    groups = list(_group(step.calls, shows_all=shows_all))
    for index, group in enumerate(groups):
        is_last = index == len(groups) - 1
        lead = trunk + (symbols.last_branch if is_last else symbols.branch)
        below = trunk + ("   " if is_last else symbols.trunk)
        yield Row(lead, below + (symbols.trunk if group[0].calls else "   "), group)
        yield from _rows_below(group[0], below, symbols, shows_all=shows_all)


def _group(calls: Iterable[Step], *, shows_all: bool) -> Iterator[tuple[Step, ...]]:
    """Yield the calls in order, many equal ones in a row together, unless they have something to tell of their own."""
    run: list[Step] = []
    for call in calls:
        if run and run[0].model != call.model:
            yield from _split(run)
            run = []
        if shows_all or call.calls or call.error or call.is_open or call.num_dropped:
            yield from _split(run)
            run = []
            yield (call,)
        else:
            run.append(call)
    yield from _split(run)


def _split(run: list[Step]) -> Iterator[tuple[Step, ...]]:
    if len(run) > _FEW_CALLS:
        yield tuple(run)
    else:
        yield from ((step,) for step in run)


def _cells(steps: Sequence[Step], root: Step, width: int) -> list[Phase | None]:
    """Return what each of ``width`` cells shows: the phase that fills most of it, if the steps fill half of it.

    A step too short for that has the one cell that its middle lies in.
    """
    scale = width / ((root.end - root.start) or 1.0)
    filled: list[dict[Phase, float]] = [{} for _ in range(width)]
    for step in steps:
        for phase, start, end in step.segments:
            left, right = (start - root.start) * scale, min((end - root.start) * scale, width)
            for cell in range(floor(left), min(ceil(right), width)):
                part = min(right, cell + 1) - max(left, cell)
                filled[cell][phase] = filled[cell].get(phase, 0.0) + part
    middles = {int(((step.start + step.end) / 2 - root.start) * scale) for step in steps}
    return [
        max(parts, key=parts.__getitem__)
        if parts and (sum(parts.values()) >= 0.5 or cell in middles)
        else None
        for cell, parts in enumerate(filled)
    ]
