"""Defaults that every config gets, whatever its backend: what Triton fills in even with auto-complete disabled.

Source: Triton ``model_config_utils.cc`` (NormalizeModelConfig).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from bireme.config.model_config import (
    LatestPolicy,
    ModelConfig,
    ModelEnsembling,
    ModelOptimizationPolicy,
    ModelSequenceBatching,
    ModelVersionPolicy,
    PinnedMemoryBuffer,
)

DEFAULT_SEQUENCE_IDLE_US: Final = 1_000_000
"""How long a sequence may be silent, when the config does not say."""


def normalise(config: ModelConfig) -> ModelConfig:
    """Return ``config`` with a version policy, preferred batch sizes, idle time and pinned-memory hints filled in."""
    if config.version_policy is None:
        config = replace(config, version_policy=ModelVersionPolicy(latest=LatestPolicy(num_versions=1)))
    preferred = (config.max_batch_size,) if config.max_batch_size > 0 else ()
    batching = config.dynamic_batching
    if batching is not None and not batching.preferred_batch_size:
        config = replace(config, dynamic_batching=replace(batching, preferred_batch_size=preferred))
    if config.sequence_batching is not None:
        config = replace(config, sequence_batching=_normalise_sequences(config.sequence_batching, preferred))
    if config.ensemble_scheduling is None:  # an ensemble must not have an optimization section
        return replace(config, optimization=_normalise_optimization(config.optimization))
    return replace(config, ensemble_scheduling=_normalise_ensemble(config.ensemble_scheduling))


def _normalise_ensemble(ensemble: ModelEnsembling) -> ModelEnsembling:
    """Let steps that name no version take the latest; Triton asks them to say so."""
    steps = tuple(replace(step, model_version=step.model_version or -1) for step in ensemble.step)
    return replace(ensemble, step=steps)


def _normalise_sequences(
    batching: ModelSequenceBatching, preferred: tuple[int, ...]
) -> ModelSequenceBatching:
    if batching.max_sequence_idle_microseconds == 0:
        batching = replace(batching, max_sequence_idle_microseconds=DEFAULT_SEQUENCE_IDLE_US)
    if batching.oldest is not None and not batching.oldest.preferred_batch_size:
        batching = replace(batching, oldest=replace(batching.oldest, preferred_batch_size=preferred))
    return batching


def _normalise_optimization(policy: ModelOptimizationPolicy | None) -> ModelOptimizationPolicy:
    policy = policy or ModelOptimizationPolicy()
    pinned = PinnedMemoryBuffer(enable=True)
    return replace(
        policy,
        input_pinned_memory=policy.input_pinned_memory or pinned,
        output_pinned_memory=policy.output_pinned_memory or pinned,
    )
