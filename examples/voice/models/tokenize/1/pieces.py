"""Sentences as the sentence model wants them."""

from pathlib import Path

import numpy as np
from tokenizers import Tokenizer


def load(path: Path) -> Tokenizer:
    """Return the tokenizer of the file, without its padding: there is one sentence at a time."""
    tokenizer = Tokenizer.from_file(str(path))
    tokenizer.no_padding()
    return tokenizer


def pieces_of(sentence: str, tokenizer: Tokenizer) -> dict[str, np.ndarray]:
    """Return the model's three inputs, INT64[1, S] each."""
    ids = np.array([tokenizer.encode(sentence).ids], np.int64)
    return {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}
