"""Settings: the config's parameters as checked values. Pure.

====================  ================================================================================================
``pad_batches``       fill a batch up to the next power of two (or ``max_batch_size``), since XLA compiles for every size
                      anew; on unless it is false. Rows must not depend on each other, as batching itself asks
``compile_at_load``   compile for those sizes at load, where every other dimension is known; on unless it is false
====================  ================================================================================================
"""

from __future__ import annotations

from dataclasses import dataclass

from bireme.backends.settings import SettingsReader
from bireme.config import ModelConfig


@dataclass(frozen=True, slots=True)
class JaxSettings:
    """What one model's config says."""

    pads_batches: bool
    compiles_at_load: bool


def read_settings(config: ModelConfig) -> JaxSettings:
    """Return the settings of a model.

    Raises:
        InvalidArgument: names the parameter, its value and what is expected.
    """
    reader = SettingsReader.of_model(config)
    return JaxSettings(
        pads_batches=reader.boolean("pad_batches") is not False,
        compiles_at_load=reader.boolean("compile_at_load") is not False,
    )


def batch_sizes(max_batch_size: int) -> tuple[int, ...]:
    """Return the sizes that batches are padded to: the powers of two below ``max_batch_size``, and that itself."""
    powers = (1 << exponent for exponent in range(max_batch_size.bit_length()))
    return (*(power for power in powers if power < max_batch_size), max_batch_size)
