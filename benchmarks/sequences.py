"""Sequences on Bireme and on the real Triton: the same Python model that adds up, with the oldest strategy.

    python -m benchmarks.sequences [--rounds 5] [--protocols grpc,http] [--concurrency 64]
    python -m benchmarks.sequences --soak 10000

The first runs 64 interleaved sequences at full speed, with perf_analyzer, and needs the lab (``benchmarks/lab/setup``). The soak
runs Bireme alone: sequences over HTTP, a third of them cut by a connection that is closed, between two requests or while one is
on its way. In the end no sequence and no sum may be left, and memory must have stayed flat.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import random
import re
import shutil
import sys
import tempfile
import time
import urllib.request
from functools import partial
from pathlib import Path

from benchmarks.peers import HERE, Load, Peer, bireme, free_ports, perf_analyzer, triton
from benchmarks.soak import memory
from benchmarks.tables import PEERS_HEADER, compared, console, figures, interleaved, print_rows

SEQUENCE_MODELS = HERE / "sequence_models"
NUM_AT_ONCE = 64
SOAK_IDLE_US = 200_000
NUM_SAMPLES = 10
MAX_REQUESTS = 6


def bench_throughput(ours: Peer, theirs: Peer, protocols: list[str], concurrency: int, rounds: int) -> None:
    rows = []
    for protocol in protocols:
        measure = partial(perf_analyzer, model="accumulate", concurrency=concurrency, protocol=protocol)
        our_loads, their_loads = interleaved(rounds, partial(measure, ours), partial(measure, theirs))
        for label, field, goal in (
            ("infer/s", "infer_per_s", "≥ 1.5"),
            ("mean µs", "mean_us", ""),
            ("p99 µs", "p99_us", ""),
            ("CPU µs a request", "cpu_us", ""),
        ):
            rows.append(_row(f"{protocol}, {label}", our_loads, their_loads, field, goal))
    print_rows(f"{concurrency} interleaved sequences of a Python accumulator, oldest", PEERS_HEADER, rows)


def _row(label: str, ours: list[Load], theirs: list[Load], field: str, goal: str) -> list[str]:
    return compared(label, figures(ours, field), figures(theirs, field), goal)


class Soak:
    """Sequences over connections of their own, a third of them cut."""

    def __init__(self, peer: Peer, num_sequences: int) -> None:
        self._peer = peer
        self._num_sequences = num_sequences
        self._numbers = itertools.count(1)
        self._random = random.Random(7)
        self.num_done = 0
        self.num_cut = 0
        self.errors: list[str] = []

    async def run(self) -> None:
        """Run all sequences, `NUM_AT_ONCE` at a time."""
        await asyncio.gather(*(self._work() for _ in range(NUM_AT_ONCE)))

    async def _work(self) -> None:
        while (number := next(self._numbers)) <= self._num_sequences:
            try:
                await self._run_one(number)
            except (OSError, asyncio.IncompleteReadError) as error:
                self.errors.append(f"sequence {number}: {error!r}")
            self.num_done += 1

    async def _run_one(self, number: int) -> None:
        num_requests = self._random.randint(2, MAX_REQUESTS)
        is_cut = number % 3 == 0
        num_sent = self._random.randint(1, num_requests - 1) if is_cut else num_requests
        reader, writer = await asyncio.open_connection("127.0.0.1", self._peer.port)
        total = 0
        try:
            for index in range(num_sent):
                total += index
                is_last = index == num_requests - 1
                writer.write(request_of(number, index, is_start=index == 0, is_end=is_last))
                if is_cut and index == num_sent - 1 and self._random.random() < 0.5:
                    break  # nobody reads the answer
                status, answer = await read_reply(reader)
                if status != 200 or answer["outputs"][0]["data"] != [total]:
                    self.errors.append(
                        f"sequence {number}, request {index}: {status} {answer}, expected {total}"
                    )
                    return
        finally:
            self.num_cut += is_cut
            writer.transport.abort() if is_cut else writer.close()


def request_of(number: int, x: int, *, is_start: bool, is_end: bool, output: str = "SUM") -> bytes:
    """Return a whole HTTP request."""
    body = json.dumps(
        {
            "parameters": {"sequence_id": number, "sequence_start": is_start, "sequence_end": is_end},
            "inputs": [{"name": "X", "shape": [1, 1], "datatype": "INT32", "data": [x]}],
            "outputs": [{"name": output}],
        }
    ).encode()
    head = f"POST /v2/models/accumulate/infer HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


async def read_reply(reader: asyncio.StreamReader) -> tuple[int, dict]:
    """Return the status and the JSON of one HTTP reply."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    length = int(re.search(r"(?i)content-length: (\d+)", head)[1])
    return int(head.split(" ", 2)[1]), json.loads(await reader.readexactly(length))


async def num_kept(peer: Peer, number: int) -> int:
    """Ask the model how many sums it keeps."""
    reader, writer = await asyncio.open_connection("127.0.0.1", peer.port)
    writer.write(request_of(number, 0, is_start=True, is_end=True, output="KEPT"))
    _, answer = await read_reply(reader)
    writer.close()
    return answer["outputs"][0]["data"][0]


def num_live(metrics_port: int) -> int:
    """Return how many sequences the server knows, by its metrics."""
    with urllib.request.urlopen(f"http://127.0.0.1:{metrics_port}/metrics", timeout=10) as reply:
        found = re.search(r'(?m)^bireme_sequences\{.*model="accumulate".*\} (\d+)$', reply.read().decode())
    return int(found[1])


async def soak(peer: Peer, metrics_port: int, num_sequences: int) -> bool:
    """Print memory as the sequences go by; whether nothing was left and nothing went wrong."""
    work = Soak(peer, num_sequences)
    rows = []

    def note(label: str) -> None:
        (_, own, shared, descriptors), *workers = memory(peer)
        rows.append(
            [
                label,
                f"{num_live(metrics_port)}",
                f"{own:.1f}",
                f"{shared:.1f}",
                f"{sum(worker[1] for worker in workers):.1f}",
                f"{descriptors}",
            ]
        )

    start_s = time.monotonic()
    running = asyncio.ensure_future(work.run())
    for sample in range(NUM_SAMPLES):
        while work.num_done < num_sequences * sample // NUM_SAMPLES and not running.done():  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        note(f"{work.num_done:,}")
    await running
    took_s = time.monotonic() - start_s
    await asyncio.sleep(2 * SOAK_IDLE_US / 1e6 + 1)
    note("silence")
    kept, live = await num_kept(peer, num_sequences + 1), num_live(metrics_port)
    header = ["sequences", "live", "server MB", "its shared", "workers MB", "descriptors"]
    print_rows(
        f"{num_sequences:,} sequences, {work.num_cut:,} of them cut, {NUM_AT_ONCE} at a time", header, rows
    )
    console.print(f"{took_s:.0f} s; {len(work.errors)} errors", *work.errors[:3])
    console.print(f"left: {live} sequences, {kept} sums in the model")
    return not work.errors and not live and not kept


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--protocols", default="grpc,http")
    parser.add_argument("--concurrency", type=int, default=64)
    parser.add_argument(
        "--soak", type=int, default=0, metavar="N", help="run N sequences, and cut a third of them"
    )
    args = parser.parse_args()
    console.print(f"{os.cpu_count()} cores, Python {sys.version.split()[0]}\n")
    if args.soak:
        with tempfile.TemporaryDirectory() as folder:
            repository = shutil.copytree(SEQUENCE_MODELS, Path(folder) / "models")
            config = repository / "accumulate" / "config.pbtxt"
            config.write_text(
                re.sub(r"(idle_microseconds: )\d+", rf"\g<1>{SOAK_IDLE_US}", config.read_text())
            )
            (metrics_port,) = free_ports(1)
            with bireme(repository, f"--metrics-port={metrics_port}") as ours:
                is_clean = asyncio.run(soak(ours, metrics_port, args.soak))
        sys.exit(not is_clean)
    with bireme(SEQUENCE_MODELS) as ours, triton(SEQUENCE_MODELS) as theirs:
        bench_throughput(ours, theirs, args.protocols.split(","), args.concurrency, args.rounds)


if __name__ == "__main__":
    main()
