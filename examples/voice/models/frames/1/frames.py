"""A recording in frames of 32 ms, each with the end of the one before it."""

import numpy as np

SAMPLES_PER_S = 16_000
MAX_LENGTH_S = 30
FRAME, CONTEXT = 512, 64
STATE = np.zeros((1, 1, 128), np.float32)
"""What the model remembers before the first frame: nothing."""


class BadRecording(ValueError):
    """The recording cannot be used, for the reason that the text names."""


def frames_of(samples: np.ndarray) -> np.ndarray:
    """Return FP32[T, 576]. The last frame is filled up with silence."""
    if not 0 < samples.size <= MAX_LENGTH_S * SAMPLES_PER_S:
        raise BadRecording(
            f"AUDIO is {samples.size / SAMPLES_PER_S:.1f} s long; expected at most {MAX_LENGTH_S} s"
            if samples.size
            else "AUDIO has no samples"
        )
    padded = np.pad(samples, (CONTEXT, -samples.size % FRAME))
    return np.lib.stride_tricks.sliding_window_view(padded, CONTEXT + FRAME)[::FRAME]
