"""What the side-by-side benchmarks share: interleaved rounds, ratios with their ranges, tables, and the pair of repositories."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from benchmarks.peers import HERE
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(HERE.parent / "tests"))
import onnx_models

console = Console()
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


def print_rows(title: str, header: list[str], rows: list[list[str]]) -> None:
    table = Table(title=title, title_justify="left", header_style="bold")
    for position, name in enumerate(header):
        table.add_column(name, justify="left" if position == 0 else "right")
    for row in rows:
        table.add_row(*row)
    console.print(table)
