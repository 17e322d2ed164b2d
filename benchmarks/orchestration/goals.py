"""The figures that the benchmark is there for, each with its goal, its range over the rounds, and whether it is met."""

from __future__ import annotations

import statistics

from benchmarks.orchestration.report import SERVERS, Report, ms
from benchmarks.orchestration.results import LABELS, SIZES, WAYS, Results, Row
from benchmarks.tables import ratio

LINEAR = 0.15
"""How far the middle length may be from the line through the others and still be called linear."""


def goals(results: Results) -> Report:
    """Return the table of all goals of which there are figures."""
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
    """Return what an ensemble adds to its models, for each step: its time at the server less theirs when asked alone."""
    lines = []
    for mode, where in (("inline", "on the loop"), ("thread", "in threads")):
        alone = results.find(f"alone_{mode}", "Bireme", 1, SIZES["1 KB"])
        for steps in results.values("steps"):
            chain = results.find(f"ensemble_{mode}", "Bireme", steps, SIZES["1 KB"])
            if alone is None or chain is None:
                continue
            pairs = zip(chain.each("server_us"), alone.each("server_us"), strict=True)
            added = [(many - steps * one) / steps for many, one in pairs]
            middle = statistics.median(added)
            has_goal = steps == min(results.values("steps")) and mode == "inline"
            lines.append(
                [
                    f"ensemble of {steps} steps {where}, 1 KB: added for each step, at the server",
                    f"{middle:.1f} µs",
                    f"{min(added):.1f} to {max(added):.1f}",
                    "≤ 20 µs" if has_goal else "",
                    _met(is_met=middle <= 20) if has_goal else "",
                ]
            )
    return lines


def _ratio_row(label: str, mine: Row, other: Row, goal: float | None) -> list[str]:
    middle, spread = ratio(mine.each("mean_us"), other.each("mean_us"))
    values = f"{middle:.2f} ({ms(mine.median('mean_us'))} / {ms(other.median('mean_us'))} ms)"
    return [
        label,
        values,
        spread,
        f"≤ {goal}" if goal else "reported",
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
    return [
        line
        for suffix, where in (("", "in processes"), ("_thread", "in threads"))
        for line in _all_lengths(
            results,
            f"bls{suffix}",
            f"ensemble{suffix}",
            f"BLS against ensemble, {where}",
            "each ≤ 1.5",
            (0, 1.5),
        )
    ]


def _gateway_against_bls(results: Results) -> list[list[str]]:
    return [
        line
        for way in ("gateway_grpc", "gateway_http")
        for line in _all_lengths(
            results, way, "bls", f"{WAYS[way].label}, against BLS", "each > 1", (1, float("inf"))
        )
    ]


def _all_lengths(
    results: Results, way: str, other_way: str, label: str, goal: str, within: tuple[float, float]
) -> list[list[str]]:
    """Return a line for each payload: the ratios at Bireme for all lengths, and whether all are ``within``."""
    lines = []
    for nbytes in results.values("nbytes"):
        ratios, every, measured = [], [], []
        for steps in results.values("steps"):
            mine = results.find(way, "Bireme", steps, nbytes)
            other = results.find(other_way, "Bireme", steps, nbytes)
            if mine and other:
                each = [a / b for a, b in zip(mine.each("mean_us"), other.each("mean_us"), strict=True)]
                ratios.append(statistics.median(each))
                every += each
                measured.append(str(steps))
        if ratios:
            lines.append(
                [
                    f"{label}, {LABELS[nbytes]}, {', '.join(measured)} steps",
                    ", ".join(f"{each:.2f}" for each in ratios),
                    f"{min(every):.2f} to {max(every):.2f}",
                    goal,
                    _met(is_met=all(within[0] <= each <= within[1] for each in ratios)),
                ]
            )
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
    for way in ("ensemble", "ensemble_thread", "ensemble_inline"):
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
