"""RedisCache against a real Redis: what it finds, and what happens when Redis is slow, full or gone."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

import numpy as np
import pytest

from bireme import Server
from bireme.engine.response_cache import CachedResponse, CachedTensor, redis_cache
from bireme.engine.response_cache.redis_cache import RedisCache
from bireme.testing import FakeBackend
from bireme.types import InvalidArgument
from cached_servers import CACHED, LARGE, ask, figures, serve
from model_dirs import add_fake_model, until
from redis_process import RedisProcess, free_port, needs_redis

pytestmark = needs_redis

KEY = bytes(range(32))
QUICK = {"socket_timeout": 100, "connect_timeout": 100}


@pytest.fixture(scope="module")
def shared_redis(tmp_path_factory) -> Iterator[RedisProcess]:
    process = RedisProcess(tmp_path_factory.mktemp("redis"))
    yield process
    process.kill()


@pytest.fixture
def own_redis(tmp_path) -> Iterator[RedisProcess]:
    process = RedisProcess(tmp_path)
    yield process
    process.kill()


@pytest.fixture
def quick_pauses(monkeypatch) -> None:
    monkeypatch.setattr(redis_cache, "_FIRST_PAUSE_S", 0.05)


def open_cache(process: RedisProcess, **settings: object) -> RedisCache:
    return RedisCache.open({key: str(value) for key, value in {**process.settings, **settings}.items()})


def entry(*values: float) -> CachedResponse:
    array = np.asarray(values, np.float32)
    return CachedResponse((CachedTensor("Y", "FP32", array.shape, array),), {"p": 1}, 2000)


def test_what_was_put_comes_back(shared_redis):
    cache = open_cache(shared_redis, prefix="one:")

    assert cache.get(KEY) is None
    cache.put(KEY, entry(1, 2))
    found = cache.get(KEY)

    assert found is not None
    assert found.outputs[0].data.tolist() == [1, 2]
    assert found.parameters == {"p": 1}
    statistics = cache.statistics()
    assert (statistics.num_hits, statistics.num_misses, statistics.num_insertions) == (1, 1, 1)
    cache.close()


def test_prefixes_are_apart_and_entries_may_expire(shared_redis):
    blue, green = open_cache(shared_redis, prefix="blue:", ttl=100), open_cache(shared_redis, prefix="green:")
    blue.put(KEY, entry(1))
    green.put(KEY, entry(2))

    assert blue.get(KEY).outputs[0].data.tolist() == [1]
    assert green.get(KEY).outputs[0].data.tolist() == [2]
    assert 0 < blue._client.ttl("blue:" + KEY.hex()) <= 100
    assert green._client.ttl("green:" + KEY.hex()) == -1
    blue.close()
    green.close()


def test_a_damaged_entry_is_a_miss_and_is_said_once(shared_redis, caplog):
    cache = open_cache(shared_redis, prefix="bad:")
    cache._client.set("bad:" + KEY.hex(), b"something else")

    assert cache.get(KEY) is None
    assert cache.get(KEY) is None
    assert cache.statistics().num_errors == 2
    assert caplog.text.count("an entry is damaged") == 1
    cache.close()


def test_a_redis_that_refuses_to_store_costs_nothing_else(own_redis, caplog):
    cache = open_cache(own_redis)
    cache.put(KEY, entry(1))
    cache._client.config_set("maxmemory", 1)
    cache.put(bytes(32), entry(2))
    cache.put(bytes(32), entry(2))

    assert cache.get(KEY) is not None
    assert not cache.is_away
    assert caplog.text.count("set failed") == 1
    cache.close()


def test_a_redis_that_is_gone_is_left_alone_and_found_again(own_redis, caplog, quick_pauses):
    caplog.set_level("INFO")
    cache = open_cache(own_redis, **QUICK)
    cache.put(KEY, entry(1))
    own_redis.kill()

    assert cache.get(KEY) is None
    assert cache.is_away
    started = time.monotonic()
    for _ in range(1000):
        assert cache.get(KEY) is None
        cache.put(KEY, entry(1))
    assert time.monotonic() - started < 1
    assert cache.statistics().num_errors <= 5

    own_redis.start()
    deadline = time.monotonic() + 5
    while cache.statistics().num_insertions < 2:
        assert time.monotonic() < deadline
        cache.put(KEY, entry(3))
    assert cache.get(KEY) is not None
    assert caplog.text.count("does not answer") == 1
    assert caplog.text.count("answers again") == 1
    cache.close()


def test_a_connection_that_redis_has_closed_is_made_again(shared_redis):
    cache = open_cache(shared_redis, prefix="again:")
    cache.put(KEY, entry(1))
    other = open_cache(shared_redis)
    other._client.client_kill_filter(_type="normal", skipme=True)

    assert cache.get(KEY) is not None
    assert cache.statistics().num_errors == 0
    cache.close()
    other.close()


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"port": "1"}, "'host' is missing"),
        ({"host": "h"}, "'port' is missing"),
        ({"host": "h", "port": "x"}, "port is 'x', expected a whole number"),
        ({"host": "h", "port": "1", "tls": "true"}, "unknown setting 'tls', expected one of host"),
    ],
)
def test_wrong_redis_settings_are_explained(settings, complaint):
    with pytest.raises(InvalidArgument, match=complaint):
        RedisCache.open(settings)


def test_settings_of_tritons_are_understood(monkeypatch):
    monkeypatch.setenv("TRITONCACHE_REDIS_USERNAME", "me")
    monkeypatch.setenv("TRITONCACHE_REDIS_PASSWORD", "secret")
    cache = RedisCache.open(
        {
            "host": "h",
            "port": "6379",
            "db": "3",
            "connect_timeout": "0",
            "socket_timeout": "250",
            "pool_size": "4",
            "wait_timeout": "10",
            "tls_enabled": "true",
            "cacert": "ca.pem",
        }
    )
    known = cache._client.connection_pool.connection_kwargs

    assert (known["username"], known["password"], known["db"]) == ("me", "secret", 3)
    assert (known["socket_connect_timeout"], known["socket_timeout"]) == (None, 0.25)
    assert known["ssl_ca_certs"] == "ca.pem"
    assert "secret" not in repr(cache)
    cache.close()


# In a server


@pytest.mark.parametrize("value", [(1.0, 2.0), LARGE], ids=["small", "large"])
def test_two_servers_share_their_answers(tmp_path, shared_redis, value):
    add_fake_model(tmp_path, "m", extra=CACHED)
    config = {"redis": {**shared_redis.settings, "prefix": f"{tmp_path}:"}}

    async def scenario(server: Server, fake: FakeBackend) -> None:
        expected = (np.asarray(value, np.float32) * 2).tolist()
        assert await ask(server, value) == expected
        await until(lambda: "bireme_cache_insertions_total 1\n" in server.metrics.expose().decode())
        assert await ask(server, value) == expected
        assert figures(server)["cache_hit"] == 1
        async with Server(tmp_path, backends={"fake": fake}, cache_config=config) as other:
            assert await ask(other, value) == expected
        assert len(fake.batches) == 1

    serve(tmp_path, scenario, cache=config)


@pytest.mark.slow
def test_requests_go_on_while_redis_is_killed(tmp_path, own_redis, quick_pauses):
    add_fake_model(tmp_path, "m", extra=CACHED)

    async def scenario(server: Server, fake: FakeBackend) -> None:
        async def client(number: int) -> None:
            while not stop.is_set():
                value = float(number + counts[number] % 5)
                assert await ask(server, [value]) == [2 * value]
                counts[number] += 1

        stop = asyncio.Event()
        counts = [0] * 8
        clients = [asyncio.ensure_future(client(number)) for number in range(8)]
        await until(lambda: figures(server)["cache_hit"] > 50)
        own_redis.kill()
        await until(lambda: _num_errors(server) > 0)
        before = sum(counts)
        await until(lambda: sum(counts) > before + 500)
        own_redis.start()
        hits = figures(server)["cache_hit"]
        await until(lambda: figures(server)["cache_hit"] > hits + 50)
        stop.set()
        await asyncio.gather(*clients)

        assert figures(server)["fail"] == 0

    serve(tmp_path, scenario, cache={"redis": {**own_redis.settings, **QUICK}})


def test_a_redis_that_hangs_costs_one_time_out(tmp_path, own_redis):
    add_fake_model(tmp_path, "m", extra=CACHED)

    async def scenario(server: Server, _: FakeBackend) -> None:
        assert await ask(server, [1]) == [2]
        own_redis.pause()
        try:
            for value in range(20):
                assert await ask(server, [value]) == [2 * value]
            assert _num_errors(server) <= 3
        finally:
            own_redis.resume()

    serve(tmp_path, scenario, cache={"redis": {**own_redis.settings, **QUICK}})


def test_without_a_redis_the_server_starts_and_serves(tmp_path, caplog):
    add_fake_model(tmp_path, "m", extra=CACHED)

    async def scenario(server: Server, _: FakeBackend) -> None:
        assert await ask(server) == [2, 4]
        assert await ask(server) == [2, 4]
        assert caplog.text.count("does not answer") == 1

    serve(tmp_path, scenario, cache={"redis": {"host": "127.0.0.1", "port": free_port(), **QUICK}})


def _num_errors(server: Server) -> int:
    (line,) = [
        line
        for line in server.metrics.expose().decode().splitlines()
        if line.startswith("bireme_cache_errors_total ")
    ]
    return int(line.split()[1])
