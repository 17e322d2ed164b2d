"""CustomMetrics: what models make, share and leave behind on the metrics page."""

import math

import pytest
from prometheus_client.parser import text_string_to_metric_families

from bireme.telemetry import ServerMetrics
from bireme.telemetry.custom_metrics import CustomMetrics
from bireme.types import InvalidArgument, Unsupported

FAMILY, SERIES = 1, 2


class Model:
    """One owner, whose calls read like those of a model."""

    def __init__(self, metrics):
        self.metrics = metrics

    def __call__(self, operation, **arguments):
        return self.metrics.do(self, operation, arguments)

    def family(self, kind="counter", *, handle=FAMILY, name="calls", description="Calls made"):
        self("family", handle=handle, name=name, description=description, kind=kind)

    def series(self, labels=None, buckets=None, *, handle=SERIES, family=FAMILY):
        self("series", handle=handle, family=family, labels=labels, buckets=buckets)

    def make(self, kind="counter", labels=None, buckets=None, **family):
        self.family(kind, **family)
        self.series(labels, buckets)


@pytest.fixture
def metrics():
    return CustomMetrics()


@pytest.fixture
def model(metrics):
    return Model(metrics)


def page(metrics):
    return "\n".join(metrics.lines()).splitlines()


HEADER = ["# HELP calls Calls made", "# TYPE calls counter"]


def test_a_counter_counts(metrics, model):
    model.make(labels={"b": 'quo"te', "a": "1"})
    model("increment", handle=SERIES, value=2)
    model("increment", handle=SERIES, value=0.5)

    assert page(metrics) == [*HEADER, r'calls{a="1",b="quo\"te"} 2.5']
    assert model("value", handle=SERIES) == 2.5


def test_a_gauge_goes_both_ways(metrics, model):
    model.make("gauge")
    model("set", handle=SERIES, value=7)
    model("increment", handle=SERIES, value=-3)

    assert model("value", handle=SERIES) == 4
    assert page(metrics)[1:] == ["# TYPE calls gauge", "calls 4"]


def test_a_histogram_counts_into_its_buckets(metrics, model):
    model.make("histogram", {"x": "y"}, [1, 2.5, math.inf])
    for value in (1, 2, 2.5, 9):
        model("observe", handle=SERIES, value=value)

    assert page(metrics)[2:] == [
        'calls_bucket{x="y",le="1"} 1',
        'calls_bucket{x="y",le="2.5"} 3',
        'calls_bucket{x="y",le="+Inf"} 4',
        'calls_count{x="y"} 4',
        'calls_sum{x="y"} 14.5',
    ]


def test_what_is_no_number_lies_above_all_buckets(metrics, model):
    model.make("histogram", buckets=[1])
    model("observe", handle=SERIES, value=math.nan)

    assert page(metrics)[2:5] == ['calls_bucket{le="1"} 0', 'calls_bucket{le="+Inf"} 1', "calls_count 1"]


def test_instances_count_into_one_series_until_the_last_lets_go(metrics, model):
    other = Model(metrics)
    model.make(labels={"a": "b"})
    other.make(labels={"a": "b"}, description="Another text")
    model("increment", handle=SERIES, value=1)
    other("increment", handle=SERIES, value=1)
    model("drop_series", handle=SERIES)
    model("drop_family", handle=FAMILY)

    assert page(metrics) == [*HEADER, 'calls{a="b"} 2']
    metrics.forget(other)
    assert page(metrics) == HEADER


def test_one_instance_may_hold_a_series_twice(metrics, model):
    model.make()
    model.series(handle=3)
    model("drop_series", handle=SERIES)
    model("increment", handle=3, value=1)

    assert page(metrics) == [*HEADER, "calls 1"]


def test_a_dead_owner_leaves_no_series_and_may_come_back(metrics, model):
    model.make()
    model("increment", handle=SERIES, value=5)
    metrics.forget(model)
    metrics.forget(model)

    assert page(metrics) == HEADER
    model.make()
    assert page(metrics) == [*HEADER, "calls 0"]


def test_a_family_that_nobody_holds_may_change(metrics, model):
    model.make()
    metrics.forget(model)
    model.make("gauge", description="Other")

    assert page(metrics) == ["# HELP calls Other", "# TYPE calls gauge", "calls 0"]
    metrics.forget(model)
    model.make("gauge", description="a\\b\nc")
    assert page(metrics)[0] == r"# HELP calls a\\b\nc"


def test_metrics_are_of_no_use_after_their_family(metrics, model):
    model.make()
    model("drop_family", handle=FAMILY)

    for operation in ("increment", "set", "observe"):
        with pytest.raises(InvalidArgument, match="metric family 'calls' was deleted before its metrics"):
            model(operation, handle=SERIES, value=1)
    with pytest.raises(InvalidArgument, match="'calls' was deleted"):
        model("value", handle=SERIES)
    with pytest.raises(InvalidArgument, match="its family was deleted"):
        model.series(handle=3)
    assert page(metrics) == HEADER
    model("drop_series", handle=SERIES)
    with pytest.raises(InvalidArgument, match="does not exist any more"):
        model("value", handle=SERIES)


def test_dropping_what_is_gone_is_no_error(model):
    model("drop_series", handle=1)
    model("drop_family", handle=2)


@pytest.mark.parametrize(
    ("kind", "operation"),
    [
        ("counter", "set"),
        ("counter", "observe"),
        ("gauge", "observe"),
        ("histogram", "increment"),
        ("histogram", "set"),
        ("histogram", "value"),
    ],
)
def test_each_kind_has_its_operations(model, kind, operation):
    model.make(kind, buckets=[1] if kind == "histogram" else None)
    value = {} if operation == "value" else {"value": 1}

    with pytest.raises(Unsupported, match=f"metric 'calls': a {kind} does not support '{operation}'"):
        model(operation, handle=SERIES, **value)


def test_a_counter_never_falls(model):
    model.make()
    with pytest.raises(InvalidArgument, match="metric 'calls': a counter cannot be incremented by -1"):
        model("increment", handle=SERIES, value=-1)


@pytest.mark.parametrize(
    ("family", "text"),
    [
        ({"kind": "summary"}, "unknown kind 'summary', expected one of counter, gauge, histogram"),
        ({"name": "9lives"}, "metric family name '9lives' is not valid"),
        ({"name": ""}, "metric family name '' is not valid"),
        ({"name": "known", "kind": "gauge"}, "metric family 'known' exists as a histogram; it cannot be a gauge, too"),
        ({"name": "known_sum"}, "metric family 'known_sum': 'known_sum' belongs to the histogram 'known' already"),
        ({"handle": 77}, "metric handle 77 is in use already"),
    ],
)  # fmt: skip
def test_families_that_cannot_be(model, family, text):
    model.family("histogram", name="known", handle=77)
    with pytest.raises(InvalidArgument, match=text):
        model.family(**family)


@pytest.mark.parametrize(
    ("kind", "labels", "buckets", "text"),
    [
        ("counter", {"a-b": "x"}, None, "label name 'a-b' is not valid"),
        ("counter", {"__a": "x"}, None, "label name '__a' is not valid"),
        ("histogram", {"le": "x"}, [1], "label name 'le' is not valid"),
        ("counter", {"a": 1}, None, "label 'a' must be a string, found int"),
        ("counter", None, [1.0], "a counter has no buckets"),
        ("gauge", None, [], "a gauge has no buckets"),
        ("histogram", None, None, "a histogram needs buckets"),
        ("histogram", None, [2, 1], r"buckets must be numbers that ascend, found \[2, 1\]"),
        ("histogram", None, [1, 1], "buckets must be numbers that ascend"),
        ("histogram", None, [math.nan], "buckets must be numbers that ascend"),
    ],
)
def test_series_that_cannot_be(model, kind, labels, buckets, text):
    model.family(kind)
    with pytest.raises(InvalidArgument, match=f"metric 'calls': {text}"):
        model.series(labels, buckets)


def test_other_buckets_for_a_series_that_exists_change_nothing(metrics, model, caplog):
    model.make("histogram", buckets=[1])
    model.series(buckets=[2], handle=3)

    assert "exists with other buckets, which stay: [1.0]" in caplog.text
    assert 'calls_bucket{le="1"} 0' in page(metrics)


def test_an_unknown_operation_is_named(model):
    with pytest.raises(InvalidArgument, match="unknown metric operation 'inc', expected one of family, "):
        model("inc", handle=1)


def test_the_page_shows_them_as_prometheus_expects():
    server = ServerMetrics()
    model = Model(server.custom)
    model.make(labels={"model": "m"})
    model.family("histogram", handle=3, name="seconds")
    model.series(buckets=[0.1], handle=4, family=3)
    model("increment", handle=SERIES, value=3)

    text = server.expose().decode()
    families = [family.name for family in text_string_to_metric_families(text)]
    assert '\ncalls{model="m"} 3\n' in text
    assert len(families) == len(set(families))
    assert {"calls", "seconds"} <= set(families)


@pytest.mark.parametrize(
    "name",
    [
        "nv_inference_count",
        "nv_inference_queue_summary_us_count",
        "bireme_batch_size_bucket",
        "bireme_build_info",
        "process_cpu_seconds_total",
    ],
)
def test_the_servers_own_names_are_taken(name):
    with pytest.raises(InvalidArgument, match=f"'{name}' is a metric of the server itself"):
        Model(ServerMetrics().custom).family(name=name)
