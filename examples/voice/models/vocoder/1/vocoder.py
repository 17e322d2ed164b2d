"""Sound from a spectrum: signal processing in numpy, from the package hibari-tts."""

import numpy as np
from hibari import dsp

SAMPLES_PER_S = dsp.SR
PARTS = ("lh", "theta", "ln", "lr", "phi", "f0")
"""What the speaking model returns: size and turn of the harmonics, size of the noise, size and phase of the rest, and pitch."""
SEED = 0
"""Of the noise in the voice: a text always sounds the same."""


def sound_of(parts: dict[str, np.ndarray]) -> np.ndarray:
    """Return FP32[N]."""
    arrays = [parts[name][0] for name in PARTS]
    return dsp.synth(*arrays, np.random.default_rng(SEED))
