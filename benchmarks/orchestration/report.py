"""Tables of a run, for the terminal and for the page."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from benchmarks.orchestration.results import LABELS, WAYS, Results, Row
from benchmarks.tables import print_rows

SERVERS = ("Bireme", "Triton")


@dataclass(frozen=True, slots=True)
class Report:
    """One table."""

    name: str
    """Of the gap in the page."""
    title: str
    header: list[str]
    rows: list[list[str]]
    text_columns: int = 1
    """So many columns, from the left, are text."""

    def show(self) -> None:
        """Print it."""
        if self.rows:
            print_rows(self.title, self.header, self.rows)

    def markdown(self) -> str:
        """Return it as a table of the page."""
        numbers = len(self.header) - self.text_columns
        lines = [self.header, ["---"] * self.text_columns + ["---:"] * numbers, *self.rows]
        return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def ms(us: float) -> str:
    """Return microseconds as milliseconds, with three digits that count."""
    value = us / 1e3
    size = abs(value)
    digits = 0 if size >= 100 else 1 if size >= 10 else 2 if size >= 1 else 3
    return f"{value:,.{digits}f}"


def reports(results: Results) -> list[Report]:
    """Return the tables of a run but for `goals.goals`; those of what was not measured have no rows."""
    return [
        latency(results),
        lengths(results),
        throughput(results),
        cascades(results),
        *(breakdown(results, name) for name in ("ocr", "voice")),
    ]


def chain_ways(results: Results) -> list[str]:
    """Return the ways that chain, in the order of `WAYS`."""
    measured = {row.way for row in results.chains() if row.steps > 1}
    return [way for way in WAYS if way in measured]


def latency(results: Results) -> Report:
    """Mean, median, 99th percentile and overhead of the shortest chain with one client, both servers side by side."""
    rows = []
    steps = min(results.values("steps"), default=0)
    for nbytes in results.values("nbytes"):
        for way in chain_ways(results):
            found = [results.find(way, server, steps, nbytes) for server in SERVERS]
            if any(found):
                rows.append(
                    [LABELS[nbytes], WAYS[way].label, *(cell for row in found for cell in _latency(row))]
                )
    header = ["payload", "way"]
    header += [f"{server} {what}" for server in SERVERS for what in ("mean", "p50", "p99", "overhead")]
    return Report("latency", f"{steps} steps, 1 client, ms", header, rows, text_columns=2)


def _latency(row: Row | None) -> list[str]:
    if row is None:
        return [""] * 4
    return [*(ms(row.median(name)) for name in ("mean_us", "p50_us", "p99_us")), ms(row.overhead_us)]


def lengths(results: Results) -> Report:
    """Mean latency by length with one client, and what a further step costs."""
    all_steps = results.values("steps")
    rows = []
    for nbytes in results.values("nbytes"):
        for way in chain_ways(results):
            cells = []
            for server in SERVERS:
                found = [results.find(way, server, steps, nbytes) for steps in all_steps]
                cells += [ms(row.median("mean_us")) if row else "" for row in found]
                cells.append(ms(slope_us([row for row in found if row])) if all(found) else "")
            if len([cell for cell in cells if cell]) > len(SERVERS):
                rows.append([LABELS[nbytes], WAYS[way].label, *cells])
    header = ["payload", "way"]
    header += [f"{server} {what}" for server in SERVERS for what in (*all_steps, "a step")]
    return Report("lengths", "mean ms by number of steps, 1 client", header, rows, text_columns=2)


def slope_us(rows: Sequence[Row]) -> float:
    """Return what a step costs: the slope of the line through the mean latencies."""
    if len(rows) < 2:
        return 0.0
    return float(np.polyfit([row.steps for row in rows], [row.median("mean_us") for row in rows], 1)[0])


def throughput(results: Results) -> Report:
    """Requests a second and p99 with the most clients, for the shortest and the longest chain."""
    clients = max(results.values("clients"), default=0)
    all_steps = results.values("steps")
    ends = sorted({all_steps[0], all_steps[-1]}) if all_steps else []
    rows = []
    for nbytes in results.values("nbytes"):
        for way in chain_ways(results):
            found = [
                results.find(way, server, steps, nbytes, clients) for server in SERVERS for steps in ends
            ]
            if any(found):
                cells = [
                    cell
                    for row in found
                    for cell in (
                        (_rate(row.median("calls_per_s")), ms(row.median("p99_us"))) if row else ("", "")
                    )
                ]
                rows.append([LABELS[nbytes], WAYS[way].label, *cells])
    header = ["payload", "way"]
    for server in SERVERS:
        for steps in ends:
            header += [f"{server} {steps} steps, requests/s", "p99 ms"]
    return Report("throughput", f"{clients} clients", header, rows, text_columns=2)


def _rate(per_s: float) -> str:
    return f"{per_s:,.0f}" if per_s >= 10 else f"{per_s:.1f}"


def cascades(results: Results) -> Report:
    """The cascades end to end, and what their trained models took, which may have run side by side."""
    rows = [
        [
            {"ocr": "OCR", "voice": "voice assistant"}[row.cascade],
            f"{row.clients}",
            WAYS[row.way].label,
            *(ms(row.median(name)) for name in ("mean_us", "p50_us", "p99_us")),
            ms(row.median("compute_us")),
            _rate(row.median("calls_per_s")),
        ]
        for row in results.rows
        if row.cascade
    ]
    header = ["cascade", "clients", "way", "mean", "p50", "p99", "trained models", "requests/s"]
    return Report("cascades", "the cascades, Bireme, ms", header, rows, text_columns=3)


def breakdown(results: Results, cascade: str) -> Report:
    """What each model of a cascade took of one request, for each way, with one client."""
    rows = [row for row in results.rows if row.cascade == cascade and row.clients == 1]
    names = sorted({name for row in rows for sample in row.rounds for name in sample.models})
    lines = []
    for name in names:
        cells = [_spent(row, name) for row in rows]
        lines.append([name, *(cell for three in cells for cell in three)])
    order = {name: position for position, name in enumerate(_by_share(rows, names))}
    lines.sort(key=lambda line: order[line[0]])
    header = ["model"]
    for row in rows:
        header += [f"{WAYS[row.way].label}: calls", "queue", "infer"]
    return Report(f"{cascade}-steps", f"{cascade}: where a request's time went, ms", header, lines)


def _spent(row: Row, model: str) -> list[str]:
    found = [sample.models[model] for sample in row.rounds if model in sample.models]
    if not found:
        return [""] * 3
    calls, queue_us, infer_us = (
        statistics.median(each[name] for each in found) for name in ("calls", "queue_us", "infer_us")
    )
    return [f"{calls:.1f}".removesuffix(".0"), ms(queue_us), ms(infer_us)]


def _by_share(rows: Sequence[Row], names: Sequence[str]) -> list[str]:
    """Return the models, those that took longest first."""

    def share(name: str) -> float:
        return max(
            (
                sample.models[name]["infer_us"]
                for row in rows
                for sample in row.rounds
                if name in sample.models
            ),
            default=0.0,
        )

    return sorted(names, key=share, reverse=True)
