"""The official asyncio gRPC client."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import numpy as np
import pytest
import tritonclient.grpc.aio as client_library
from tritonclient.utils import InferenceServerException

from e2e_server import RunningServer, fake_config, wait_until
from grpc_calls import A, B, inputs, outputs


def run(
    scenario: Callable[[client_library.InferenceServerClient], Awaitable[None]], server: RunningServer
) -> None:
    async def with_client():
        async with client_library.InferenceServerClient(server.grpc_address) as client:
            await scenario(client)

    asyncio.run(with_client())


@pytest.mark.parametrize("algorithm", [None, "gzip", "deflate"])
def test_infer(server, algorithm):
    async def scenario(client):
        result = await client.infer(
            "add",
            inputs(INPUT0=A * 3, INPUT1=B),
            outputs=outputs("OUTPUT0"),
            request_id="my id",
            compression_algorithm=algorithm,
        )
        np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), A * 3 + B)
        assert result.get_response().id == "my id"

    run(scenario, server)


def test_many_calls_at_once(server):
    async def scenario(client):
        calls = (client.infer("add", inputs(INPUT0=A * factor, INPUT1=B)) for factor in range(50))
        for factor, result in enumerate(await asyncio.gather(*calls)):
            np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), A * factor + B)

    run(scenario, server)


def test_everything_but_inference(server):
    async def scenario(client):
        assert await client.is_server_live()
        assert await client.is_server_ready()
        assert await client.is_model_ready("add")
        assert (await client.get_server_metadata()).name == "triton"
        assert (await client.get_model_metadata("add")).name == "add"
        assert (await client.get_model_config("add")).config.name == "add"
        assert (await client.get_inference_statistics("add")).model_stats
        assert (await client.get_model_repository_index()).models
        assert "log_format" in (await client.get_log_settings()).settings
        assert not (await client.get_system_shared_memory_status()).regions
        assert not (await client.get_cuda_shared_memory_status()).regions
        with pytest.raises(InferenceServerException, match="'nothing' is not found") as caught:
            await client.get_model_config("nothing")
        assert caught.value.status() == "StatusCode.NOT_FOUND"

    run(scenario, server)


def test_load_and_unload(start_server, repository):
    own = start_server(repository, load_model=())

    async def scenario(client):
        await client.load_model("add")
        assert await client.is_model_ready("add")
        await client.unload_model("add")
        with pytest.raises(InferenceServerException, match="failed to load"):
            await client.load_model("never_heard_of")

    run(scenario, own)


def test_a_deadline_and_a_cancelled_task_drop_their_requests(start_fake):
    server, backend = start_fake({"slow": fake_config("slow")})
    backend.gate.clear()
    model = server.engine.model("slow")

    async def scenario(client):
        tasks = [asyncio.ensure_future(client.infer("slow", inputs(X=A))) for _ in range(3)]
        await asyncio.to_thread(wait_until, lambda: model.num_in_flight == 3)
        with pytest.raises(InferenceServerException) as caught:
            await client.infer("slow", inputs(X=A), client_timeout=0.05)
        assert caught.value.status() == "StatusCode.DEADLINE_EXCEEDED"
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.to_thread(wait_until, lambda: model.num_in_flight == 1)

    run(scenario, server)
    backend.gate.set()
    wait_until(lambda: model.num_in_flight == 0)
    assert len(backend.batches) == 1


def test_stream(server):
    async def requests() -> AsyncIterator[dict[str, object]]:
        for factor in range(20):
            yield {
                "model_name": "add" if factor != 7 else "nothing",
                "inputs": inputs(INPUT0=A * factor, INPUT1=B),
                "request_id": str(factor),
            }

    async def scenario(client):
        answers = [answer async for answer in client.stream_infer(requests())]
        assert len(answers) == 20
        for factor, (result, error) in enumerate(answers):
            if factor == 7:
                assert "'nothing' is not found" in error.message()
            else:
                assert result.get_response().id == str(factor)
                np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), A * factor + B)

    run(scenario, server)


def test_a_cancelled_stream_drops_its_requests(start_fake):
    server, backend = start_fake({"slow": fake_config("slow")})
    backend.gate.clear()
    model = server.engine.model("slow")

    async def requests() -> AsyncIterator[dict[str, object]]:
        for _ in range(4):
            yield {"model_name": "slow", "inputs": inputs(X=A)}

    async def scenario(client):
        answers = client.stream_infer(requests())
        taken = asyncio.ensure_future(anext(answers))
        await asyncio.to_thread(wait_until, lambda: model.num_in_flight == 4)
        answers.cancel()
        with pytest.raises(asyncio.CancelledError):
            await taken
        await asyncio.to_thread(wait_until, lambda: model.num_in_flight == 1)

    run(scenario, server)
    backend.gate.set()
    wait_until(lambda: model.num_in_flight == 0)
    assert len(backend.batches) == 1
