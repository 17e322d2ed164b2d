"""Read streams of responses: over gRPC with the official client, and as server-sent events with plain HTTP.

python examples/python/repeat/client.py [--http localhost:8000] [--grpc localhost:8001]
"""

from __future__ import annotations

import argparse
import json
import queue
import time
import urllib.request
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import tritonclient.grpc as triton


def stream(url: str, model: str, requests: list[dict[str, np.ndarray]]) -> Iterator[triton.InferResult]:
    """Send all requests on one stream, and yield the responses as they come; request ids count from 0."""
    arrived: queue.Queue[tuple[Any, Any]] = queue.Queue()
    with triton.InferenceServerClient(url) as client:
        client.start_stream(lambda result, error: arrived.put((result, error)))
        for number, arrays in enumerate(requests):
            inputs = []
            for name, array in arrays.items():
                tensor = triton.InferInput(name, list(array.shape), "INT32")
                tensor.set_data_from_numpy(array)
                inputs.append(tensor)
            # With the empty response that carries nothing but the final mark, a client knows when all have come.
            client.async_stream_infer(model, inputs, request_id=str(number), enable_empty_final_response=True)
        open_requests = len(requests)
        while open_requests:
            result, error = arrived.get(timeout=30)
            if error is not None:
                raise error
            response = result.get_response()
            open_requests -= response.parameters["triton_final_response"].bool_param
            if response.outputs:
                yield result


def events(url: str, model: str, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the server-sent events of one request."""
    request = urllib.request.Request(
        f"http://{url}/v2/models/{model}/generate_stream", json.dumps(body).encode()
    )
    with urllib.request.urlopen(request, timeout=30) as reply:
        for line in reply:
            if line.startswith(b"data: "):
                yield json.loads(line[6:])


def main(argv: list[str] | None = None) -> None:
    """Two requests on one stream, then a square, then server-sent events."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--http", default="localhost:8000")
    parser.add_argument("--grpc", default="localhost:8001")
    args = parser.parse_args(argv)
    numbers = partial(np.array, dtype=np.int32)

    start = time.perf_counter()
    requests = [
        {"VALUES": numbers([1, 2, 3]), "DELAY_MS": numbers([100])},
        {"VALUES": numbers([10, 20, 30]), "DELAY_MS": numbers([70])},
    ]
    for result in stream(args.grpc, "repeat", requests):
        after_ms = 1e3 * (time.perf_counter() - start)
        (value,), (index,) = result.as_numpy("VALUE"), result.as_numpy("INDEX")
        print(
            f"gRPC: request {result.get_response().id}, response {index}: {value:2}   after {after_ms:.0f} ms"
        )

    answers = [int(result.as_numpy("N")[0]) for result in stream(args.grpc, "square", [{"N": numbers([4])}])]
    print(f"square of 4: {answers}")

    for event in events(args.http, "repeat", {"VALUES": [7, 8, 9], "DELAY_MS": 20}):
        print(f"event: {event['INDEX']}: {event['VALUE']}")


if __name__ == "__main__":
    main()
