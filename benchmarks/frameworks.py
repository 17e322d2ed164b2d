"""One network by every framework: through the server, against the framework's own loop; memory; and what batching gives.

    python -m benchmarks.frameworks [--only onnx,pt2] [--size resnet50] [--clients 1,4,16] [--rounds 2] [--window-ms 1000]
    python -m benchmarks.frameworks --memory
    python -m benchmarks.frameworks --curve [--plot docs/dynamic_batching.png]

The network is ResNet-50's, with random weights, at 224×224 (``--size resnet50_112``: at 112×112, four times as fast, which makes
the server's share larger and a run shorter). examples/frameworks/build.py makes the files. Needs the lab
(``benchmarks/lab/setup``) for perf_analyzer, which asks over gRPC.

What is compared: for each number of clients, images a second through the server (dynamic batching, at most 8 rows, one instance)
and in a loop of a process that does nothing else, with as many threads and as many rows in a run as there are clients, up to 8.
The two take turns, and ratios are of neighbours. Client, server and framework share the cores of the machine: the client's work is
in the server's figure and not in the loop's.

Memory is proportional set size, summed over the server's processes, after four clients at once have been answered.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np
import tritonclient.http as triton_http
from benchmarks import batching_curve
from benchmarks.peers import HERE, Load, Peer, _family, bireme, perf_analyzer
from benchmarks.tables import console, print_rows, ratio

sys.path.append(str(HERE.parent / "examples" / "frameworks"))
import build as example

MAX_BATCH_SIZE = 8
MAX_WINDOW_MS = 8000
NUM_REQUESTS = 5
"""Of each of four clients, before memory is looked at."""
SPEED_GOAL = 0.95
MEMORY_GOAL = 1.2
FORMATS = ("onnx", "torchscript", "pt2", "savedmodel", "openvino", "jax")
_FILE_NEEDS = {"onnx": "onnxruntime", "savedmodel": "tensorflow", "openvino": "openvino", "jax": "jax"}
"""The package that serves a format; torch does where none is named."""


class Subject(NamedTuple):
    """A format and the model file to measure."""

    format: str
    path: Path
    side: int

    @property
    def model(self) -> str:
        return f"resnet_{self.format}"


class BareLoop:
    """A process of `benchmarks.bare_loops`."""

    def __init__(self, subject: Subject) -> None:
        command = [sys.executable, "-W", "ignore", "-m", "benchmarks.bare_loops", subject.format]
        command += [str(subject.path), str(subject.side), str(num_cpus())]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        self._read(subject.format)

    def measure(self, batch: int, seconds: float) -> float:
        """Return images a second."""
        assert self._process.stdin is not None
        print(batch, seconds, file=self._process.stdin, flush=True)
        return float(self._read("the loop"))

    def _read(self, what: str) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            sys.exit(f"{what}: the bare loop ended with exit status {self._process.wait()}")
        return line

    def stop(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(20)


def num_cpus() -> int:
    return len(os.sched_getaffinity(0))


def find_subjects(size: str, only: Sequence[str], folder: Path) -> list[Subject]:
    """Build what is missing, and return what can be measured here."""
    wanted = [name for name in FORMATS if not only or name in only]
    example.build(console.print, size=size, models=folder, only=tuple(wanted))
    subjects = []
    for name in wanted:
        path = folder / f"resnet_{name}/1" / example.ALL[f"resnet_{name}"].filename
        package = _FILE_NEEDS.get(name, "torch")
        if path.exists() and importlib.util.find_spec(package):
            subjects.append(Subject(name, path, example.SIZES[size].side))
        else:
            console.print(f"{name}: left out, for want of {package}")
    return subjects


def write_repository(root: Path, subject: Subject, num_instances: int) -> Path:
    """Make a repository of one model, which lies where it was built."""
    model_dir = root / f"{subject.format}_{num_instances}" / subject.model
    model_dir.mkdir(parents=True)
    (model_dir / "1").symlink_to(subject.path.parent)
    built = subject.path.parents[1] / "config.pbtxt"
    text = built.read_text() if built.exists() else "max_batch_size: 0\ndynamic_batching { }\n"
    text = re.sub(r"max_batch_size: \d+", f"max_batch_size: {MAX_BATCH_SIZE}", text)
    text += f"instance_group {{ kind: KIND_CPU count: {num_instances} }}\n"
    (model_dir / "config.pbtxt").write_text(text)
    return model_dir.parent


@contextlib.contextmanager
def served(subject: Subject, num_instances: int) -> Iterator[Peer]:
    with tempfile.TemporaryDirectory() as folder:
        repository = write_repository(Path(folder), subject, num_instances)
        with bireme(repository, "--log-warning=false", "--log-info=false") as peer:
            yield peer


def bench_speed(subject: Subject, clients: Sequence[int], rounds: int, window_ms: int) -> list[list[str]]:
    """Return a row for each number of clients."""
    rows = []
    with served(subject, 1) as peer, contextlib.closing(_Stopping(BareLoop(subject))) as bare:
        for concurrency in clients:
            batch = min(concurrency, MAX_BATCH_SIZE)
            loads: list[Load] = []
            loops: list[float] = []
            for _ in range(rounds):
                loops.append(bare.loop.measure(batch, window_ms / 1e3))
                # A window holds a few rounds of all clients, however slow the model is here.
                least_ms = min(int(2.5e3 * concurrency / loops[-1]), MAX_WINDOW_MS)
                loads.append(
                    perf_analyzer(
                        peer,
                        subject.model,
                        concurrency=concurrency,
                        window_ms=max(window_ms, least_ms),
                        protocol="grpc",
                    )
                )
            ours = [load.infer_per_s for load in loads]
            middle, spread = ratio(ours, loops)
            rows.append(
                [
                    subject.format,
                    str(concurrency),
                    f"{statistics.median(ours):.1f}",
                    f"{statistics.median(loops):.1f}",
                    f"{middle:.2f}",
                    spread,
                    f"{statistics.median(load.p99_us for load in loads) / 1e3:.0f}",
                ]
            )
    return rows


class _Stopping:
    def __init__(self, loop: BareLoop) -> None:
        self.loop = loop
        self.close = loop.stop


def pss_mb(peer: Peer) -> float:
    """Return the proportional set size of the server and its processes."""
    total = 0
    for pid in _family(peer.pid):
        with contextlib.suppress(OSError):
            found = re.search(
                r"^Pss:\s+(\d+) kB", Path(f"/proc/{pid}/smaps_rollup").read_text(), re.MULTILINE
            )
            total += int(found[1]) if found else 0
    return total / 1e3


def exercise(peer: Peer, subject: Subject) -> None:
    """Have several requests run at once, on every instance."""
    pictures = np.zeros((1, 3, subject.side, subject.side), np.float32)

    def ask(_: int) -> None:
        with triton_http.InferenceServerClient(f"127.0.0.1:{peer.port}", network_timeout=300.0) as client:
            (declared,) = client.get_model_metadata(subject.model)["inputs"]
            tensor = triton_http.InferInput(declared["name"], list(pictures.shape), "FP32")
            tensor.set_data_from_numpy(pictures)
            for _ in range(NUM_REQUESTS):
                client.infer(subject.model, [tensor])

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(ask, range(4)))


def bench_memory(subject: Subject) -> list[str]:
    """Return a row: memory of one instance and of four."""
    found = []
    for num_instances in (1, 4):
        with served(subject, num_instances) as peer:
            exercise(peer, subject)
            found.append(pss_mb(peer))
    one, four = found
    return [subject.format, f"{one:.0f}", f"{four:.0f}", f"{four / one:.2f}", f"≤ {MEMORY_GOAL}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", default="", help=f"formats, of {','.join(FORMATS)}; default: all")
    parser.add_argument("--size", choices=example.SIZES, default="resnet50")
    parser.add_argument("--clients", default="1,4,16")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument(
        "--window-ms",
        type=int,
        default=1000,
        help="perf_analyzer measures three of them; longer where a model is slow",
    )
    parser.add_argument("--models", type=Path, help="where the files are made; default: the example's")
    parser.add_argument("--memory", action="store_true", help="memory of 1 and 4 instances, instead of speed")
    parser.add_argument("--curve", action="store_true", help="what dynamic batching gives, instead of speed")
    parser.add_argument("--plot", type=Path, default=HERE.parent / "docs" / "dynamic_batching.png")
    args = parser.parse_args()
    console.print(f"{num_cpus()} cores, Python {sys.version.split()[0]}\n")
    if args.curve:
        batching_curve.bench(args.window_ms, args.rounds, args.plot)
        return
    models = (args.models or example.MODELS / args.size).absolute()
    subjects = find_subjects(args.size, tuple(filter(None, args.only.split(","))), models)
    start_s = time.monotonic()
    side = example.SIZES[args.size].side
    if args.memory:
        rows = [bench_memory(subject) for subject in subjects]
        header = ["", "1 instance, MB", "4 instances, MB", "ratio", "goal"]
        print_rows(f"Proportional set size of a server with {args.size} ({side}×{side})", header, rows)
    else:
        clients = [int(each) for each in args.clients.split(",")]
        rows = [
            row for subject in subjects for row in bench_speed(subject, clients, args.rounds, args.window_ms)
        ]
        header = ["", "clients", "server/s", "loop/s", "ratio", "range", "p99 ms"]
        title = (
            f"{args.size} ({side}×{side}): images a second by gRPC and in the framework's own loop; goal: ratio ≥ "
            f"{SPEED_GOAL}"
        )
        print_rows(title, header, rows)
    console.print(f"{time.monotonic() - start_s:.0f} s")


if __name__ == "__main__":
    main()
