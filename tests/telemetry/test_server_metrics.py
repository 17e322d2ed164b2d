"""ServerMetrics: the page as prometheus-client reads it, family by family."""

import math

import pytest
from prometheus_client import Counter, Gauge
from prometheus_client.parser import text_string_to_metric_families

from bireme import __version__
from bireme.config import ModelConfig
from bireme.config.model_config import (
    HistogramOptions,
    MetricControl,
    MetricIdentifier,
    ModelMetrics,
    ModelResponseCache,
)
from bireme.engine.response_cache.local import LocalCache
from bireme.scheduling.interface import CloseReason
from bireme.telemetry import FAILURE_REASONS, PHASES, MetricsOptions, ServerMetrics
from bireme.telemetry.host import HostSampler
from bireme.types import InvalidArgument
from telemetry_events import (
    INFER_NS,
    INPUT_NS,
    MS,
    OUTPUT_NS,
    QUEUE_NS,
    count_failure,
    count_success,
    executed,
)

TOTAL_NS = QUEUE_NS + INPUT_NS + INFER_NS + OUTPUT_NS

TRITON_FAMILIES = {
    "nv_inference_request_success": "counter",
    "nv_inference_request_failure": "counter",
    "nv_inference_count": "counter",
    "nv_inference_exec_count": "counter",
    "nv_inference_request_duration_us": "counter",
    "nv_inference_queue_duration_us": "counter",
    "nv_inference_compute_input_duration_us": "counter",
    "nv_inference_compute_infer_duration_us": "counter",
    "nv_inference_compute_output_duration_us": "counter",
    "nv_inference_pending_request_count": "gauge",
    "nv_model_load_duration_secs": "gauge",
    "nv_inference_first_response_histogram_ms": "histogram",
    "nv_inference_request_summary_us": "summary",
    "nv_inference_queue_summary_us": "summary",
    "nv_inference_compute_input_summary_us": "summary",
    "nv_inference_compute_infer_summary_us": "summary",
    "nv_inference_compute_output_summary_us": "summary",
    "nv_pinned_memory_pool_total_bytes": "gauge",
    "nv_pinned_memory_pool_used_bytes": "gauge",
    "nv_cpu_utilization": "gauge",
    "nv_cpu_memory_total_bytes": "gauge",
    "nv_cpu_memory_used_bytes": "gauge",
}
OUR_FAMILIES = {
    "bireme_requests_accepted_total": "counter",
    "bireme_requests_executing": "gauge",
    "bireme_batch_close_total": "counter",
    "bireme_batch_size": "histogram",
    **{f"bireme_inference_{phase}_seconds": "histogram" for phase in PHASES},
    "bireme_responses_total": "counter",
    "bireme_build_info": "gauge",
}


def page(metrics):
    return metrics.expose().decode()


def samples(metrics):
    """Return value by (name, labels) of the page's own lines; the names are as printed, not as the parser bends them."""
    found = {}
    for line in page(metrics).splitlines():
        if not line.startswith("#"):
            name, value = line.rsplit(" ", 1)
            assert name not in found, f"{name} twice"
            found[name] = float(value)
    return found


BATCHING = ModelConfig(max_batch_size=8)


def shown(metrics, config=BATCHING, *, name="m", version=1):
    statistics = metrics.new_statistics(name, version, config)
    metrics.add_model(statistics)
    return statistics


def of_family(metrics, name):
    return {key: value for key, value in samples(metrics).items() if key.startswith(name)}


def controls(*families):
    """Return a config whose model_metrics set the buckets of some families."""
    return ModelConfig(
        model_metrics=ModelMetrics(
            tuple(
                MetricControl(MetricIdentifier(family), HistogramOptions(buckets))
                for family, buckets in families
            )
        )
    )


def test_every_family_is_there_before_any_model():
    headers = dict(
        line.removeprefix("# TYPE ").split()
        for line in page(ServerMetrics()).splitlines()
        if line.startswith("# TYPE")
    )

    assert headers.items() >= {**TRITON_FAMILIES, **OUR_FAMILIES}.items()
    assert "model=" not in page(ServerMetrics())


def test_the_page_is_what_prometheus_expects():
    """The parser also refuses a second header and samples outside their family."""
    metrics = ServerMetrics(MetricsOptions(histogram_latencies=True, summary_latencies=True))
    for name in ("a", "b"):
        count_success(shown(metrics, name=name), executed(2))
    metrics.responses("http")[200] += 1

    families = list(text_string_to_metric_families(page(metrics)))
    assert len({family.name for family in families}) == len(families)
    for family in families:
        assert family.documentation
        assert family.type != "unknown"
    assert page(metrics).endswith("\n")


def test_counters_keep_tritons_names_and_have_no_decimals():
    metrics = ServerMetrics()
    statistics = shown(metrics)
    count_success(statistics, executed(1, 3))
    count_success(statistics, executed(2))
    statistics.accept()

    lines = page(metrics).splitlines()
    labels = '{model="m",version="1"}'
    for line in (
        f"nv_inference_request_success{labels} 3",
        f"nv_inference_count{labels} 6",
        f"nv_inference_exec_count{labels} 2",
        f"nv_inference_request_duration_us{labels} {3 * TOTAL_NS // 1000}",
        f"nv_inference_queue_duration_us{labels} {3 * QUEUE_NS // 1000}",
        f"nv_inference_compute_input_duration_us{labels} {3 * INPUT_NS // 1000}",
        f"nv_inference_compute_infer_duration_us{labels} {3 * INFER_NS // 1000}",
        f"nv_inference_compute_output_duration_us{labels} {3 * OUTPUT_NS // 1000}",
        f"nv_inference_pending_request_count{labels} 1",
        f"bireme_requests_accepted_total{labels} 4",
        f"bireme_requests_executing{labels} 0",
    ):
        assert line in lines


def test_microseconds_are_cut_once_and_not_per_request():
    metrics = ServerMetrics()
    statistics = shown(metrics)
    for _ in range(2):
        count_success(statistics, executed(1, queue_ns=1_500))

    assert of_family(metrics, "nv_inference_queue_duration_us") == {
        'nv_inference_queue_duration_us{model="m",version="1"}': 3
    }


def test_all_failure_reasons_start_at_zero_and_are_counted_apart():
    metrics = ServerMetrics()
    statistics = shown(metrics)
    key = 'nv_inference_request_failure{{model="m",reason="{}",version="1"}}'.format
    assert of_family(metrics, "nv_inference_request_failure") == {
        key(reason): 0 for reason in FAILURE_REASONS
    }

    for count, reason in enumerate(FAILURE_REASONS):
        for _ in range(count):
            count_failure(statistics, reason)
    assert of_family(metrics, "nv_inference_request_failure") == {
        key(reason): count for count, reason in enumerate(FAILURE_REASONS)
    }


def test_error_replies_count_as_backend_failures():
    """Two of three requests of a batch get an error reply, one a good one."""
    metrics = ServerMetrics()
    statistics = shown(metrics)
    execution = executed(1, 1, 1)
    for _ in execution.requests:
        statistics.accept()
    statistics.start(3)
    statistics.finish_execution(execution)
    for _ in range(2):
        statistics.fail("BACKEND", TOTAL_NS, was_pending=False)
    statistics.succeed(execution.requests[2], execution.compute_end_ns)

    found = samples(metrics)
    assert found['nv_inference_request_failure{model="m",reason="BACKEND",version="1"}'] == 2
    assert found['nv_inference_request_success{model="m",version="1"}'] == 1
    stats = statistics.to_json()["inference_stats"]
    assert (stats["fail"]["count"], stats["success"]["count"]) == (2, 1)


def test_series_appear_with_the_model_and_vanish_with_it():
    metrics = ServerMetrics()
    statistics = shown(metrics, version=7)
    assert 'model="m",version="7"' in page(metrics)

    metrics.remove_model(statistics)
    assert "model=" not in page(metrics)
    metrics.remove_model(statistics)


def test_a_swapped_model_is_shown_once_and_the_old_one_leaves_quietly():
    metrics = ServerMetrics()
    old = shown(metrics)
    count_success(old, executed(1))
    new = shown(metrics)
    metrics.remove_model(old)

    assert samples(metrics)['nv_inference_request_success{model="m",version="1"}'] == 0
    count_success(new, executed(1))
    assert samples(metrics)['nv_inference_request_success{model="m",version="1"}'] == 1


def test_metric_tags_become_labels():
    metrics = ServerMetrics()
    shown(metrics, ModelConfig(metric_tags={"team": 'a"b'}))

    assert r'nv_inference_count{_team="a\"b",model="m",version="1"} 0' in page(metrics)
    assert r'reason="OTHER",version="1"} 0' in page(metrics)


def test_a_tag_that_cannot_be_a_label_is_refused_with_its_model():
    with pytest.raises(
        InvalidArgument, match="model 'm': metric_tags key 'my-team' cannot be part of a metric label"
    ):
        ServerMetrics().new_statistics("m", 1, ModelConfig(metric_tags={"my-team": "x"}))


def test_phase_histograms_are_always_on():
    metrics = ServerMetrics()
    count_success(shown(metrics), executed(1, queue_ns=30_000, infer_ns=25_000))

    found = samples(metrics)
    assert found['bireme_inference_compute_infer_seconds_bucket{model="m",version="1",le="2.5e-05"}'] == 1
    assert found['bireme_inference_queue_seconds_bucket{model="m",version="1",le="2.5e-05"}'] == 0
    assert found['bireme_inference_queue_seconds_bucket{model="m",version="1",le="5e-05"}'] == 1
    assert found['bireme_inference_queue_seconds_bucket{model="m",version="1",le="10"}'] == 1
    assert found['bireme_inference_queue_seconds_count{model="m",version="1"}'] == 1
    assert found['bireme_inference_queue_seconds_sum{model="m",version="1"}'] == 3e-05


def test_phase_buckets_follow_the_server_and_then_the_model():
    metrics = ServerMetrics(MetricsOptions(phase_buckets_seconds=(0.5, 1)))
    statistics = metrics.new_statistics("m", 1, controls(("bireme_inference_queue_seconds", (0.25,))))

    assert statistics.request.bounds_ns == (500 * MS, 1000 * MS)
    assert statistics.queue.bounds_ns == (250 * MS,)


def test_batches_are_counted_by_size_and_close_reason():
    metrics = ServerMetrics()
    statistics = shown(metrics, ModelConfig(max_batch_size=6))
    for rows, reason in ((1, CloseReason.DELAY), (5, CloseReason.FULL), (6, CloseReason.FULL)):
        count_success(statistics, executed(rows, close_reason=reason))

    found = of_family(metrics, "bireme_batch")
    buckets = {key.split('le="')[1][:-2]: value for key, value in found.items() if "_bucket" in key}
    assert buckets == {"1": 1, "2": 1, "4": 1, "6": 3, "+Inf": 3}
    assert found['bireme_batch_size_sum{model="m",version="1"}'] == 12
    assert found['bireme_batch_close_total{model="m",reason="full",version="1"}'] == 2
    assert found['bireme_batch_close_total{model="m",reason="delay",version="1"}'] == 1
    assert found['bireme_batch_close_total{model="m",reason="shape",version="1"}'] == 0


@pytest.mark.parametrize(
    ("max_batch_size", "bounds"),
    [(0, ["1"]), (1, ["1"]), (2, ["1", "2"]), (8, ["1", "2", "4", "8"]), (9, ["1", "2", "4", "8", "9"])],
)
def test_batch_size_buckets_end_at_the_maximum(max_batch_size, bounds):
    metrics = ServerMetrics()
    shown(metrics, ModelConfig(max_batch_size=max_batch_size))

    found = [key.split('le="')[1][:-2] for key in of_family(metrics, "bireme_batch_size_bucket")]
    assert found == [*bounds, "+Inf"]


def test_first_response_histogram_is_off_by_default():
    metrics = ServerMetrics()
    count_success(shown(metrics), executed(1))

    assert of_family(metrics, "nv_inference_first_response_histogram_ms") == {}


def test_first_response_histogram_counts_errors_too():
    metrics = ServerMetrics(MetricsOptions(histogram_latencies=True))
    statistics = shown(metrics)
    count_success(statistics, executed(1, queue_ns=0, input_ns=0, infer_ns=100 * MS, output_ns=0))
    count_failure(statistics, "REJECTED", 300 * MS)

    name = "nv_inference_first_response_histogram_ms"
    assert list(of_family(metrics, name).values()) == [1, 2, 2, 2, 2, 2, 400]
    assert f'{name}_bucket{{model="m",version="1",le="5000"}} 2' in page(metrics)


def test_first_response_buckets_are_settable_per_model():
    metrics = ServerMetrics(MetricsOptions(histogram_latencies=True))
    shown(metrics, controls(("nv_inference_first_response_histogram_ms", (0.5, 10))))

    found = [key for key in of_family(metrics, "nv_inference_first_response") if "_bucket" in key]
    assert [key.split('le="')[1][:-2] for key in found] == ["0.5", "10", "+Inf"]


def test_a_control_without_options_changes_nothing():
    config = ModelConfig(
        model_metrics=ModelMetrics((MetricControl(MetricIdentifier("bireme_inference_queue_seconds")),))
    )

    assert len(ServerMetrics().new_statistics("m", 1, config).queue.bounds_ns) == 18


def test_wrong_buckets_name_model_and_family():
    with pytest.raises(InvalidArgument) as found:
        ServerMetrics().new_statistics("m", 1, controls(("bireme_inference_queue_seconds", (2, 1))))

    assert found.value.message == (
        "model 'm': model_metrics of 'bireme_inference_queue_seconds': bucket bounds must ascend, but 1 follows 2"
    )


def test_buckets_of_an_unknown_family_are_ignored_with_a_warning(caplog):
    ServerMetrics().new_statistics("m", 1, controls(("nv_typo", (1,))))

    assert "model 'm': metric family 'nv_typo' has no settable buckets; ignored" in caplog.text


def test_summaries_show_count_sum_and_quantiles_of_the_last_minute():
    now_ns = [1_000 * MS]
    options = MetricsOptions(summary_latencies=True, summary_quantiles=((0.5, 0.05), (0.999, 0.001)))
    metrics = ServerMetrics(options, clock_ns=lambda: now_ns[0])
    statistics = shown(metrics)
    count_failure(statistics, "OTHER", 7)
    for queue_us in (100, 200, 240):
        count_success(statistics, executed(1, queue_ns=queue_us * 1000 + 999))

    name, labels = "nv_inference_queue_summary_us", 'model="m",version="1"'
    expected = {
        f"{name}_count{{{labels}}}": 3,
        f"{name}_sum{{{labels}}}": 540,
        f'{name}{{{labels},quantile="0.5"}}': 200,
        f'{name}{{{labels},quantile="0.999"}}': 240,
    }
    assert of_family(metrics, name) == expected

    now_ns[0] += 120_000 * MS
    assert f'{name}{{{labels},quantile="0.5"}} Nan\n' in page(metrics)
    assert f"{name}_count{{{labels}}} 3\n" in page(metrics)


def test_a_model_with_a_response_cache_has_no_request_summary():
    metrics = ServerMetrics(MetricsOptions(summary_latencies=True))
    metrics.show_cache(LocalCache(1000))
    count_success(shown(metrics, ModelConfig(response_cache=ModelResponseCache(enable=True))), executed(1))

    assert of_family(metrics, "nv_inference_request_summary_us") == {}
    assert of_family(metrics, "nv_inference_queue_summary_us_count").popitem()[1] == 1


def test_without_summaries_and_histograms_requests_have_no_observer():
    assert ServerMetrics().new_statistics("m", 1, ModelConfig()).observer is None


def test_counter_latencies_off_hides_every_counter_of_tritons():
    """Triton then stops all per-model counters, not only the latencies; ours are not shown rather than shown wrong."""
    metrics = ServerMetrics(MetricsOptions(counter_latencies=False))
    count_success(shown(metrics), executed(1))

    names = {key.partition("{")[0] for key in of_family(metrics, "nv_")}
    assert names == {
        "nv_inference_pending_request_count",
        "nv_model_load_duration_secs",
        "nv_pinned_memory_pool_total_bytes",
        "nv_pinned_memory_pool_used_bytes",
        "nv_cpu_utilization",
        "nv_cpu_memory_total_bytes",
        "nv_cpu_memory_used_bytes",
    }


def test_load_duration_is_in_fractional_seconds():
    metrics = ServerMetrics()
    shown(metrics).load_duration_ns = 1_250 * MS

    assert 'nv_model_load_duration_secs{model="m",version="1"} 1.25\n' in page(metrics)


def test_host_metrics_come_from_the_sampler():
    def read(path):
        return "cpu 1 0 0 1 0 0 0 0" if path == "/proc/stat" else "MemTotal: 10 kB\nMemAvailable: 4 kB\n"

    found = page(ServerMetrics(host=HostSampler(0, read=read)))
    assert "\nnv_cpu_utilization 0\n" in found
    assert "\nnv_cpu_memory_total_bytes 10240\n" in found
    assert "\nnv_cpu_memory_used_bytes 6144\n" in found


def test_host_metrics_without_a_readable_machine_are_headers_only():
    def read(path):
        raise FileNotFoundError(path)

    metrics = ServerMetrics(host=HostSampler(0, read=read))
    assert "# TYPE nv_cpu_utilization gauge" in page(metrics)
    assert of_family(metrics, "nv_cpu") == {}


def test_host_metrics_can_be_switched_off():
    assert "nv_cpu" not in page(ServerMetrics(MetricsOptions(cpu_metrics=False)))


def test_responses_are_counted_by_front_end_and_status():
    metrics = ServerMetrics()
    counts = metrics.responses("http")
    for status in (200, 400, 200):
        counts[status] += 1

    assert metrics.responses("http") is counts
    assert of_family(metrics, "bireme_responses_total") == {
        'bireme_responses_total{code="200",protocol="http"}': 2,
        'bireme_responses_total{code="400",protocol="http"}': 1,
    }


def test_the_build_is_told():
    assert f'version="{__version__}"}} 1\n' in page(ServerMetrics())


def test_metrics_of_others_are_on_the_page_without_decimals():
    metrics = ServerMetrics()
    Gauge("my_depth", "How deep", ["model"], registry=metrics.registry).labels("m").set(3)
    Counter("my_tokens", "How many", registry=metrics.registry).inc(5)

    lines = page(metrics).splitlines()
    assert 'my_depth{model="m"} 3' in lines
    assert "my_tokens_total 5" in lines
    assert any(line.startswith("process_resident_memory_bytes ") for line in lines)


def test_two_servers_share_nothing():
    first, second = ServerMetrics(), ServerMetrics()
    shown(first)

    assert "model=" not in page(second)
    assert not math.isnan(samples(second)["process_start_time_seconds"])
