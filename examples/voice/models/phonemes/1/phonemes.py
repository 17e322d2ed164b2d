"""Texts as the speaking model wants them. The words' sounds come from the dictionaries in the package hibari-tts."""

import json
from pathlib import Path

import numpy as np
from hibari.g2p import G2P

MAX_PHONEMES = 400
"""The model has learnt no longer ones."""
SPEED = np.ones(1, np.float32)


class Phonemes:
    """Turns texts into the numbers of their sounds."""

    def __init__(self, vocabulary: Path) -> None:
        self.numbers = json.loads(vocabulary.read_text())
        self.sounds = G2P()

    def ids(self, text: str) -> np.ndarray:
        """Return INT64[1, L], with the mark for silence, 0, at either end."""
        known = [self.numbers[sound] for sound in self.sounds(text) if sound in self.numbers]
        return np.array([[0, *known[:MAX_PHONEMES], 0]], np.int64)
