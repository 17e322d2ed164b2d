"""What it costs to read infer requests and to write responses in protobuf, without sockets: a table of microseconds.

Run: ``python -m benchmarks.wire_grpc``. Each figure is the best of several rounds, so that a busy machine shows less.
The last two columns are what protobuf's own classes take for the same bytes, without turning them into tensors; the one
before them counts the tensor bytes that decoding and encoding copied.
"""

from __future__ import annotations

import numpy as np
from benchmarks.timing import best_us
from rich.console import Console
from rich.table import Table

from bireme.types import InferenceRequest, InferenceResponse, Tensor
from bireme.wire import grpc as wire_grpc
from bireme.wire.grpc import known_requests
from bireme.wire.regions import NO_REGIONS

Request = wire_grpc.message_class("inference.ModelInferRequest")
Response = wire_grpc.message_class("inference.ModelInferResponse")
ALL = wire_grpc.GrpcWanted()


def respond(request: InferenceRequest, response: InferenceResponse) -> None:
    """Answer nobody."""


def make_message(arrays: dict[str, np.ndarray], *, typed: bool) -> bytes | memoryview:
    request = Request(model_name="model", id="1")
    for name, array in arrays.items():
        item = request.inputs.add(name=name, datatype="FP32", shape=array.shape)
        if typed:
            item.contents.fp32_contents.extend(array.reshape(-1))
        else:
            request.raw_input_contents.append(array.tobytes())
        request.outputs.add(name=name.replace("IN", "OUT"))
    data = request.SerializeToString()
    return data if len(data) < 1 << 16 else memoryview(bytearray(data))  # as the front end receives it


def count_copied(
    message: bytes | memoryview, arrays: dict[str, np.ndarray], response: InferenceResponse
) -> str:
    """Return how many bytes of tensors were copied on the way in and on the way out, by the addresses of buffers."""
    whole = np.frombuffer(message, np.uint8)
    request = wire_grpc.decode_infer_request(message, respond, regions=NO_REGIONS)
    inputs = [tensor.to_numpy() for tensor in request.inputs.values()]
    copied_in = sum(array.nbytes for array in inputs if not np.shares_memory(array, whole))
    pieces = wire_grpc.encode_infer_response(response, ALL).pieces
    sent = [np.frombuffer(piece, np.uint8) for piece in pieces]
    copied_out = sum(
        array.nbytes for array in arrays.values() if not any(np.shares_memory(array, piece) for piece in sent)
    )
    return f"{copied_in:,} / {copied_out:,}"


def row(label: str, arrays: dict[str, np.ndarray], *, typed: bool = False, known: bool = True) -> list[str]:
    message = make_message(arrays, typed=typed)
    plain = bytes(message)
    response = InferenceResponse(
        "model", 1, "1", [Tensor(name, "FP32", array.shape, array) for name, array in arrays.items()]
    )
    encoded = b"".join(wire_grpc.encode_infer_response(response, ALL).pieces)
    parsed = Response.FromString(encoded)

    def decode() -> object:
        if not known:
            known_requests._known.clear()
        return wire_grpc.decode_infer_request(message, respond, regions=NO_REGIONS)

    times = [
        best_us(decode),
        best_us(lambda: wire_grpc.encode_infer_response(response, ALL)),
        best_us(lambda: wire_grpc.encode_infer_response(response, ALL, final=True, stream=True)),
    ]
    floor = [best_us(lambda: Request.FromString(plain)), best_us(parsed.SerializeToString)]
    copied = count_copied(message, arrays, response)
    return [
        label,
        f"{len(message):,}",
        *(f"{time:,.1f}" for time in times),
        copied,
        *(f"{time:,.1f}" for time in floor),
    ]


def main() -> None:
    rng = np.random.default_rng(1)

    def make(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape).astype(np.float32)

    table = Table(
        "message",
        "bytes",
        "decode",
        "encode",
        "for a stream",
        "copied in / out",
        "protobuf parses",
        "serialises",
        title="wire.grpc, µs",
    )
    for column in table.columns[1:]:
        column.justify = "right"
    small = {"INPUT0": make(1, 16), "INPUT1": make(1, 16)}
    table.add_row(*row("small, 2 × FP32[1,16]", small))
    table.add_row(*row("the same, head not seen before", small, known=False))
    table.add_row(*row("the same, as typed contents", small, typed=True))
    table.add_row(*row("512 KB, FP32[131072]", {"INPUT0": make(131072)}))
    table.add_row(*row("6 MB, FP32[1572864]", {"INPUT0": make(1572864)}))
    table.add_row(*row("6 MB, as typed contents", {"INPUT0": make(1572864)}, typed=True))
    Console(width=140).print(table)


if __name__ == "__main__":
    main()
