"""TensorRT models in a whole server: loaded without a config, batched across requests, and honest about GPUs."""

import asyncio
import json

import numpy as np
import pytest

from bireme import Server
from bireme.engine import lifecycle
from bireme.types import BiremeError, NotFound
from fake_tensorrt import PROFILE, X, plan, tensor


@pytest.fixture
def serve(tmp_path, monkeypatch):
    """Run a scenario against a server of one model on a machine with GPUs."""

    def run(scenario, spec, config="", *, num_gpus=2):
        monkeypatch.setattr(lifecycle, "num_gpus", lambda: num_gpus)
        version = tmp_path / "net" / "1"
        version.mkdir(parents=True, exist_ok=True)
        (version / "model.plan").write_text(json.dumps(spec))
        if config:
            (tmp_path / "net" / "config.pbtxt").write_text(config)

        async def main():
            async with Server(tmp_path, strict_readiness=False, exit_on_error=False) as server:
                return await scenario(server)

        return asyncio.run(main())

    return run


def test_a_plan_without_a_config_is_served_on_every_gpu(serve, gpu):
    async def scenario(server):
        config = server.model_config("net")
        results = await asyncio.gather(
            *(server.ainfer("net", {"x": np.full((1, 3), n, np.float32)}) for n in range(8))
        )
        return config, [result["y"] for result in results]

    config, results = serve(scenario, plan())

    assert (config["backend"], config["platform"], config["max_batch_size"]) == (
        "tensorrt",
        "tensorrt_plan",
        8,
    )
    assert [(group["kind"], group["gpus"]) for group in config["instance_group"]] == [("KIND_GPU", [0, 1])]
    np.testing.assert_array_equal(np.concatenate(results)[:, 0], np.arange(8) * 2)
    assert gpu.trt.num_engines == 2


def test_requests_share_a_batch_only_where_their_shape_tensors_agree(serve):
    size = tensor("size", "INPUT", [2], "INT32", is_shape=True, location="HOST")
    spec = plan(
        "resize",
        [X, size, tensor("y", "OUTPUT", [-1, -1])],
        [{**PROFILE, "size": [[1, 1], [4, 4], [8, 100]]}],
    )

    async def scenario(server):
        def ask(length):
            inputs = {"x": np.ones((1, 3), np.float32), "size": np.array([[length]], np.int32)}
            return server.ainfer("net", inputs)

        return [
            result["y"].shape for result in await asyncio.gather(*(ask(length) for length in (5, 9, 5, 9)))
        ]

    config = "dynamic_batching { max_queue_delay_microseconds: 1000 } instance_group { count: 1 gpus: 0 }"
    assert serve(scenario, spec, config) == [(1, 5), (1, 9), (1, 5), (1, 9)]


def test_the_groups_profiles_reach_its_instances(serve):
    profiles = [PROFILE, {"x": [[8, 3], [16, 3], [32, 3]]}]

    async def scenario(server):
        return (await server.ainfer("net", {"x": np.ones((20, 3), np.float32)}))["y"].shape

    config = 'instance_group { count: 1 gpus: 0 profile: [ "0", "1" ] }'
    assert serve(scenario, plan(profiles=profiles), config) == (20, 3)


def test_a_batch_that_is_too_large_is_the_callers_mistake(serve):
    async def scenario(server):
        with pytest.raises(BiremeError, match="batch-size must be <= 8 for 'net', got 9"):
            await server.ainfer("net", {"x": np.ones((9, 3), np.float32)})

    serve(scenario, plan())


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ("", "TensorRT backend supports only GPU device, and an instance group is KIND_CPU"),
        ("instance_group { kind: KIND_GPU }", "has kind KIND_GPU but no GPUs are available"),
    ],
)
def test_without_a_gpu_the_model_does_not_load_and_says_why(serve, config, message):
    async def scenario(server):
        with pytest.raises(NotFound, match=message):
            await server.ainfer("net", {"x": np.ones((1, 3), np.float32)})

    serve(scenario, plan(), config, num_gpus=0)
