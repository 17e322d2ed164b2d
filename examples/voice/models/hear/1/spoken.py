"""The part of a recording in which somebody speaks."""

import numpy as np

FRAME = 512
THRESHOLD = 0.5
MARGIN = 6
"""Frames that are kept before and after: a word begins and ends more softly than it sounds."""


def spoken_part(samples: np.ndarray, speech: np.ndarray) -> np.ndarray:
    """Return FP32[1, N]: everything between the first frame with speech and the last; all of it if there is none."""
    (indices,) = np.nonzero(speech > THRESHOLD)
    if not indices.size:
        return samples[np.newaxis]
    start, stop = max(indices[0] - MARGIN, 0), indices[-1] + 1 + MARGIN
    return samples[np.newaxis, start * FRAME : stop * FRAME]
