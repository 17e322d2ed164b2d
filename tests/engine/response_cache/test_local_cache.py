"""LocalCache: an LRU that is bounded in bytes."""

from __future__ import annotations

from collections import OrderedDict

import pytest
from hypothesis import given, strategies as st

from bireme.engine.response_cache import CachedResponse, LocalCache
from bireme.types import InvalidArgument

LIMIT = 100


def response(nbytes: int) -> CachedResponse:
    return CachedResponse((), None, nbytes)


class Model:
    """What an LRU is, in the plainest words."""

    def __init__(self) -> None:
        self.entries: OrderedDict[bytes, CachedResponse] = OrderedDict()

    def get(self, key: bytes) -> CachedResponse | None:
        if key in self.entries:
            self.entries[key] = self.entries.pop(key)
        return self.entries.get(key)

    def put(self, key: bytes, value: CachedResponse) -> None:
        if value.nbytes > LIMIT or key in self.entries:
            return
        self.entries[key] = value
        while sum(entry.nbytes for entry in self.entries.values()) > LIMIT:
            self.entries.pop(next(iter(self.entries)))


actions = st.lists(
    st.one_of(
        st.tuples(st.just("get"), st.integers(0, 8)),
        st.tuples(st.just("put"), st.integers(0, 8), st.integers(1, 120)),
    ),
    max_size=60,
)


@given(actions)
def test_it_does_what_an_lru_of_bytes_does(steps):
    cache, model = LocalCache(LIMIT), Model()
    num_lookups = 0
    for action, name, *size in steps:
        key = bytes([name])
        if action == "put":
            cache.put(key, value := response(*size))
            model.put(key, value)
        else:
            num_lookups += 1

            assert cache.get(key) is model.get(key)

        found = cache.statistics()

        assert found.nbytes == sum(entry.nbytes for entry in model.entries.values())
        assert found.nbytes <= LIMIT
        assert found.num_entries == len(model.entries) == found.num_insertions - found.num_evictions
        assert found.num_hits + found.num_misses == num_lookups


def test_a_hit_is_the_entry_itself():
    cache = LocalCache(LIMIT)
    cache.put(b"a", entry := response(1))

    assert cache.get(b"a") is entry


def test_what_is_larger_than_the_cache_is_not_kept_and_costs_nothing_else(caplog):
    cache = LocalCache(LIMIT)
    cache.put(b"a", response(50))
    cache.put(b"b", response(LIMIT + 1))
    cache.put(b"c", response(LIMIT + 1))

    assert cache.get(b"a") is not None
    assert cache.get(b"b") is None
    assert cache.statistics().num_rejected == 2
    assert len(caplog.records) == 1
    assert "101 bytes is larger than the whole cache (100 bytes)" in caplog.text


def test_a_closed_cache_holds_nothing():
    cache = LocalCache(LIMIT)
    cache.put(b"a", response(50))
    cache.close()

    assert cache.get(b"a") is None
    assert cache.statistics().nbytes == 0


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({}, "'size' is missing"),
        ({"size": "0"}, "size is '0', expected a number of bytes from 1 on"),
        ({"size": "1M"}, "size is '1M'"),
        ({"size": "-5"}, "size is '-5'"),
        ({"size": "5", "sise": "6"}, "unknown setting 'sise', expected only 'size'"),
    ],
)
def test_wrong_settings_are_explained(settings, complaint):
    with pytest.raises(InvalidArgument, match=complaint):
        LocalCache.open(settings)
