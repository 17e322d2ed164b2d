"""SlidingQuantiles: close to the exact quantiles, and only of the last minute."""

import math

import pytest
from hypothesis import given, strategies as st

from bireme.telemetry.quantiles import WINDOW_NS, SlidingQuantiles

SECOND = 1_000_000_000
QUANTILES = (0.0, 0.5, 0.9, 0.99, 1.0)


def exact(values, quantile):
    """Return the value whose rank is ``quantile`` of the whole, rounded up."""
    return sorted(values)[max(math.ceil(quantile * len(values)), 1) - 1]


@given(st.lists(st.integers(0, 2**40), min_size=1))
def test_quantiles_are_within_four_thousandths_of_the_exact_ones(values):
    sliding = SlidingQuantiles()
    for value in values:
        sliding.observe(value, 0)

    for quantile, found in zip(QUANTILES, sliding.quantiles(QUANTILES, 0), strict=True):
        assert found == pytest.approx(exact(values, quantile), rel=0.004, abs=0)


@given(st.lists(st.integers(0, 255), min_size=1))
def test_small_values_are_exact(values):
    sliding = SlidingQuantiles()
    for value in values:
        sliding.observe(value, 0)

    assert sliding.quantiles(QUANTILES, 0) == [exact(values, quantile) for quantile in QUANTILES]


def test_values_are_forgotten_after_the_window_but_stay_in_count_and_total():
    sliding = SlidingQuantiles()
    sliding.observe(10, 0)
    sliding.observe(30, 50 * SECOND)

    assert sliding.quantiles([0.0, 1.0], 59 * SECOND) == [10, 30]
    assert sliding.quantiles([0.0, 1.0], 61 * SECOND) == [30, 30]
    assert math.isnan(sliding.quantiles([0.5], 50 * SECOND + WINDOW_NS)[0])
    assert (sliding.count, sliding.total) == (2, 40)


def test_an_idle_summary_has_no_quantiles():
    assert all(map(math.isnan, SlidingQuantiles().quantiles(QUANTILES, 0)))


def test_memory_does_not_grow_with_the_number_of_values():
    sliding = SlidingQuantiles()
    for value in range(20_000):
        sliding.observe(value * 997 % 1_000_000, value * SECOND // 10)

    assert len(sliding._slices) == 5
    assert max(len(buckets) for _, buckets in sliding._slices) < 2_000
