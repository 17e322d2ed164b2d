"""What dynamic batching gives, as curves: throughput and p99 latency by the largest batch, and by the queue delay.

`python -m benchmarks.frameworks --curve` runs this. The model is a multilayer perceptron (4 layers of 1024 by 1024), one whose runs
cost nearly the same for one row and for several, since reading its weights (17 MB) is most of the work. Image networks on a CPU
gain next to nothing from batches: a row of theirs keeps the cores busy by itself.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import matplotlib as mpl
from benchmarks.orchestration.plots import BLUE, ORANGE, STYLE
from benchmarks.peers import Peer, bireme, perf_analyzer
from benchmarks.tables import console, onnx_models, print_rows
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image

BATCH_SIZES = (1, 2, 4, 8, 16, 32)
NUM_CLIENTS_BY_SIZE = 32
DELAYS_US = (0, 100, 250, 500, 1000, 2000, 5000)
NUM_CLIENTS_BY_DELAY = 8
"""Fewer than the largest batch: only then is there something to wait for."""
LARGEST = BATCH_SIZES[-1]


class Point(NamedTuple):
    """What was measured at one setting."""

    x: int
    infer_per_s: float
    p99_ms: float
    mean_batch: float


def write_repository(root: Path) -> Path:
    """Make a model for each setting; they share one file."""
    file = onnx_models.save_matmul(root / "perceptron.onnx", size=1024, num_layers=4)
    for max_batch_size, delay_us in settings():
        model_dir = root / "models" / name_of(max_batch_size, delay_us)
        (model_dir / "1").mkdir(parents=True)
        (model_dir / "1/model.onnx").symlink_to(file)
        delay = f"max_queue_delay_microseconds: {delay_us}" if delay_us else ""
        batching = f"dynamic_batching {{ {delay} }}" if max_batch_size > 1 else ""
        (model_dir / "config.pbtxt").write_text(f"max_batch_size: {max_batch_size}\n{batching}\n")
    return root / "models"


def settings() -> list[tuple[int, int]]:
    """Return largest batch and delay of every model."""
    return [(size, 0) for size in BATCH_SIZES] + [(LARGEST, delay) for delay in DELAYS_US if delay]


def name_of(max_batch_size: int, delay_us: int) -> str:
    return f"perceptron_{max_batch_size}_{delay_us}"


def measure(
    peer: Peer, points: Sequence[tuple[int, str]], num_clients: int, window_ms: int, rounds: int
) -> list[Point]:
    """Return a point for each x and model of ``points``; they take turns."""
    loads: dict[int, list[tuple[float, float, float]]] = {x: [] for x, _ in points}
    for _ in range(rounds):
        for x, model in points:
            before = counts(peer, model)
            load = perf_analyzer(peer, model, concurrency=num_clients, window_ms=window_ms, protocol="grpc")
            rows, runs = (after - start for after, start in zip(counts(peer, model), before, strict=True))
            loads[x].append((load.infer_per_s, load.p99_us / 1e3, rows / max(runs, 1)))
    return [
        Point(x, *(statistics.median(values) for values in zip(*found, strict=True)))
        for x, found in loads.items()
    ]


def counts(peer: Peer, model: str) -> tuple[int, int]:
    """Return the rows and the runs of ``model`` so far."""
    import json
    import urllib.request

    url = f"http://127.0.0.1:{peer.port}/v2/models/{model}/stats"
    with urllib.request.urlopen(url, timeout=10) as reply:
        found = json.load(reply)["model_stats"][0]
    return int(found["inference_count"]), int(found["execution_count"])


def bench(window_ms: int, rounds: int, plot: Path) -> None:
    """Measure both curves, print them and draw them into ``plot``."""
    with tempfile.TemporaryDirectory() as folder:
        repository = write_repository(Path(folder))
        with bireme(repository, "--log-info=false") as peer:
            by_size = measure(
                peer,
                [(size, name_of(size, 0)) for size in BATCH_SIZES],
                NUM_CLIENTS_BY_SIZE,
                window_ms,
                rounds,
            )
            by_delay = measure(
                peer,
                [(delay, name_of(LARGEST, delay)) for delay in DELAYS_US],
                NUM_CLIENTS_BY_DELAY,
                window_ms,
                rounds,
            )
    header = ["", "infer/s", "p99 ms", "rows a run"]
    for title, points in (
        (f"By the largest batch, {NUM_CLIENTS_BY_SIZE} clients, no delay", by_size),
        (f"By queue delay in µs, {NUM_CLIENTS_BY_DELAY} clients, largest batch {LARGEST}", by_delay),
    ):
        rows = [
            [f"{each.x}", f"{each.infer_per_s:,.0f}", f"{each.p99_ms:.2f}", f"{each.mean_batch:.1f}"]
            for each in points
        ]
        print_rows(title, header, rows)
    draw(by_size, by_delay, plot)
    console.print(f"drawn: {plot}")


def draw(by_size: Sequence[Point], by_delay: Sequence[Point], path: Path) -> None:
    """Draw both curves, each with throughput and latency."""
    mpl.use("Agg")
    with mpl.rc_context(STYLE):
        figure, panels = plt.subplots(2, 2, figsize=(9.5, 5.2), sharex="col", layout="constrained")
        for column, (points, label, title) in enumerate(
            (
                (by_size, "largest batch", f"{NUM_CLIENTS_BY_SIZE} clients, no delay"),
                (by_delay, "queue delay, µs", f"{NUM_CLIENTS_BY_DELAY} clients, largest batch {LARGEST}"),
            )
        ):
            _curve(panels[0][column], points, "infer_per_s", BLUE)
            _curve(panels[1][column], points, "p99_ms", ORANGE)
            panels[0][column].set_title(title)
            panels[1][column].set_xlabel(label)
        panels[0][0].set_ylabel("inferences a second")
        panels[1][0].set_ylabel("p99 latency, ms")
        figure.suptitle("Dynamic batching of a perceptron (4 layers of 1024 × 1024, ONNX Runtime)")
        _save(figure, path)


def _curve(axes: Axes, points: Sequence[Point], field: str, colour: str) -> None:
    places = range(len(points))  # evenly: sizes double, delays grow as they like
    values = [getattr(point, field) for point in points]
    axes.plot(places, values, color=colour, marker="o", ms=4.5, lw=1.5)
    axes.set_xticks(places, [f"{point.x:,}" for point in points])
    axes.set_ylim(0, 1.1 * max(values))


def _save(figure: Figure, path: Path) -> None:
    figure.savefig(path, metadata={"Software": None})
    with Image.open(path) as picture:
        picture.convert("RGB").quantize(64).save(path, optimize=True)  # a third of the bytes
    plt.close(figure)
