"""Ensembles and the response cache: as a whole, and step by step."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from bireme import Server
from bireme.testing import FakeBackend
from cached_servers import CACHED, ask, figures, serve
from model_dirs import add_fake_ensemble, add_fake_model, touch
from thread_models import add_thread_model, execute


def add_chain(root: Any, *, cached: Iterable[str]) -> None:
    for name in ("a", "b"):
        add_fake_model(root, name, extra=CACHED if name in cached else "")
    add_fake_ensemble(root, "m", "a", "b", extra=CACHED if "m" in cached else "")


def test_an_ensemble_answers_from_the_cache_as_a_whole(tmp_path):
    add_chain(tmp_path, cached="m")

    async def scenario(server: Server, fake: FakeBackend) -> None:
        for _ in range(3):
            assert await ask(server) == [4, 8]

        assert len(fake.batches) == 2
        assert figures(server) | {"success": 3, "cache_hit": 2, "cache_miss": 1} == figures(server)
        assert 'nv_cache_num_hits_per_model{model="m",version="1"} 2\n' in server.metrics.expose().decode()

    serve(tmp_path, scenario)


def test_a_step_answers_from_the_cache_of_its_own_model(tmp_path):
    add_chain(tmp_path, cached="a")

    async def scenario(server: Server, fake: FakeBackend) -> None:
        for _ in range(3):
            assert await ask(server) == [4, 8]

        assert len(fake.batches) == 1 + 3
        assert figures(server, "a")["cache_hit"] == 2
        assert figures(server, "b")["success"] == figures(server)["success"] == 3

    serve(tmp_path, scenario)


def test_an_ensemble_forgets_when_a_model_of_its_own_is_another(tmp_path):
    add_chain(tmp_path, cached="m")
    add_fake_ensemble(tmp_path, "outer", "m", extra=CACHED)

    async def scenario(server: Server, fake: FakeBackend) -> None:
        assert await ask(server, name="outer") == [4, 8]
        fake.functions["b"] = lambda inputs: {"Y": inputs["X"] + 1}
        assert await ask(server, name="outer") == [4, 8]
        touch(tmp_path / "b" / "1" / "model.bin")
        await server.load_model("b")

        assert await ask(server, name="outer") == [3, 5]
        assert await ask(server) == [3, 5]
        assert figures(server)["cache_hit"] == 1  # what it answered as a step

    serve(tmp_path, scenario, model_control_mode="explicit", load_model=("outer",))


def test_steps_in_threads_use_their_caches(tmp_path):
    add_thread_model(tmp_path, "a", execute("x + 1"), extra=CACHED)
    add_thread_model(tmp_path, "b", execute("x * 2"))
    add_fake_ensemble(tmp_path, "m", "a", "b", "a")

    async def scenario(server: Server, _: FakeBackend) -> None:
        for _call in range(3):
            assert await ask(server, [1, 2]) == [5, 7]

        assert figures(server, "a") | {"success": 6, "cache_hit": 4, "cache_miss": 2} == figures(server, "a")
        assert figures(server, "b")["success"] == 3

    serve(tmp_path, scenario)
