"""What it costs to read infer bodies and to write replies, without sockets: a table of microseconds.

Run: ``python -m benchmarks.wire_http``. Each figure is the best of several rounds, so that a busy machine shows less.
The last column is the floor: orjson alone over the same JSON.
"""

from __future__ import annotations

import json

import numpy as np
import orjson
from benchmarks.timing import best_us
from rich.console import Console
from rich.table import Table

from bireme.types import InferenceRequest, InferenceResponse, Tensor
from bireme.wire import http as wire_http

LIMITS = wire_http.Limits()


def respond(request: InferenceRequest, response: InferenceResponse) -> None:
    """Answer nobody."""


def make_request(arrays: dict[str, np.ndarray], *, binary: bool) -> tuple[memoryview, int]:
    inputs = []
    for name, array in arrays.items():
        item = {"name": name, "datatype": "FP32", "shape": list(array.shape)}
        if binary:
            item["parameters"] = {"binary_data_size": array.nbytes}
        else:
            item["data"] = array.flatten().tolist()
        inputs.append(item)
    outputs = [{"name": name.replace("IN", "OUT"), "parameters": {"binary_data": binary}} for name in arrays]
    text = json.dumps({"id": "1", "inputs": inputs, "outputs": outputs}).encode()
    blobs = [array.tobytes() for array in arrays.values()] if binary else []
    return memoryview(bytearray(b"".join((text, *blobs)))), len(text)


def finish(response: InferenceResponse, wanted: wire_http.WantedOutputs) -> wire_http.EncodedBody:
    body = wire_http.encode_infer_response(response, wanted)
    while not body.is_complete:
        body.advance()
    return body


def row(label: str, arrays: dict[str, np.ndarray], *, binary: bool) -> list[str]:
    body, length = make_request(arrays, binary=binary)
    response = InferenceResponse(
        "model", 1, "1", [Tensor(name, "FP32", array.shape, array) for name, array in arrays.items()]
    )
    wanted = wire_http.WantedOutputs(default_binary=binary)

    def decode() -> object:
        return wire_http.decode_infer_request(
            body, length, model_name="model", respond=respond, limits=LIMITS
        )

    times = [
        best_us(decode),
        best_us(lambda: finish(response, wanted)),
        best_us(lambda: orjson.loads(body[:length])),
    ]
    if not binary and length > 1 << 20:
        rewritten, new_length = wire_http.rewrite_as_binary(body, length, LIMITS)
        view = memoryview(rewritten)
        after = best_us(
            lambda: wire_http.decode_infer_request(
                view, new_length, model_name="model", respond=respond, limits=LIMITS
            )
        )
        label += f" (rewritten as binary: {after:.1f} to decode)"
    return [label, f"{len(body):,}", *(f"{time:,.1f}" for time in times)]


def main() -> None:
    rng = np.random.default_rng(1)

    def make(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape).astype(np.float32)

    table = Table("body", "bytes", "decode µs", "encode µs", "orjson.loads µs", title="wire.http")
    for column in table.columns[1:]:
        column.justify = "right"
    small = {"INPUT0": make(1, 16), "INPUT1": make(1, 16)}
    table.add_row(*row("small binary, 2 × FP32[1,16]", small, binary=True))
    table.add_row(*row("small JSON, 2 × FP32[1,16]", small, binary=False))
    table.add_row(*row("512 KB binary, FP32[131072]", {"INPUT0": make(131072)}, binary=True))
    table.add_row(*row("6 MB binary, FP32[1572864]", {"INPUT0": make(1572864)}, binary=True))
    table.add_row(*row("16 MB JSON, FP32[800000]", {"INPUT0": make(800_000)}, binary=False))
    Console(width=130).print(table)


if __name__ == "__main__":
    main()
