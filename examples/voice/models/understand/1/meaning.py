"""What a sentence is about: the intent that has the example nearest to it."""

from pathlib import Path
from typing import NamedTuple

import numpy as np

UNKNOWN = "unknown"
MIN_SIMILARITY = 0.5


class Examples(NamedTuple):
    """Example sentences: what each is about, and where it lies, FP32[n, 384]. Made by build.py from intents.json."""

    intents: np.ndarray
    places: np.ndarray


def load(path: Path) -> Examples:
    with np.load(path) as stored:
        return Examples(stored["intents"], stored["places"])


def place_of(hidden: np.ndarray) -> np.ndarray:
    """Return where a sentence lies, FP32[384] of length 1, from the numbers of its pieces, FP32[1, S, 384]."""
    mean = hidden[0].mean(axis=0)
    return mean / np.linalg.norm(mean)


def nearest(hidden: np.ndarray, examples: Examples) -> tuple[str, float]:
    """Return the intent, and how near its best example is: 1 for the same place, 0 for nothing in common."""
    similarities = examples.places @ place_of(hidden)
    best = int(similarities.argmax())
    similarity = float(similarities[best])
    return (str(examples.intents[best]) if similarity >= MIN_SIMILARITY else UNKNOWN), similarity
