"""The cascade outside of the server, as it is often built: a service that calls each model over the network.

    python examples/ocr/gateway.py [--grpc localhost:8001] [--http localhost:8080]
    curl --data-binary @PICTURE.png localhost:8080/ocr

It is as quick as such a service can be in Python: async, one gRPC connection, calls side by side where they can be. What
stands between the calls is the same code as in the models. What differs: every tensor passes the network twice.
"""

from __future__ import annotations

import argparse

import numpy as np
import ocr_steps
import tritonclient.grpc.aio as triton
from aiohttp import web

MAX_PICTURE_SIZE = 64 << 20
DATATYPE = "FP32"


class Gateway:
    """Reads pictures by calling the models of a server."""

    def __init__(self, url: str) -> None:
        self._client = triton.InferenceServerClient(url)
        self._alphabet = ocr_steps.read_alphabet()

    async def read(self, content: bytes) -> ocr_steps.Found:
        """Return what the picture in a file says.

        Raises:
            BadPicture: it is none.
            InferenceServerException: the server's error.
        """
        return await ocr_steps.read_picture(self._call, ocr_steps.decode(content), self._alphabet)

    async def is_ready(self) -> bool:
        """Whether the server is."""
        return bool(await self._client.is_server_ready())

    async def close(self) -> None:
        """Close the connection."""
        await self._client.close()

    async def _call(self, model: str, array: np.ndarray) -> np.ndarray:
        tensor = triton.InferInput("x", list(array.shape), DATATYPE)
        tensor.set_data_from_numpy(array)
        output = ocr_steps.OUTPUTS[model]
        result = await self._client.infer(model, [tensor], outputs=[triton.InferRequestedOutput(output)])
        return result.as_numpy(output)


async def make_app(url: str) -> web.Application:
    """Return the service, for the server at that address."""
    gateway = Gateway(url)

    async def answer(request: web.Request) -> web.Response:
        try:
            found = await gateway.read(await request.read())
        except ocr_steps.BadPicture as error:
            return web.json_response({"error": str(error)}, status=400)
        except triton.InferenceServerException as error:
            return web.json_response({"error": error.message()}, status=502)
        return web.json_response({"BOXES": found.boxes.tolist(), "TEXT": found.texts, "SCORES": found.scores})

    async def ready(_: web.Request) -> web.Response:
        return web.Response(status=200 if await gateway.is_ready() else 503)

    async def close(_: web.Application) -> None:
        await gateway.close()

    app = web.Application(client_max_size=MAX_PICTURE_SIZE)
    app.router.add_post("/ocr", answer)
    app.router.add_get("/ready", ready)
    app.on_cleanup.append(close)
    return app


def main() -> None:
    """Serve until Ctrl-C."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--grpc", default="localhost:8001", help="the model server's gRPC address")
    parser.add_argument("--http", default="localhost:8080", help="where to listen")
    options = parser.parse_args()
    host, _, port = options.http.rpartition(":")
    web.run_app(make_app(options.grpc), host=host, port=int(port))


if __name__ == "__main__":
    main()
