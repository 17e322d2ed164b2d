"""Calls from one model to another (BLS), on Bireme and on the real Triton: the same model.py files, one interleaved run.

    python -m benchmarks.bls [--rounds 5] [--rows added,hop,fan_out] [--soak-s 300]

Needs the lab (``benchmarks/lab/setup``) for all but the soak, which runs alone. Prints one table per row;
`docs/performance.md` holds a run's output.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
from functools import partial

import numpy as np
import tritonclient.http
from benchmarks.peers import HERE, Load, Peer, bireme, perf_analyzer, triton
from benchmarks.soak import soak
from benchmarks.tables import MODELS, PEERS_HEADER, compared, console, figures, interleaved, print_rows

BLS_MODELS = HERE / "bls_models"
SIZES = {"1 KB": 256, "512 KB": 131_072, "6 MB": 1_572_864}
NUM_HOPS = {256: 2000, 131_072: 500, 1_572_864: 100}
HOP_GOALS = {256: 60, 1_572_864: 150}
THREAD_GOAL_US = 25


def ask(peer: Peer, model: str, output: str, **arrays: np.ndarray) -> np.ndarray:
    """Return one output of a model."""
    inputs = []
    for name, array in arrays.items():
        datatype = tritonclient.utils.np_to_triton_dtype(array.dtype)
        inputs.append(tritonclient.http.InferInput(name, list(array.shape), datatype))
        inputs[-1].set_data_from_numpy(array)
    with tritonclient.http.InferenceServerClient(f"127.0.0.1:{peer.port}", network_timeout=120) as client:
        return client.infer(model, inputs).as_numpy(output)


def added_us(calling: list[Load], direct: list[Load]) -> list[float]:
    """Return, for each round, what the script costs on top of one of its models."""
    pairs = zip(figures(calling, "mean_us"), figures(direct, "mean_us"), strict=True)
    return [mine - alone for mine, alone in pairs]


def bench_added(ours: Peer, theirs: Peer, rounds: int) -> None:
    """Two Python models called by a third, against calling one of the two directly."""
    rows = []
    for label, num_elements in SIZES.items():
        measures = [
            partial(perf_analyzer, peer, model, shapes=[f"X:{num_elements}"])
            for peer in (ours, theirs)
            for model in ("bls_2", "plus_one_a")
        ]
        our_bls, our_one, their_bls, their_one = interleaved(rounds, *measures)
        rows += [
            compared(
                f"{label}, one model, mean µs", figures(our_one, "mean_us"), figures(their_one, "mean_us")
            ),
            compared(f"{label}, BLS, mean µs", figures(our_bls, "mean_us"), figures(their_bls, "mean_us")),
            compared(
                f"{label}, added µs", added_us(our_bls, our_one), added_us(their_bls, their_one), "≤ 0.15"
            ),
        ]
    print_rows("BLS over two Python models, HTTP, 1 client (perf_analyzer)", PEERS_HEADER, rows)


def hop_us(peer: Peer, model: str, num_elements: int) -> float:
    """Return the median of one call, measured by the calling script itself."""
    count = np.array([NUM_HOPS[num_elements]], np.int32)
    took_us = ask(peer, model, "US", X=np.zeros(num_elements, np.float32), COUNT=count)
    return float(np.median(took_us[len(took_us) // 10 :]))


def bench_hop(ours: Peer, theirs: Peer, rounds: int) -> None:
    """One call from process to process and back, with an input of the caller's own request; the callee does nothing."""
    rows = []
    for label, num_elements in SIZES.items():
        a, b = interleaved(rounds, *(partial(hop_us, peer, "hop", num_elements) for peer in (ours, theirs)))
        goal = HOP_GOALS.get(num_elements)
        rows.append(
            compared(f"processes, {label}, median µs", a, b, f"≤ {goal} µs" if goal else "", digits=1)
        )
    for label, num_elements in SIZES.items():
        (a,) = interleaved(rounds, partial(hop_us, ours, "hop_thread", num_elements))
        goal = f"≤ {THREAD_GOAL_US} µs" if num_elements == 256 else ""
        what = f"threads, {label}, median µs"
        rows.append([what, f"{statistics.median(a):.1f}", "", "", f"{min(a):.1f} to {max(a):.1f} µs", goal])
    print_rows("One BLS hop, measured inside the calling model", PEERS_HEADER, rows)


def fan_out_ms(peer: Peer) -> float:
    """Return what eight calls at once took, less the slowest one."""
    total, *each = ask(peer, "fan_out", "MS", X=np.zeros(16, np.float32))
    return float(total - max(each))


def bench_fan_out(ours: Peer, theirs: Peer, rounds: int) -> None:
    """Eight models that sleep 50 ms each, called at once."""
    a, b = interleaved(4 * rounds, partial(fan_out_ms, ours), partial(fan_out_ms, theirs))
    row = compared("total less the slowest, ms", a, b, "≤ 1 ms", digits=2)
    print_rows("async_exec to 8 instances that sleep 50 ms", PEERS_HEADER, [row])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rows", default="added,hop,fan_out")
    parser.add_argument(
        "--soak-s", type=float, default=0, help="random sizes at full speed, for so many seconds"
    )
    args = parser.parse_args()
    console.print(
        f"{os.cpu_count()} cores, Python {sys.version.split()[0]}, {args.rounds} interleaved rounds\n"
    )
    repositories = f"--model-repository={MODELS}"
    if args.soak_s:
        with bireme(BLS_MODELS, repositories) as ours:
            soak(ours, args.soak_s)
        return
    benches = {"added": bench_added, "hop": bench_hop, "fan_out": bench_fan_out}
    with bireme(BLS_MODELS, repositories) as ours, triton(BLS_MODELS, repositories) as theirs:
        for row in args.rows.split(","):
            benches[row](ours, theirs, args.rounds)


if __name__ == "__main__":
    main()
