"""A Python model in a process of its own, on Bireme and on the real Triton: the same files, one interleaved run.

    python -m benchmarks.python_models [--rounds 5] [--protocols http,grpc]

Needs the lab (``benchmarks/lab/setup``). Prints one table; `docs/performance.md` holds a run's output.
"""

from __future__ import annotations

import argparse
import os
import sys
from functools import partial

from benchmarks.peers import Peer, bireme, perf_analyzer, triton
from benchmarks.tables import MODELS, PEERS_HEADER, compared, console, figures, interleaved, print_rows

FIELDS = {"mean_us": "mean µs", "p99_us": "p99 µs", "infer_per_s": "infer/s", "cpu_us": "CPU µs a request"}
GOALS = {(1, "mean_us"): "≤ 0.5", (16, "infer_per_s"): "≥ 1.5"}


def bench_add_sub(ours: Peer, theirs: Peer, rounds: int, protocols: list[str]) -> None:
    """FP32[16]: sum and difference, with one client and with sixteen."""
    rows = []
    for protocol in protocols:
        for concurrency in (1, 16):
            measure = partial(perf_analyzer, model="add_sub", concurrency=concurrency, protocol=protocol)
            a, b = interleaved(rounds, partial(measure, ours), partial(measure, theirs))
            for field, what in FIELDS.items():
                label = f"{protocol}, {concurrency} client{'s' * (concurrency > 1)}, {what}"
                goal = GOALS.get((concurrency, field), "")
                rows.append(compared(label, figures(a, field), figures(b, field), goal))
    print_rows("FP32[16] add and subtract, the same Python model (perf_analyzer)", PEERS_HEADER, rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--protocols", default="http,grpc")
    args = parser.parse_args()
    console.print(
        f"{os.cpu_count()} cores, Python {sys.version.split()[0]}, {args.rounds} interleaved rounds\n"
    )
    with bireme(MODELS) as ours, triton(MODELS) as theirs:
        bench_add_sub(ours, theirs, args.rounds, args.protocols.split(","))


if __name__ == "__main__":
    main()
