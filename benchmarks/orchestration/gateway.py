"""The external gateway: a service beside the server that calls each model in turn, as many people write it.

    python -m benchmarks.orchestration.gateway --protocol grpc|http --server 127.0.0.1:PORT --port PORT

aiohttp on uvloop in front, the official asynchronous client behind. It speaks enough of KServe v2 over HTTP (raw
tensors) that the load generator of all other ways measures it as well: ``gateway_N`` calls ``step_1`` … ``step_N``.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
import tritonclient.grpc.aio
import tritonclient.http.aio
import uvloop
from aiohttp import web
from tritonclient.utils import (
    deserialize_bytes_tensor,
    np_to_triton_dtype,
    serialize_byte_tensor,
    triton_to_np_dtype,
)

MAX_BODY_SIZE = 256 << 20
CLIENTS: dict[str, Any] = {"grpc": tritonclient.grpc.aio, "http": tritonclient.http.aio}

Arrays = dict[str, np.ndarray]
Answer = Callable[[str, Arrays], Awaitable[Arrays]]
"""From the model's name and its inputs to its outputs."""


def chain(client: Any, library: Any) -> Answer:
    """Return what answers for ``gateway_N``."""
    requested = [library.InferRequestedOutput("Y")]

    async def answer(model: str, inputs: Arrays) -> Arrays:
        x = inputs["X"]
        for position in range(1, int(model.removeprefix("gateway_")) + 1):
            tensor = library.InferInput("X", list(x.shape), "FP32")
            tensor.set_data_from_numpy(x)
            result = await client.infer(f"step_{position}", [tensor], outputs=requested)
            x = result.as_numpy("Y")
        return {"Y": x}

    return answer


def application(protocol: str, server: str, make_answer: Callable[[Any, Any], Answer]) -> web.Application:
    """Return the service: ``make_answer`` gets the client and its library once there is a loop."""
    app = web.Application(client_max_size=MAX_BODY_SIZE)
    library = CLIENTS[protocol]
    answers: list[Answer] = []

    async def connect(_: web.Application) -> Any:
        async with library.InferenceServerClient(server) as client:
            answers.append(make_answer(client, library))
            yield

    async def infer(request: web.Request) -> web.Response:
        inputs = read_tensors(await request.read(), int(request.headers["Inference-Header-Content-Length"]))
        try:
            outputs = await answers[0](request.match_info["model"], inputs)
        except Exception as error:  # noqa: BLE001 - the load generator shows the text
            return web.json_response({"error": f"{type(error).__name__}: {error}"}, status=500)
        header, body = write_tensors(outputs)
        return web.Response(body=body, headers={"Inference-Header-Content-Length": str(len(header))})

    async def ready(_: web.Request) -> web.Response:
        return web.Response()

    app.cleanup_ctx.append(connect)
    app.router.add_get("/v2/health/ready", ready)
    app.router.add_post("/v2/models/{model}/infer", infer)
    return app


def read_tensors(body: bytes, header_length: int) -> Arrays:
    """Return the arrays of a request; they lie in ``body``."""
    found, at = {}, header_length
    for tensor in json.loads(body[:header_length])["inputs"]:
        nbytes = tensor["parameters"]["binary_data_size"]
        raw = memoryview(body)[at : at + nbytes]
        at += nbytes
        if tensor["datatype"] == "BYTES":
            array = deserialize_bytes_tensor(raw)
        else:
            array = np.frombuffer(raw, triton_to_np_dtype(tensor["datatype"]))
        found[tensor["name"]] = array.reshape(tensor["shape"])
    return found


def write_tensors(outputs: Arrays) -> tuple[bytes, bytes]:
    """Return a response's header, and the whole response."""
    tensors, parts = [], []
    for name, array in outputs.items():
        datatype = np_to_triton_dtype(array.dtype)
        raw = serialize_byte_tensor(array).item() if datatype == "BYTES" else array.tobytes()
        parameters = {"binary_data_size": len(raw)}
        tensors.append({"name": name, "shape": array.shape, "datatype": datatype, "parameters": parameters})
        parts.append(raw)
    header = json.dumps({"outputs": tensors}).encode()
    return header, b"".join([header, *parts])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--protocol", choices=tuple(CLIENTS), required=True)
    parser.add_argument("--server", required=True)
    parser.add_argument("--port", type=int, required=True)
    args = parser.parse_args()
    uvloop.install()
    app = application(args.protocol, args.server, chain)
    web.run_app(app, host="127.0.0.1", port=args.port, print=None, access_log=None)


if __name__ == "__main__":
    main()
