"""Servers of fake models with a response cache, and the questions that tests ask them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np

from bireme import Server
from bireme.testing import FakeBackend
from bireme.types import InferenceRequest, Tensor

CACHED = "response_cache { enable: true }"
BATCHED = f"{CACHED} max_batch_size: 4 dynamic_batching {{ preserve_ordering: true }}"
LOCAL = {"local": {"size": 10_000_000}}
LARGE = np.ones(200_000, np.float32)
"""Its key is made on a thread."""


def serve(
    root: Any,
    scenario: Callable[[Server, FakeBackend], Awaitable[None]],
    backend: FakeBackend | None = None,
    cache: Any = LOCAL,
    **options: Any,
) -> None:
    async def main() -> None:
        fake = backend or FakeBackend(lambda inputs: {"Y": inputs["X"] * 2})
        async with Server(root, backends={"fake": fake}, cache_config=cache, **options) as server:
            try:
                await scenario(server, fake)
            finally:
                fake.gate.set()

    asyncio.run(main())


def figures(server: Server, name: str = "m") -> dict[str, int]:
    (found,) = server.model_statistics(name)["model_stats"]
    counts = {key: value["count"] for key, value in found["inference_stats"].items()}
    return counts | {"inferences": found["inference_count"], "executions": found["execution_count"]}


async def ask(server: Server, value: Any = (1, 2), name: str = "m", **settings: Any) -> list[float]:
    x = np.asarray(value, np.float32)
    return (await server.ainfer(name, {"X": x}, **settings))["Y"].tolist()


def submit(server: Server, value: Any, answers: list[Any], name: str = "m") -> InferenceRequest:
    tensor = Tensor.from_numpy("X", np.asarray(value, np.float32))
    request = InferenceRequest(name, {"X": tensor}, lambda _, response: answers.append(response))
    server.submit(request)
    return request
