"""What a backend may change when it completes a config from the model file.

Source: Triton ``backend_model.cc`` (UpdateModelConfig).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from bireme.config.model_config import ModelConfig, ModelTransactionPolicy
from bireme.config.normalise import normalise
from bireme.types.errors import Internal

_CHOICES: Final = ("dynamic_batching", "sequence_batching", "ensemble_scheduling")


def apply_autocomplete(config: ModelConfig, completed: ModelConfig) -> ModelConfig:
    """Return ``config`` with what a backend may decide taken from ``completed``, and normalised again.

    Taken are max_batch_size, all inputs and outputs, whether the model is decoupled, and a scheduling choice where
    there was none. The rest of ``completed`` is ignored.

    Raises:
        Internal: the backend replaced a scheduling choice by another, or dropped it.
    """
    before, after = _choice(config), _choice(completed)
    if before is None:
        if after is not None:
            config = replace(config, **{after: getattr(completed, after)})
    elif before != after:
        raise Internal(
            f"Cannot update scheduling choice from {before} to {after or 'none'} when auto-completing model "
            f"'{config.name}'"
        )
    if completed.model_transaction_policy is not None:
        policy = ModelTransactionPolicy(decoupled=completed.model_transaction_policy.decoupled)
        config = replace(config, model_transaction_policy=policy)
    return normalise(
        replace(
            config,
            max_batch_size=completed.max_batch_size,
            input=completed.input,
            output=completed.output,
        )
    )


def _choice(config: ModelConfig) -> str | None:
    return next((choice for choice in _CHOICES if getattr(config, choice) is not None), None)
