"""The external gateway: a service beside the server that calls each model in turn, as many people write it.

    python -m benchmarks.orchestration.gateway --server 127.0.0.1:PORT --port PORT [--protocol http] [--offers ocr]

aiohttp on uvloop in front, the official asynchronous client behind. It speaks enough of KServe v2 over HTTP (raw
tensors) that the load generator of all other ways measures it as well: ``gateway_N`` calls ``step_1`` … ``step_N``.
The cascades are those of the examples: what stands between the calls is the same code as in the models.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
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

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
MAX_BODY_SIZE = 256 << 20
CLIENTS: dict[str, Any] = {"grpc": tritonclient.grpc.aio, "http": tritonclient.http.aio}

HEADERS = {"grpc": None, "http": {"Accept-Encoding": "identity"}}
"""Of each call. aiohttp, and so the official client, asks for compressed responses otherwise: several times as slow."""

Arrays = dict[str, np.ndarray]
Answer = Callable[[str, Arrays], Awaitable[Arrays]]
"""From the model's name and its inputs to its outputs."""


@contextlib.asynccontextmanager
async def chain(protocol: str, server: str) -> AsyncIterator[Answer]:
    """Yield what answers for ``gateway_N``."""
    library, headers = CLIENTS[protocol], HEADERS[protocol]
    requested = [library.InferRequestedOutput("Y")]
    async with library.InferenceServerClient(server) as client:

        async def answer(model: str, inputs: Arrays) -> Arrays:
            x = inputs["X"]
            for position in range(1, int(model.removeprefix("gateway_")) + 1):
                tensor = library.InferInput("X", list(x.shape), "FP32")
                tensor.set_data_from_numpy(x)
                result = await client.infer(f"step_{position}", [tensor], outputs=requested, headers=headers)
                x = result.as_numpy("Y")
            return {"Y": x}

        yield answer


@contextlib.asynccontextmanager
async def ocr(_: str, server: str) -> AsyncIterator[Answer]:
    """Yield what answers for ``ocr``: a picture's file to its boxes and texts."""
    sys.path.insert(0, str(EXAMPLES / "ocr"))
    from gateway import Gateway

    gateway = Gateway(server)

    async def answer(_: str, inputs: Arrays) -> Arrays:
        found = await gateway.read(inputs["PICTURE"].item())
        return {
            "BOXES": found.boxes,
            "TEXT": strings(found.texts),
            "SCORES": np.array(found.scores, np.float32),
        }

    yield answer
    await gateway.close()


@contextlib.asynccontextmanager
async def voice(_: str, server: str) -> AsyncIterator[Answer]:
    """Yield what answers for ``assistant``: a question's sound to its answer; and for ``question``: a text to sound."""
    sys.path.insert(0, str(EXAMPLES / "voice"))
    import demo
    import gateway

    async with tritonclient.grpc.aio.InferenceServerClient(server) as client:

        async def answer(model: str, inputs: Arrays) -> Arrays:
            if model == "question":
                return {"AUDIO": await demo.spoken(client, inputs["TEXT"].item().decode())}
            found = await gateway.answer(client, inputs["AUDIO"])
            texts = {name: strings([getattr(found, name.lower())]) for name in ("HEARD", "INTENT", "REPLY")}
            similarity = np.array([found.similarity], np.float32)
            return texts | {
                "SPEECH": found.speech,
                "SIMILARITY": similarity,
                "REPLY_AUDIO": found.reply_audio,
            }

        yield answer


def strings(texts: Sequence[str]) -> np.ndarray:
    return np.array([text.encode() for text in texts], np.object_)


OFFERS = {"chain": chain, "ocr": ocr, "voice": voice}


def application(opened: contextlib.AbstractAsyncContextManager[Answer]) -> web.Application:
    """Return the service; what answers is opened once there is a loop."""
    app = web.Application(client_max_size=MAX_BODY_SIZE)
    answers: list[Answer] = []

    async def connect(_: web.Application) -> AsyncIterator[None]:
        async with opened as answer:
            answers.append(answer)
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
    parser.add_argument("--protocol", choices=tuple(CLIENTS), default="grpc")
    parser.add_argument("--offers", choices=tuple(OFFERS), default="chain")
    parser.add_argument("--server", required=True)
    parser.add_argument("--port", type=int, required=True)
    args = parser.parse_args()
    uvloop.install()
    app = application(OFFERS[args.offers](args.protocol, args.server))
    web.run_app(app, host="127.0.0.1", port=args.port, print=None, access_log=None)


if __name__ == "__main__":
    main()
