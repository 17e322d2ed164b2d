"""Hits and misses in the statistics and on the metrics page."""

from __future__ import annotations

import pytest

from bireme.config import ModelConfig
from bireme.config.model_config import ModelResponseCache
from bireme.telemetry import MetricsOptions, ServerMetrics
from bireme.telemetry.cache_metrics import CacheStatistics
from telemetry_events import MS, US, count_success, executed

CACHED = ModelConfig(max_batch_size=8, response_cache=ModelResponseCache(enable=True))


class Meter:
    """A cache as the page sees it."""

    def __init__(self, **counts: int) -> None:
        self.counts = counts

    def statistics(self) -> CacheStatistics:
        return CacheStatistics(**self.counts)


def make(*, meter: Meter | None = None, **options: object):
    now_ns = [1_000 * MS]
    metrics = ServerMetrics(MetricsOptions(**options), clock_ns=lambda: now_ns[0])
    metrics.show_cache(meter or Meter())
    statistics = metrics.new_statistics("m", 1, CACHED)
    metrics.add_model(statistics)
    return metrics, statistics


def count_hit(statistics, *, rows: int = 1, duration_ns: int = 40 * US, lookup_ns: int = 30 * US) -> None:
    (request,) = executed(rows).requests
    statistics.accept()
    statistics.hit(request, lookup_ns, request.start_ns + duration_ns)


def test_hits_are_successes_that_nothing_was_computed_for():
    _, statistics = make()
    count_success(statistics, executed(4))
    statistics.cache.miss(20 * US, 1_000 * MS)
    for _ in range(3):
        count_hit(statistics, rows=2)
    found = statistics.to_json()
    counts = found["inference_stats"]

    assert counts["success"]["count"] == counts["queue"]["count"] == 4
    assert [counts[f"compute_{phase}"]["count"] for phase in ("input", "infer", "output")] == [1, 1, 1]
    assert counts["cache_hit"] == {"count": 3, "ns": 90 * US}
    assert counts["cache_miss"] == {"count": 1, "ns": 20 * US}
    assert counts["success"]["ns"] == 732 * US + 3 * 40 * US
    assert (found["inference_count"], found["execution_count"]) == (4, 1)
    assert statistics.num_accepted == statistics.num_succeeded
    assert statistics.num_pending == statistics.num_executing == 0


def test_the_page_has_tritons_families_of_models_and_cache():
    meter = Meter(
        num_hits=3, num_misses=1, num_evictions=2, num_insertions=7, lookup_ns=5 * US, insertion_ns=6 * US
    )
    metrics, statistics = make(meter=meter)
    count_hit(statistics)
    statistics.cache.miss(20 * US, 1_000 * MS)
    lines = metrics.expose().decode().splitlines()

    for line in (
        'nv_cache_num_hits_per_model{model="m",version="1"} 1',
        'nv_cache_num_misses_per_model{model="m",version="1"} 1',
        'nv_cache_hit_duration_per_model{model="m",version="1"} 30',
        'nv_cache_miss_duration_per_model{model="m",version="1"} 20',
        "nv_cache_num_lookups 4",
        "nv_cache_num_hits 3",
        "nv_cache_num_misses 1",
        "nv_cache_num_evictions 2",
        "nv_cache_lookup_duration 5",
        "nv_cache_insertion_duration 6",
        "bireme_cache_insertions_total 7",
        "bireme_cache_errors_total 0",
    ):
        assert line in lines
    assert "# TYPE nv_cache_num_hits_per_model counter" in lines
    assert "# TYPE nv_cache_num_hits gauge" in lines


def test_a_cache_that_does_not_know_how_full_it_is_says_nothing():
    metrics, _ = make()
    page = metrics.expose().decode()

    assert "nv_cache_util" not in page
    assert "bireme_cache_bytes" not in page


@pytest.mark.parametrize("on", [False, True])
def test_summaries_of_look_ups_come_with_the_others(on):
    metrics, statistics = make(summary_latencies=on, summary_quantiles=((0.5, 0.05),))
    count_hit(statistics)
    statistics.cache.miss(20 * US, 1_000 * MS)
    page = metrics.expose().decode()

    for kind, microseconds in (("hit", 30), ("miss", 20)):
        name = f"nv_cache_{kind}_summary_per_model"
        assert (f'{name}_count{{model="m",version="1"}} 1\n' in page) is on
        assert (f'{name}_sum{{model="m",version="1"}} {microseconds}\n' in page) is on
        assert (f'{name}{{model="m",version="1",quantile="0.5"}} {microseconds}\n' in page) is on


def test_a_first_response_is_one_out_of_the_cache_too():
    _, statistics = make(histogram_latencies=True)
    count_hit(statistics)

    assert sum(statistics.observer.first_response.counts) == 1


def test_a_model_without_a_cache_has_no_series_and_a_server_without_one_no_families():
    metrics, _ = make()
    metrics.add_model(metrics.new_statistics("plain", 1, ModelConfig()))
    assert 'model="plain"' not in "".join(
        line for line in metrics.expose().decode().splitlines() if line.startswith("nv_cache")
    )

    without = ServerMetrics()
    statistics = without.new_statistics("m", 1, CACHED)
    without.add_model(statistics)
    assert statistics.cache is None
    assert "_cache_" not in without.expose().decode()
