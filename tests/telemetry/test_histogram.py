"""Histogram: each value lands in the right bucket, and wrong bounds are named."""

import pytest
from hypothesis import given, strategies as st

from bireme.telemetry.histogram import (
    DEFAULT_BOUNDS_SECONDS,
    NS_PER_MS,
    NS_PER_SECOND,
    Histogram,
    bounds_in_ns,
)
from bireme.types import InvalidArgument


@pytest.mark.parametrize(
    ("value", "bucket"), [(0, 0), (9, 0), (10, 0), (11, 1), (20, 1), (21, 2), (10**12, 2)]
)
def test_a_value_equal_to_a_bound_belongs_below_it(value, bucket):
    histogram = Histogram((10, 20))
    histogram.observe(value)

    assert histogram.counts == [int(index == bucket) for index in range(3)]


@given(st.lists(st.integers(0, 10**11)))
def test_count_and_total_are_those_of_the_values(values):
    histogram = Histogram(bounds_in_ns(DEFAULT_BOUNDS_SECONDS, NS_PER_SECOND, where="x"))
    for value in values:
        histogram.observe(value)

    assert (histogram.count, histogram.total_ns) == (len(values), sum(values))
    for index, bound in enumerate(histogram.bounds_ns):
        assert sum(histogram.counts[: index + 1]) == sum(value <= bound for value in values)


def test_bounds_are_converted_to_whole_nanoseconds():
    assert bounds_in_ns((0.1, 2.5, 100), NS_PER_MS, where="x") == (100_000, 2_500_000, 100_000_000)


def test_no_bounds_leave_one_bucket():
    histogram = Histogram(bounds_in_ns((), NS_PER_MS, where="x"))
    histogram.observe(5)

    assert histogram.counts == [1]


@pytest.mark.parametrize(
    ("bounds", "message"),
    [
        ((0.0,), "here: a bucket bound must be positive and finite, found 0"),
        ((1.0, float("inf")), "here: a bucket bound must be positive and finite, found inf"),
        ((float("nan"),), "here: a bucket bound must be positive and finite, found nan"),
        ((1.0, 1.0), "here: bucket bounds must ascend, but 1 follows 1"),
        ((2.0, 0.5), "here: bucket bounds must ascend, but 0.5 follows 2"),
    ],
)
def test_wrong_bounds_are_refused(bounds, message):
    with pytest.raises(InvalidArgument) as found:
        bounds_in_ns(bounds, NS_PER_MS, where="here")

    assert found.value.message == message
