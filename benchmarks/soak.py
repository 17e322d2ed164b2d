"""Calls of random sizes at full speed for a while: do memory and descriptors of the server and its workers stay flat?"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import tritonclient.http
from benchmarks.peers import Peer, _family
from benchmarks.tables import console, print_rows

NUM_CLIENTS = 4
MAX_ELEMENTS = 2_000_000
NUM_SAMPLES = 12


class Clients:
    """Threads that call ``bls_2`` with 1 to `MAX_ELEMENTS` values, evenly over the orders of magnitude, and check the sums."""

    def __init__(self, peer: Peer) -> None:
        self._url = f"127.0.0.1:{peer.port}"
        self._stop = threading.Event()
        self.num_calls = 0
        self.errors: list[str] = []
        self._threads = [threading.Thread(target=self._run, args=(seed,)) for seed in range(NUM_CLIENTS)]
        for thread in self._threads:
            thread.start()

    def _run(self, seed: int) -> None:
        source = random.Random(seed)
        values = np.arange(MAX_ELEMENTS, dtype=np.float32)
        with tritonclient.http.InferenceServerClient(self._url) as client:
            while not self._stop.is_set():
                size = int(MAX_ELEMENTS ** source.random())
                tensor = tritonclient.http.InferInput("X", [size], "FP32")
                tensor.set_data_from_numpy(values[:size])
                try:
                    found = client.infer("bls_2", [tensor]).as_numpy("Y")
                    if not np.array_equal(found, values[:size] + 2):
                        self.errors.append(f"wrong values, size {size}")
                except tritonclient.utils.InferenceServerException as error:
                    self.errors.append(str(error))
                self.num_calls += 1

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()


def memory(peer: Peer) -> Iterator[tuple[int, float, float, int]]:
    """Yield, for the server and each of its workers: process id, own and shared memory in MB, open descriptors.

    Shared memory counts in each process that has touched it.
    """
    for pid in _family(peer.pid):
        folder = Path(f"/proc/{pid}")
        lines = (line.split() for line in (folder / "status").read_text().splitlines())
        status = {words[0]: int(words[1]) / 1e3 for words in lines if words[0] in {"RssAnon:", "RssShmem:"}}
        yield pid, status["RssAnon:"], status["RssShmem:"], len([*(folder / "fd").iterdir()])


def soak(peer: Peer, duration_s: float) -> None:
    """Print a table of memory and descriptors over time: the server, the workers that are called, and all together."""
    clients = Clients(peer)
    rows = []
    start = time.monotonic()
    for sample in range(1, NUM_SAMPLES + 1):
        time.sleep(max(0.0, start + sample * duration_s / NUM_SAMPLES - time.monotonic()))
        rows.append(_row(time.monotonic() - start, clients.num_calls, peer))
    clients.stop()
    time.sleep(5)
    rows.append(_row(time.monotonic() - start, clients.num_calls, peer, "5 s idle"))
    header = ["after", "calls", "server MB", "its shared", "workers MB", "their shared", "descriptors"]
    print_rows(f"bls_2 with 4 B to 8 MB, {NUM_CLIENTS} clients", header, rows)
    console.print(f"{len(clients.errors)} errors", *clients.errors[:3])


def _row(after_s: float, num_calls: int, peer: Peer, note: str = "") -> list[str]:
    (_, own, shared, descriptors), *workers = memory(peer)
    sums = [sum(worker[column] for worker in workers) for column in (1, 2, 3)]
    figures = (own, shared, *sums[:2])
    descriptors_text = f"{descriptors} + {sums[2]}"
    return [
        note or f"{after_s:.0f} s",
        f"{num_calls:,}",
        *(f"{figure:,.1f}" for figure in figures),
        descriptors_text,
    ]
