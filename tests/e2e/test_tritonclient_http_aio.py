"""The official asyncio client."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
import tritonclient.http.aio as client_library
from tritonclient.utils import InferenceServerException

A = np.arange(16, dtype=np.float32)


def add_inputs(first: np.ndarray, *, binary: bool = True) -> list[client_library.InferInput]:
    made = []
    for name, array in (("INPUT0", first), ("INPUT1", A)):
        item = client_library.InferInput(name, list(array.shape), "FP32")
        item.set_data_from_numpy(array, binary_data=binary)
        made.append(item)
    return made


def run(scenario, server):
    async def with_client():
        async with client_library.InferenceServerClient(server.address) as client:
            await scenario(client)

    asyncio.run(with_client())


@pytest.mark.parametrize("binary", [True, False])
@pytest.mark.parametrize("algorithm", [None, "gzip", "deflate"])
def test_infer(server, binary, algorithm):
    async def scenario(client):
        result = await client.infer(
            "add",
            add_inputs(A * 3, binary=binary),
            outputs=[client_library.InferRequestedOutput("OUTPUT0", binary_data=binary)],
            request_compression_algorithm=algorithm,
            response_compression_algorithm=algorithm,
        )
        np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), A * 4)

    run(scenario, server)


def test_many_calls_at_once(server):
    async def scenario(client):
        results = await asyncio.gather(*(client.infer("add", add_inputs(A * factor)) for factor in range(50)))
        for factor, result in enumerate(results):
            np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), A * factor + A)

    run(scenario, server)


def test_everything_but_inference(server):
    async def scenario(client):
        assert await client.is_server_live()
        assert await client.is_server_ready()
        assert await client.is_model_ready("add")
        assert (await client.get_server_metadata())["name"] == "triton"
        assert (await client.get_model_metadata("add"))["name"] == "add"
        assert (await client.get_model_config("add"))["name"] == "add"
        assert (await client.get_inference_statistics("add"))["model_stats"]
        assert await client.get_model_repository_index()
        assert "log_format" in await client.get_log_settings()
        with pytest.raises(InferenceServerException, match="'nothing' is not found"):
            await client.get_model_config("nothing")

    run(scenario, server)
