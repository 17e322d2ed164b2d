"""The text format: values, labels and histograms read back by prometheus-client as they were meant."""

import math

import pytest
from hypothesis import given, strategies as st
from prometheus_client.parser import text_string_to_metric_families

from bireme.telemetry.exposition import (
    bucket_prefixes,
    format_labels,
    format_value,
    header,
    histogram_lines,
    is_label_name,
    without_decimals,
)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (3, "3"),
        (3.0, "3"),
        (-2.0, "-2"),
        (2**70, "1180591620717411303424"),
        (0.25, "0.25"),
        (2.5e-05, "2.5e-05"),
        (1e300, "1e+300"),
        (float("nan"), "Nan"),
        (float("inf"), "+Inf"),
        (float("-inf"), "-Inf"),
    ],
)
def test_integers_have_no_decimals(value, text):
    assert format_value(value) == text


@given(st.floats() | st.integers(-(2**53), 2**53))
def test_values_survive_the_format(value):
    found = float(format_value(value))

    assert found == value or (math.isnan(found) and math.isnan(value))


LABEL_NAMES = st.from_regex(r"[a-zA-Z_][a-zA-Z0-9_]{0,8}", fullmatch=True)


# Prometheus keeps names that begin with two underscores for itself, and its parser refuses them.
@given(st.dictionaries(LABEL_NAMES.filter(lambda name: not name.startswith("__")), st.text(), min_size=1))
def test_labels_survive_the_format(labels):
    page = f"# TYPE x gauge\nx{{{format_labels(labels)}}} 1\n"

    (family,) = text_string_to_metric_families(page)
    assert family.samples[0].labels == labels


def test_labels_are_sorted_and_escaped():
    assert format_labels({"model": "m", "_tag": 'a"b\\c\nd'}) == r'_tag="a\"b\\c\nd",model="m"'


@pytest.mark.parametrize(
    ("name", "is_good"), [("_team", True), ("a1", True), ("1a", False), ("a-b", False), ("", False)]
)
def test_label_names(name, is_good):
    assert is_label_name(name) is is_good


@pytest.mark.parametrize("labels", ["", 'model="m"'])
def test_a_histogram_is_cumulative(labels):
    prefixes = bucket_prefixes("h", labels, [0.5, 1.0])
    page = "\n".join([header("h", "histogram", "help"), *histogram_lines(prefixes, [2, 0, 3], 7.5), ""])

    (family,) = text_string_to_metric_families(page)
    found = {(sample.name, sample.labels.get("le")): sample.value for sample in family.samples}
    assert found == {
        ("h_bucket", "0.5"): 2,
        ("h_bucket", "1"): 2,
        ("h_bucket", "+Inf"): 5,
        ("h_count", None): 5,
        ("h_sum", None): 7.5,
    }


def test_foreign_values_lose_their_decimals_and_nothing_else():
    page = '# HELP x about 1.0\n# TYPE x gauge\nx{v="1.0"} 12.0\nx 2.5e+09\nx 0.5\nx NaN\nx +Inf\n'

    assert without_decimals(page) == (
        '# HELP x about 1.0\n# TYPE x gauge\nx{v="1.0"} 12\nx 2500000000\nx 0.5\nx NaN\nx +Inf\n'
    )
