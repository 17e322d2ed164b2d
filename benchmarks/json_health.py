"""How long a health probe waits while large JSON is on its way in or out.

    python -m benchmarks.json_health [--megabytes N] [--seconds S]

One client sends requests of N megabytes of JSON, or asks for answers of that size, one after the other; another process
asks for ``/v2/health/live`` every 2 ms.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import socket
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from benchmarks.peers import Peer, bireme

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from e2e_server import build_repository
from http_fakes import post_infer, request

PROBE = request("/v2/health/live")
PATH = "/v2/models/plus_one/infer"


def make_requests(megabytes: float) -> dict[str, bytes]:
    """Return the request of every row."""
    values = np.random.default_rng(0).random(1000, dtype=np.float32)
    bytes_per_value = len(json.dumps(values.tolist())) / values.size
    values = np.resize(values, int(megabytes * 1e6 / bytes_per_value))
    described = {"name": "X", "datatype": "FP32", "shape": [values.size]}
    in_json = {"inputs": [described | {"data": values.tolist()}]}
    in_json["outputs"] = [{"name": "Y", "parameters": {"binary_data": True}}]
    in_binary = {"inputs": [described | {"parameters": {"binary_data_size": values.nbytes}}]}
    return {
        "nothing": b"",
        f"{megabytes:g} MB JSON in": post_infer(in_json, path=PATH),
        f"{megabytes:g} MB JSON out": post_infer(in_binary, values.tobytes(), path=PATH),
    }


def ask(client: socket.socket, data: bytes) -> None:
    """Send one request and take its answer."""
    client.sendall(data)
    head, _, body = client.recv(1 << 16).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200"), head
    rest = int(head.lower().split(b"\r\ncontent-length: ")[1].split(b"\r\n")[0]) - len(body)
    while rest:
        rest -= len(client.recv(1 << 20))


def load(port: int, data: bytes, count: multiprocessing.sharedctypes.Synchronized[int]) -> None:
    """Send ``data`` again and again until killed."""
    with socket.create_connection(("127.0.0.1", port)) as client:
        while True:
            ask(client, data)
            count.value += 1


def measure(peer: Peer, data: bytes, seconds: float) -> tuple[int, np.ndarray]:
    """Return the number of large requests and the latencies of the probes in ms."""
    count = multiprocessing.Value("i", 0)
    loader = multiprocessing.Process(target=load, args=(peer.port, data, count)) if data else None
    if loader:
        loader.start()
        while not count.value:
            time.sleep(0.01)
    latencies = []
    with socket.create_connection(("127.0.0.1", peer.port)) as prober:
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            start = time.perf_counter()
            ask(prober, PROBE)
            latencies.append((time.perf_counter() - start) * 1e3)
            time.sleep(0.002)
    if loader:
        loader.kill()
        loader.join()
    return count.value, np.array(latencies)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=float, default=16)
    parser.add_argument("--seconds", type=float, default=6)
    arguments = parser.parse_args()
    rows = make_requests(arguments.megabytes)
    print(f"{'meanwhile':24} {'requests':>8} {'probes':>7} {'p50 ms':>7} {'p99 ms':>7} {'max ms':>7}")
    with tempfile.TemporaryDirectory() as folder, bireme(build_repository(Path(folder))) as peer:
        for name, data in rows.items():
            num_requests, latencies = measure(peer, data, arguments.seconds)
            p50, p99 = np.percentile(latencies, (50, 99))
            print(
                f"{name:24} {num_requests:8} {len(latencies):7} {p50:7.2f} {p99:7.2f} {latencies.max():7.2f}"
            )


if __name__ == "__main__":
    main()
