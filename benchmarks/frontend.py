"""What the HTTP front end costs per request, without sockets and without models: one row per kind of request.

    python -m benchmarks.frontend [--repeat N]

Each request goes from the transport's buffer to the engine's `submit` and back to the transport's `write`; the engine is
one that answers at once with arrays that are there already. Microseconds of one core; the best of several rounds.
"""

from __future__ import annotations

import argparse
import gc
import time

import numpy as np
from benchmarks.timing import CannedServer, NullTransport  # which puts the tests' folder on the path

from http_fakes import Client, EchoRoute, Scene, post_infer, request

ROUNDS = 7


def measure(client: Client, data: bytes, num_requests: int) -> float:
    """Return microseconds per request."""
    client.connection._transport = NullTransport()
    connection = client.connection
    num_bytes = len(data)
    buffer = connection.get_buffer(-1)
    if num_bytes > len(buffer):

        def ask() -> None:
            client.send(data)

    else:

        def ask() -> None:
            target = connection.get_buffer(-1)
            target[:num_bytes] = data
            connection.buffer_updated(num_bytes)

    best = float("inf")
    gc.collect()
    gc.freeze()
    for _ in range(ROUNDS):
        start = time.perf_counter()
        for _ in range(num_requests):
            ask()
        best = min(best, time.perf_counter() - start)
    return best / num_requests * 1e6


def cases() -> dict[str, tuple[Client, bytes, int]]:
    """Return client, request and divisor of the number of requests for every row."""
    small = np.arange(16, dtype=np.float32)
    large = np.zeros(1_500_000, dtype=np.float32)
    add = CannedServer(OUTPUT0=small, OUTPUT1=small)
    big = CannedServer(Y=large)
    headers = {"User_Agent": "libcurl/8", "Accept": "*/*", "Content_Type": "application/octet-stream"}

    def item(name: str, array: np.ndarray, *, binary: bool) -> dict:
        described = {"name": name, "datatype": "FP32", "shape": list(array.shape)}
        if binary:
            return described | {"parameters": {"binary_data_size": array.nbytes}}
        return described | {"data": array.tolist()}

    def body(names, array, *, binary, outputs):
        return {
            "inputs": [item(name, array, binary=binary) for name in names],
            "outputs": [{"name": name, "parameters": {"binary_data": binary}} for name in outputs],
        }

    both = ("INPUT0", "INPUT1")
    out = ("OUTPUT0", "OUTPUT1")
    binary_add = post_infer(
        body(both, small, binary=True, outputs=out), small.tobytes(), small.tobytes(), **headers
    )
    json_add = post_infer(body(both, small, binary=False, outputs=out), **headers)
    binary_6mb = post_infer(body(("X",), large, binary=True, outputs=("Y",)), large.tobytes(), **headers)
    uncached = Scene(add)
    uncached.client.connection._find_head = lambda data: None
    return {
        "framing alone (echo 1 KB)": (
            Client(lambda head: EchoRoute(1 << 20)),
            request("/echo", bytes(1024), headers={"User-Agent": "libcurl/8", "Accept": "*/*"}),
            1,
        ),
        "health": (Scene(add).client, request("/v2/health/ready"), 1),
        "add FP32[16], binary both ways": (Scene(add).client, binary_add, 1),
        "the same, head not seen before": (uncached.client, binary_add, 1),
        "the same, 16 requests in one read": (Scene(add).client, binary_add * 16, 16),
        "add FP32[16], JSON both ways": (Scene(add).client, json_add, 1),
        "6 MB, binary both ways": (Scene(big).client, binary_6mb, 200),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeat", type=int, default=4000, help="requests per round")
    repeat = parser.parse_args().repeat
    print(f"{'request':40} {'µs':>8}")
    for name, (client, data, divisor) in cases().items():
        per_ask = measure(client, data, max(1, repeat // divisor))
        print(f"{name:40} {per_ask / (16 if '16 requests' in name else 1):8.2f}")


if __name__ == "__main__":
    main()
