"""What the side-by-side benchmarks share: interleaved rounds, ratios with their ranges, tables, and the pair of repositories."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

from benchmarks.peers import HERE, Load, Peer
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(HERE.parent / "tests"))
import onnx_models

console = Console()
PEERS_HEADER = ["", "Bireme", "Triton", "ratio", "range", "goal"]
_LABELS = {
    "mean_us": "mean µs",
    "p99_us": "p99 µs",
    "infer_per_s": "infer/s",
    "cpu_us": "CPU µs a request",
}
MODELS = HERE / "models"
"""Triton's repository."""

T = TypeVar("T")

PLUS_ONE_CONFIG = """
max_batch_size: 0
input [ { name: "X" data_type: TYPE_FP32 dims: [ -1 ] } ]
output [ { name: "Y" data_type: TYPE_FP32 dims: [ -1 ] } ]
"""


def onnx_repository(root: Path) -> Path:
    """The same arithmetic as Triton's reference models, as ONNX: `add` for add_sub, `plus_one` for plus_one_a."""
    plus_one = (onnx_models.save_plus_one, PLUS_ONE_CONFIG)
    return onnx_models.make_repository(root, {"add": onnx_models.save_add, "plus_one": plus_one})


def interleaved(rounds: int, *measures: Callable[[], T]) -> list[list[T]]:
    """Run the measures in turn, ``rounds`` times; return each one's results."""
    results: list[list[T]] = [[] for _ in measures]
    for _ in range(rounds):
        for found, measure in zip(results, measures, strict=True):
            found.append(measure())
    return results


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> tuple[float, str]:
    """Return the median of the rounds' ratios and their range as text: rounds pair what ran side by side."""
    ratios = sorted(a / b for a, b in zip(ours, theirs, strict=True))
    return statistics.median(ratios), f"{ratios[0]:.2f} to {ratios[-1]:.2f}"


def compared(
    label: str, mine: Sequence[float], other: Sequence[float], goal: str = "", digits: int = 0
) -> list[str]:
    """Return a table row: medians, the median ratio and its range."""
    middle, spread = ratio(mine, other)
    values = (f"{statistics.median(values):,.{digits}f}" for values in (mine, other))
    return [label, *values, f"{middle:.2f}", spread, goal]


def figures(loads: Sequence[Load], field: str) -> list[float]:
    return [getattr(load, field) for load in loads]


def bench_small(
    protocol: str,
    peers: tuple[Peer, Peer, Peer],
    rounds: int,
    fields: Sequence[str],
    goals: Mapping[tuple[int, str], str],
    measure: Callable[..., Load],
) -> None:
    """FP32[16] + FP32[16]: latency with one client, throughput with sixteen.

    ``peers`` are Bireme, Bireme that polls its sockets busily, and Triton; ``goals`` are by clients and field.
    """
    ours, awake, theirs = peers
    rows = []
    for concurrency in (1, 16):
        clients = f"{concurrency} client{'s' * (concurrency > 1)}"
        ours_loads, awake_loads, theirs_loads = interleaved(
            rounds,
            *(partial(measure, peer, "add", concurrency=concurrency) for peer in (ours, awake)),
            partial(measure, theirs, "add_sub", concurrency=concurrency),
        )
        for peer, loads in ((ours, ours_loads), (awake, awake_loads)):
            for field in fields:
                label = f"{clients}, {_LABELS[field]}" + ("" if peer is ours else f", {peer.name}")
                goal = goals.get((concurrency, field), "")
                rows.append(compared(label, figures(loads, field), figures(theirs_loads, field), goal))
    title = f"FP32[16] add: ONNX on Bireme, Python model on Triton (perf_analyzer, {protocol})"
    print_rows(title, PEERS_HEADER, rows)


def print_rows(title: str, header: list[str], rows: list[list[str]]) -> None:
    table = Table(title=title, title_justify="left", header_style="bold")
    for position, name in enumerate(header):
        table.add_column(name, justify="left" if position == 0 else "right")
    for row in rows:
        table.add_row(*row)
    console.print(table)
