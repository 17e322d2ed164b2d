"""Tables of a run, for the terminal and for the page."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from benchmarks.orchestration.results import LABELS, SIZES, WAYS, Results, Row
from benchmarks.tables import print_rows, ratio

SERVERS = ("Bireme", "Triton")
LINEAR = 0.15
"""How far the middle length may be from the line through the others and still be called linear."""


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
    """Return all tables of a run; those of what was not measured have no rows."""
    return [
        goals(results),
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


# --- goals ---------------------------------------------------------------------------------------------------------


def goals(results: Results) -> Report:
    """The figures that the benchmark is there for, each with its goal."""
    rows = [
        *_in_process(results),
        *_against_triton(results),
        *_bls_against_ensemble(results),
        *_gateway_against_bls(results),
        *_cascade_ratios(results),
        *_linearity(results),
    ]
    return Report("goals", "goals", ["", "figure", "range", "goal", "met"], rows)


def _met(*, is_met: bool) -> str:
    return "yes" if is_met else "no"


def _in_process(results: Results) -> list[list[str]]:
    alone = results.find("alone_thread", "Bireme", 1, SIZES["1 KB"])
    lines = []
    for steps in results.values("steps"):
        chain = results.find("ensemble_thread", "Bireme", steps, SIZES["1 KB"])
        if alone and chain:
            pairs = zip(chain.each("server_us"), alone.each("server_us"), strict=True)
            added = [(many - one) / (steps - 1) for many, one in pairs]
            middle = statistics.median(added)
            is_first = steps == min(results.values("steps"))
            lines.append(
                [
                    f"ensemble of {steps} in-process steps, 1 KB: added for each step, at the server",
                    f"{middle:.1f} µs",
                    f"{min(added):.1f} to {max(added):.1f}",
                    "≤ 20 µs" if is_first else "",
                    _met(is_met=middle <= 20) if is_first else "",
                ]
            )
    return lines


def _ratio_row(label: str, mine: Row, other: Row, goal: float | None, goal_text: str = "") -> list[str]:
    middle, spread = ratio(mine.each("mean_us"), other.each("mean_us"))
    values = f"{middle:.2f} ({ms(mine.median('mean_us'))} / {ms(other.median('mean_us'))} ms)"
    return [
        label,
        values,
        spread,
        goal_text or (f"≤ {goal}" if goal else "reported"),
        _met(is_met=middle <= goal) if goal else "",
    ]


def _against_triton(results: Results) -> list[list[str]]:
    lines = []
    steps = min(results.values("steps"), default=0)
    for nbytes in results.values("nbytes"):
        mine, theirs = (results.find("ensemble", server, steps, nbytes) for server in SERVERS)
        if mine and theirs:
            label = f"ensemble of {steps} processes, {LABELS[nbytes]}, against Triton's, end to end"
            lines.append(_ratio_row(label, mine, theirs, 0.35))
    return lines


def _bls_against_ensemble(results: Results) -> list[list[str]]:
    lines = []
    for suffix, where in (("", "processes"), ("_thread", "threads")):
        for nbytes in results.values("nbytes"):
            for steps in results.values("steps"):
                mine = results.find(f"bls{suffix}", "Bireme", steps, nbytes)
                other = results.find(f"ensemble{suffix}", "Bireme", steps, nbytes)
                if mine and other:
                    label = f"BLS against ensemble, {where}, {steps} steps, {LABELS[nbytes]}"
                    lines.append(_ratio_row(label, mine, other, 1.5))
    return lines


def _gateway_against_bls(results: Results) -> list[list[str]]:
    lines = []
    for way in ("gateway_grpc", "gateway_http"):
        for nbytes in results.values("nbytes"):
            for steps in results.values("steps"):
                mine = results.find(way, "Bireme", steps, nbytes)
                other = results.find("bls", "Bireme", steps, nbytes)
                if mine and other:
                    label = f"{WAYS[way].label}, against BLS, {steps} steps, {LABELS[nbytes]}"
                    line = _ratio_row(label, mine, other, None, "> 1")
                    line[-1] = _met(is_met=float(line[1].split()[0]) > 1)
                    lines.append(line)
    return lines


def _cascade_ratios(results: Results) -> list[list[str]]:
    lines = []
    for cascade in ("ocr", "voice"):
        for way in ("hybrid", "bls"):
            for clients in sorted({row.clients for row in results.rows if row.cascade == cascade}):
                mine = results.find(way, "Bireme", 0, 0, clients, cascade)
                other = results.find("gateway_grpc", "Bireme", 0, 0, clients, cascade)
                if mine and other:
                    label = f"{cascade}, {WAYS[way].label} against the gateway, {clients} client{'s' * (clients > 1)}"
                    lines.append(_ratio_row(label, mine, other, None))
    return lines


def _linearity(results: Results) -> list[list[str]]:
    lines = []
    for way in ("ensemble", "ensemble_thread"):
        for nbytes in results.values("nbytes"):
            found = [results.find(way, "Bireme", steps, nbytes) for steps in results.values("steps")]
            rows = [row for row in found if row]
            if len(rows) < 3:
                continue
            first, *middle, last = rows
            slope = (last.median("mean_us") - first.median("mean_us")) / (last.steps - first.steps)
            off = max(
                abs(row.median("mean_us") / (first.median("mean_us") + slope * (row.steps - first.steps)) - 1)
                for row in middle
            )
            lines.append(
                [
                    f"{WAYS[way].label}, {first.steps} to {last.steps} steps, {LABELS[nbytes]}: a step more",
                    f"{ms(slope)} ms",
                    f"off the line by {off:.0%}",
                    f"linear (≤ {LINEAR:.0%})",
                    _met(is_met=off <= LINEAR),
                ]
            )
    return lines
