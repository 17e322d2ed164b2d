"""Caches that others write: found by an entry point, slow, shared, broken."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from bireme import Server
from bireme.engine.response_cache import CachedResponse, registry
from bireme.telemetry.cache_metrics import CacheStatistics
from bireme.testing import FakeBackend
from bireme.types import InvalidArgument
from cached_servers import CACHED, ask, figures, serve, submit
from model_dirs import add_fake_model, touch, until


class SlowCache:
    """Answers when the test says so, on the threads that ask."""

    may_block = True
    is_shared = True
    is_away = False

    def __init__(self, settings: Any) -> None:
        self.settings = settings
        self.entries: dict[bytes, CachedResponse] = {}
        self.error: Exception | None = None
        self.get_gate, self.put_gate = threading.Event(), threading.Event()
        self.get_gate.set()
        self.put_gate.set()
        self.is_closed = False

    def get(self, key: bytes) -> CachedResponse | None:
        self.get_gate.wait(10)
        if self.error is not None:
            raise self.error
        return self.entries.get(key)

    def put(self, key: bytes, response: CachedResponse) -> None:
        self.put_gate.wait(10)
        if self.error is not None:
            raise self.error
        self.entries[key] = response

    def statistics(self) -> CacheStatistics:
        return CacheStatistics()

    def close(self) -> None:
        self.is_closed = True


class EntryPoint:
    name = "slow"
    value = "somewhere:SlowCache"

    def __init__(self, loaded: Any) -> None:
        self._loaded = loaded

    def load(self) -> Any:
        if isinstance(self._loaded, Exception):
            raise self._loaded
        return self._loaded


@pytest.fixture
def slow(monkeypatch) -> list[SlowCache]:
    opened: list[SlowCache] = []

    def factory(settings: Any) -> SlowCache:
        opened.append(SlowCache(settings))
        return opened[-1]

    monkeypatch.setattr(registry, "entry_points", lambda group: [EntryPoint(factory)])
    return opened


def test_a_cache_comes_by_an_entry_point(tmp_path, slow):
    add_fake_model(tmp_path, "m", extra=CACHED)

    async def scenario(server: Server, fake: FakeBackend) -> None:
        await ask(server)
        await until(lambda: slow[0].entries)
        assert await ask(server) == [2, 4]
        assert len(fake.batches) == 1
        assert slow[0].settings == {"a": "1", "b": "true"}

    serve(tmp_path, scenario, cache={"slow": {"a": 1, "b": True}})
    assert slow[0].is_closed


def test_a_shared_cache_answers_another_server_with_the_same_files(tmp_path, slow):
    add_fake_model(tmp_path, "m", extra=CACHED)

    async def first(server: Server, _: FakeBackend) -> None:
        await ask(server)
        await until(lambda: slow[0].entries)

    async def second(server: Server, fake: FakeBackend) -> None:
        slow[1].entries = slow[0].entries
        await ask(server)

        assert not fake.batches

    async def third(server: Server, fake: FakeBackend) -> None:
        slow[2].entries = slow[0].entries
        await ask(server)

        assert len(fake.batches) == 1

    serve(tmp_path, first, cache={"slow": {}})
    serve(tmp_path, second, cache={"slow": {}})
    touch(tmp_path / "m" / "1" / "model.bin")
    serve(tmp_path, third, cache={"slow": {}})


def test_a_cache_that_breaks_its_word_costs_no_request(tmp_path, slow):
    add_fake_model(tmp_path, "m", extra=CACHED)

    async def scenario(server: Server, _: FakeBackend) -> None:
        slow[0].error = RuntimeError("broken")
        assert await ask(server) == [2, 4]
        assert await ask(server) == [2, 4]

    serve(tmp_path, scenario, cache={"slow": {}})


def test_answers_that_nobody_has_time_to_keep_are_dropped_and_hold_up_no_look_up(tmp_path, slow):
    add_fake_model(tmp_path, "m", extra=CACHED)

    async def scenario(server: Server, fake: FakeBackend) -> None:
        slow[0].put_gate.clear()
        try:
            for value in range(100):
                assert await ask(server, [value]) == [2 * value]
        finally:
            slow[0].put_gate.set()
        await until(lambda: len(slow[0].entries) == 64)

        assert len(fake.batches) == 100

    serve(tmp_path, scenario, cache={"slow": {}})


def test_a_slow_cache_makes_only_so_many_requests_wait(tmp_path, slow):
    add_fake_model(tmp_path, "m", extra=CACHED)

    async def scenario(server: Server, fake: FakeBackend) -> None:
        slow[0].get_gate.clear()
        answers: list[Any] = []
        try:
            for value in range(100):
                submit(server, [value], answers)
            await until(lambda: len(answers) == 36)
            assert server.model("m").num_in_flight == 64
        finally:
            slow[0].get_gate.set()
        await until(lambda: len(answers) == 100)

        assert all(answer.error is None for answer in answers)

    serve(tmp_path, scenario, cache={"slow": {}})


def test_a_cache_that_is_away_is_not_asked(tmp_path, slow):
    add_fake_model(tmp_path, "m", extra=CACHED)

    async def scenario(server: Server, fake: FakeBackend) -> None:
        slow[0].is_away = True
        await ask(server)
        await ask(server)

        assert len(fake.batches) == 2
        assert not slow[0].entries
        assert figures(server)["cache_miss"] == 0

    serve(tmp_path, scenario, cache={"slow": {}})


@pytest.mark.parametrize(
    ("config", "complaint"),
    [
        ({"lokal": {"size": 1}}, "there is no cache 'lokal', expected one of 'local', 'redis', 'slow'"),
        ({"local": {"size": 1}, "redis": {}}, "names 'local' and 'redis': there can be only one cache"),
        ({"local": {}}, "'size' is missing"),
    ],
)
def test_a_wrong_cache_stops_the_start(tmp_path, slow, config, complaint):
    async def main() -> None:
        with pytest.raises(InvalidArgument, match=complaint):
            await Server(tmp_path, cache_config=config).start()

    asyncio.run(main())


def test_a_cache_that_cannot_be_imported_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(registry, "entry_points", lambda group: [EntryPoint(ImportError("no module"))])
    with pytest.raises(InvalidArgument, match=r"cache 'slow' .* cannot be imported: ImportError: no module"):
        registry.open_cache({"slow": {}})
    monkeypatch.setattr(registry, "entry_points", lambda group: [EntryPoint(lambda settings: object())])
    with pytest.raises(InvalidArgument, match="cache 'slow' is no ResponseCache, but object"):
        registry.open_cache({"slow": {}})
