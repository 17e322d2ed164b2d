"""BF16 ⇄ float: numpy has no such type, so an array of BF16 holds the raw 16 bits as ``uint16``.

BF16 is the upper half of an FP32.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt


def to_float32(bits: npt.NDArray[np.uint16]) -> npt.NDArray[np.float32]:
    """Return the values of BF16 ``bits``, exactly, in the same shape."""
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


def from_float64(values: npt.NDArray[np.float64]) -> npt.NDArray[np.uint16]:
    """Return ``values`` as BF16 bits, rounded once to nearest, ties to even; NaN becomes the quiet NaN 0x7fc0.

    Going through FP32 would round twice. The first step therefore rounds to odd: an inexact result gets its last bit
    set, so that the second step sees that it's no tie.
    """
    with np.errstate(all="ignore"):
        rounded = values.astype(np.float32)
        inexact = rounded != values
        away = np.abs(rounded) > np.abs(values)
    bits: npt.NDArray[Any] = rounded.view(np.uint32).copy()
    bits[inexact & away] -= np.uint32(1)  # truncated now; an overflow to infinity becomes the largest FP32
    bits[inexact] |= np.uint32(1)
    half = np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    result: npt.NDArray[np.uint16] = ((bits + half) >> np.uint32(16)).astype(np.uint16)
    result[np.isnan(values)] = 0x7FC0
    return result
