"""MetricFamily and Metric: what models count, on a page of the server's own making."""

import gc
import logging

import pytest

from bireme.backends.python import pb_utils
from bireme.backends.python.pb_utils import MetricFamily
from bireme.types import Unavailable

BUCKETS = [0.1, 1.0, 2.5]


def page(server):
    return [line for line in "\n".join(server.metrics.lines()).splitlines() if not line.startswith("#")]


def refused(text):
    return pytest.raises(pb_utils.TritonModelException, match=text)


def test_a_counter_counts(server):
    family = MetricFamily(name="calls", description="Calls made", kind=MetricFamily.COUNTER)
    metric = family.Metric(labels={"model": "m"})
    metric.increment(2)
    metric.increment(0.5)

    assert metric.value() == 2.5
    assert page(server) == ['calls{model="m"} 2.5']
    assert "# HELP calls Calls made" in "\n".join(server.metrics.lines())
    with refused(
        "Failed to increment metric value: TRITONSERVER_METRIC_KIND_COUNTER can only be incremented"
    ):
        metric.increment(-1)


def test_a_gauge_goes_up_and_down(server):
    family = MetricFamily("level", "", MetricFamily.GAUGE)
    metric = family.Metric()
    metric.increment(2)
    metric.increment(-3)

    assert metric.value() == -1
    metric.set(7)

    assert metric.value() == 7


def test_a_histogram_observes(server):
    family = MetricFamily("sizes", "", MetricFamily.HISTOGRAM)
    metric = family.Metric(buckets=BUCKETS)
    metric.observe(0.5)
    metric.observe(2)

    assert 'sizes_bucket{le="1"} 1' in [line.replace("1.0", "1") for line in page(server)]
    assert any(line.startswith("sizes_count") and line.endswith("2") for line in page(server))


@pytest.mark.parametrize(
    ("kind", "operation", "arguments", "text"),
    [
        (
            "COUNTER",
            "set",
            (1,),
            "Failed to set metric value: TRITONSERVER_METRIC_KIND_COUNTER does not support Set",
        ),
        (
            "COUNTER",
            "observe",
            (1,),
            "Failed to observe metric value: TRITONSERVER_METRIC_KIND_COUNTER does not support Observe",
        ),
        (
            "GAUGE",
            "observe",
            (1,),
            "Failed to observe metric value: TRITONSERVER_METRIC_KIND_GAUGE does not support Observe",
        ),
        (
            "HISTOGRAM",
            "increment",
            (1,),
            "Failed to increment metric value: TRITONSERVER_METRIC_KIND_HISTOGRAM does not support Increment",
        ),
        (
            "HISTOGRAM",
            "set",
            (1,),
            "Failed to set metric value: TRITONSERVER_METRIC_KIND_HISTOGRAM does not support Set",
        ),
        (
            "HISTOGRAM",
            "value",
            (),
            "Failed to get metric value: TRITONSERVER_METRIC_KIND_HISTOGRAM does not support Value",
        ),
    ],
)
def test_what_a_kind_does_not_support(server, kind, operation, arguments, text):
    family = MetricFamily("m", "", getattr(MetricFamily, kind))
    metric = family.Metric(buckets=BUCKETS if kind == "HISTOGRAM" else None)

    with refused(f"^{text}$"):
        getattr(metric, operation)(*arguments)


def test_series_are_shared_by_labels_and_counted(server):
    first = MetricFamily("m", "", MetricFamily.GAUGE)
    second = MetricFamily("m", "", MetricFamily.GAUGE)
    one, two = first.Metric(labels={"a": "1"}), second.Metric(labels={"a": "1"})
    one.increment(1)
    two.increment(1)

    assert one.value() == 2
    del one
    gc.collect()

    assert page(server) == ['m{a="1"} 2']
    del two
    gc.collect()

    assert page(server) == []


def test_metrics_end_with_their_family(server):
    family = MetricFamily("m", "", MetricFamily.COUNTER)
    metric = family.Metric()
    del family
    gc.collect()

    assert page(server) == []
    for operation in (lambda: metric.increment(1), metric.value):
        with refused("Invalid metric operation as the corresponding 'MetricFamily' has been deleted"):
            operation()


@pytest.mark.parametrize(
    ("kind", "arguments", "text"),
    [
        ("COUNTER", {"labels": [1]}, r"Failed to create metric\. Labels must be a dictionary\."),
        ("COUNTER", {"labels": {"a": 1}}, "Labels must be str to str, found 1"),
        ("COUNTER", {"buckets": BUCKETS}, r"Failed to create metric\. Unexpected buckets found\."),
        ("GAUGE", {"buckets": BUCKETS}, "Unexpected buckets found"),
        ("HISTOGRAM", {}, r"Failed to create metric\. Missing required buckets\."),
        ("HISTOGRAM", {"buckets": (1.0,)}, r"Failed to create metric\. Buckets must be a list\."),
        ("HISTOGRAM", {"buckets": [2, 1]}, "Error when creating Metric: .*ascend"),
    ],
)
def test_metrics_that_cannot_be_made(server, kind, arguments, text):
    family = MetricFamily("m", "", getattr(MetricFamily, kind))

    with refused(text):
        family.Metric(**arguments)


def test_families_that_cannot_be_made(server):
    with refused("Error when creating MetricFamily: .*not valid"):
        MetricFamily("1", "", MetricFamily.COUNTER)
    with pytest.raises(TypeError, match=r"MetricFamily\.COUNTER"):
        MetricFamily("m", "", "counter")
    with pytest.raises(TypeError, match="must be a str"):
        MetricFamily("m", None, MetricFamily.COUNTER)


def test_refusals_of_the_server_are_told(server):
    family = MetricFamily("m", "", MetricFamily.GAUGE)
    metric = family.Metric()
    server.failure = Unavailable("gone")

    with refused("Failed to set metric value: gone"):
        metric.set(1)
    server.failure = None


def test_a_server_that_is_gone_does_not_matter_to_the_collector(server, caplog):
    caplog.set_level(logging.ERROR)
    family = MetricFamily("m", "", MetricFamily.GAUGE)
    server.failure = OSError("gone")
    del family
    gc.collect()

    assert "cannot delete a metric" in caplog.text


def test_outside_of_models_there_are_none(nowhere):
    with refused("Error when creating MetricFamily: no model"):
        MetricFamily("m", "", MetricFamily.COUNTER)
