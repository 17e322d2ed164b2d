"""Bireme's gRPC front end against the real Triton, in one interleaved run.

    python -m benchmarks.grpc [--rounds 5] [--rows add,big,shm,connections,h2load]

Needs the lab (``benchmarks/lab/setup``), and h2load (Debian: nghttp2-client) for its row. Prints one table per row;
`docs/performance.md` holds a run's output.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
from benchmarks.peers import Load, Peer, bireme, perf_analyzer, triton
from benchmarks.tables import (
    MODELS,
    PEERS_HEADER,
    bench_small,
    compared,
    console,
    figures,
    interleaved,
    onnx_repository,
    print_rows,
)

import grpc_calls  # of the tests, whose folder benchmarks.tables has put on the path
from grpc_socket import GrpcSocket, framed

SMALL_FIELDS = ("mean_us", "p99_us", "infer_per_s", "cpu_us")
SMALL_GOALS = {(1, "mean_us"): "≤ 0.4", (16, "infer_per_s"): "≥ 2"}
SIZES = {"512 KB": 131_072, "6 MB": 1_572_864}
NUM_IDLE = 984
NUM_ACTIVE = 16

measure = partial(perf_analyzer, protocol="grpc")


def bench_big(ours: Peer, theirs: Peer, rounds: int) -> None:
    """X + 1 at 512 KB and 6 MB with one client."""
    rows = []
    for label, num_elements in SIZES.items():
        shapes = [f"X:{num_elements}"]
        a, b = interleaved(
            rounds,
            partial(measure, ours, "plus_one", shapes=shapes),
            partial(measure, theirs, "plus_one_a", shapes=shapes),
        )
        for field, what, goal in (("mean_us", "mean µs", "≤ 0.5"), ("cpu_us", "CPU µs a request", "")):
            rows.append(compared(f"{label}, {what}", figures(a, field), figures(b, field), goal))
    print_rows("FP32[N] + 1, 1 client, gRPC: ONNX on Bireme, Python model on Triton", PEERS_HEADER, rows)


def bench_shm(ours: Peer, theirs: Peer, rounds: int) -> None:
    """X + 1 at 6 MB through system shared memory, against over the wire."""
    num_elements = SIZES["6 MB"]
    shapes = [f"X:{num_elements}"]
    rows = []
    for peer, model, goal in ((ours, "plus_one", "≤ 0.2"), (theirs, "plus_one_a", "")):
        wire = partial(measure, peer, model, shapes=shapes)
        shared, plain = interleaved(rounds, partial(wire, output_region_size=4 * num_elements), wire)
        for field, what in (("mean_us", "mean µs"), ("cpu_us", "CPU µs a request")):
            row = compared(f"{peer.name}, {what}", figures(shared, field), figures(plain, field))
            rows.append([*row[:-1], goal if field == "mean_us" else ""])
    print_rows(
        "FP32[N] + 1 at 6 MB, 1 client, gRPC: through system shared memory, and over the wire",
        ["", "shared", "wire", "ratio", "range", "goal"],
        rows,
    )


@contextlib.contextmanager
def idle_connections(peer: Peer, count: int) -> Iterator[None]:
    """Keep ``count`` connections open, each of which has completed a call."""
    with contextlib.ExitStack() as stack:
        for _ in range(count):
            connection = stack.enter_context(GrpcSocket(f"127.0.0.1:{peer.grpc_port}"))
            if connection.call(grpc_calls.SERVER_LIVE).status != 0:
                sys.exit(f"a call failed on {peer.name}")
        yield


def bench_connections(ours: Peer, theirs: Peer, rounds: int) -> None:
    """1,000 open connections of which 16 are active, against these 16 alone."""

    def among_idle(peer: Peer, model: str) -> Load:
        with idle_connections(peer, NUM_IDLE):
            return alone(peer, model)

    def alone(peer: Peer, model: str) -> Load:
        return measure(peer, model, concurrency=NUM_ACTIVE, has_own_connections=True)

    rows = []
    for peer, model, goal in ((ours, "add", "≥ 0.9"), (theirs, "add_sub", "")):
        many, few = interleaved(rounds, partial(among_idle, peer, model), partial(alone, peer, model))
        for field, what in (("infer_per_s", "infer/s"), ("cpu_us", "CPU µs a request")):
            row = compared(f"{peer.name}, {what}", figures(many, field), figures(few, field))
            rows.append([*row[:-1], goal if field == "infer_per_s" else ""])
    print_rows(
        f"FP32[16] add, gRPC, {NUM_ACTIVE} clients with a connection each: {NUM_ACTIVE + NUM_IDLE} connections open, and {NUM_ACTIVE}",
        ["", f"{NUM_ACTIVE + NUM_IDLE:,}", str(NUM_ACTIVE), "ratio", "range", "goal"],
        rows,
    )


def h2load(peer: Peer, body: Path, num_calls: int = 20_000) -> tuple[float, int]:
    """Return calls per second, and how many did not succeed."""
    command = ["h2load", f"--requests={num_calls}", "--clients=1", "--max-concurrent-streams=100"]
    command += ["--header=content-type: application/grpc", "--header=te: trailers", f"--data={body}"]
    url = f"http://127.0.0.1:{peer.grpc_port}{grpc_calls.INFER}"
    report = subprocess.run([*command, url], capture_output=True, text=True, timeout=120, check=True).stdout
    per_s = re.search(r"finished in .*?, ([\d.]+) req/s", report)
    succeeded = re.search(r"status codes: (\d+) 2xx", report)
    if per_s is None or succeeded is None:
        sys.exit(f"h2load said of {peer.name}:\n{report}")
    return float(per_s[1]), num_calls - int(succeeded[1])


def bench_h2load(ours: Peer, theirs: Peer, rounds: int, folder: Path) -> None:
    """The small add, 100 streams on one connection."""
    values = np.arange(16, dtype=np.float32)
    bodies = {}
    for model in ("add", "add_sub"):
        bodies[model] = folder / model
        message = grpc_calls.infer_message(model, INPUT0=values, INPUT1=values)
        bodies[model].write_bytes(framed(message.SerializeToString()))
    a, b = interleaved(
        rounds, partial(h2load, ours, bodies["add"]), partial(h2load, theirs, bodies["add_sub"])
    )
    rows = [compared("calls/s", [per_s for per_s, _ in a], [per_s for per_s, _ in b])]
    errors = (f"{sum(count for _, count in found)}" for found in (a, b))
    print_rows(
        "FP32[16] add, 100 streams on one connection (h2load)",
        PEERS_HEADER,
        [*rows, ["errors", *errors, "", "", "0"]],
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rows", default="add,big,shm,connections,h2load")
    args = parser.parse_args()
    rows = args.rows.split(",")
    # A thousand connections, and the servers' limit is ours.
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 65_536) if hard > 0 else 65_536, hard))
    console.print(
        f"{os.cpu_count()} cores, Python {sys.version.split()[0]}, {args.rounds} interleaved rounds\n"
    )
    with tempfile.TemporaryDirectory() as folder:
        root = onnx_repository(Path(folder) / "onnx")
        with (
            bireme(root, "--allow-client-shm=true") as ours,
            triton(MODELS) as theirs,
        ):
            if "add" in rows:
                with bireme(root, "--grpc-busy-poll-us=300", name="busy poll") as awake:
                    bench_small(
                        "gRPC", (ours, awake, theirs), args.rounds, SMALL_FIELDS, SMALL_GOALS, measure
                    )
            if "big" in rows:
                bench_big(ours, theirs, args.rounds)
            if "shm" in rows:
                bench_shm(ours, theirs, args.rounds)
            if "connections" in rows:
                bench_connections(ours, theirs, args.rounds)
            if "h2load" in rows and shutil.which("h2load"):
                bench_h2load(ours, theirs, args.rounds, Path(folder))


if __name__ == "__main__":
    main()
