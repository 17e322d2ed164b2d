"""Recordings: their rate, the silence around them, and WAV files."""

from __future__ import annotations

import wave
from pathlib import Path

import numpy as np


def resampled(samples: np.ndarray, rate: int, new_rate: int) -> np.ndarray:
    """Return a recording at another rate, FP32[N]: the same frequencies, as far as the new rate can hold them."""
    length = round(samples.size * new_rate / rate)
    spectrum = np.fft.rfft(samples)[: length // 2 + 1]
    return (np.fft.irfft(spectrum, length) * (length / samples.size)).astype(np.float32)


def with_silence(samples: np.ndarray, length_s: float, rate: int) -> np.ndarray:
    """Return a recording with silence before and after."""
    return np.pad(samples, round(length_s * rate))


def write_wav(path: Path, samples: np.ndarray, rate: int) -> None:
    """Write a WAV file of 16-bit samples."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with wave.open(str(path), "wb") as file:
        file.setparams((1, 2, rate, 0, "NONE", ""))
        file.writeframes((samples.clip(-1, 1) * 32_767).astype("<i2").tobytes())
