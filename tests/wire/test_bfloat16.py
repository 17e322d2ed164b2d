"""BF16 bits ⇄ floats."""

from __future__ import annotations

import math
import struct

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, strategies as st

from bireme.wire import bfloat16


def bits_of(value):
    return int(bfloat16.from_float64(np.array([value], np.float64))[0])


@pytest.mark.parametrize(
    ("value", "bits"),
    [
        (1.5, 0x3FC0),  # on the wire C0 3F
        (0.0, 0x0000),
        (-0.0, 0x8000),
        (-2.0, 0xC000),
        (1e9, 0x4E6E),
        (math.inf, 0x7F80),
        (-math.inf, 0xFF80),
        (math.nan, 0x7FC0),
        (1.0 + 2**-8, 0x3F80),  # a tie goes to even: down
        (1.0 + 3 * 2**-8, 0x3F82),  # a tie goes to even: up
        (1.0 + 2**-8 + 2**-40, 0x3F81),  # just above a tie; through FP32 it would be the tie, and go down
        (1.0 + 3 * 2**-8 - 2**-40, 0x3F81),  # just below a tie
        (3.3895313892515355e38, 0x7F7F),  # the largest
        (3.396e38, 0x7F7F),
        (3.3962e38, 0x7F80),  # beyond half of the next step: infinity
        (1e300, 0x7F80),
        (-1e300, 0xFF80),
        (9.2e-41, 0x0001),  # the smallest, subnormal
        (1e-300, 0x0000),
    ],
)
def test_rounds_once_to_nearest_even(value, bits):
    assert bits_of(value) == bits


@given(st.integers(0, 0xFFFF))
def test_every_value_survives_the_round_trip(bits):
    (value,) = bfloat16.to_float32(np.array([bits], np.uint16))

    assert value.tobytes() == struct.pack("<I", bits << 16)
    assert math.isnan(value) or bits_of(float(value)) == bits


@given(st.floats(width=32, allow_nan=False))
def test_agrees_with_ml_dtypes_on_fp32_values(value):
    expected = np.array([value], np.float32).astype(ml_dtypes.bfloat16).view(np.uint16)

    assert bits_of(value) == expected[0]


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_no_other_value_is_nearer(value):
    bits = bits_of(value)
    result = float(bfloat16.to_float32(np.array([bits], np.uint16))[0])
    neighbours = [
        float(bfloat16.to_float32(np.array([other], np.uint16))[0])
        for other in (bits - 1, bits + 1)
        if other >= 0 and (other & 0x7F80) != 0x7F80
    ]

    if math.isfinite(result):
        assert all(abs(result - value) <= abs(other - value) for other in neighbours)
    else:
        assert abs(value) > 3.389e38


def test_keeps_the_shape():
    values = np.zeros((2, 3))

    assert (
        bfloat16.from_float64(values).shape == bfloat16.to_float32(values.astype(np.uint16)).shape == (2, 3)
    )
