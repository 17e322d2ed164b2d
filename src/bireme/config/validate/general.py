"""Rules on the model as a whole: name, backend, batch size, scheduling choice, response cache, metrics.

Source: Triton ``model_config_utils.cc`` (ValidateModelConfig, ValidateModelMetrics).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from bireme.config.backend_rules import ENSEMBLE_PLATFORM, PLATFORMS, canonical_platform, platforms_of
from bireme.config.faults import near_name
from bireme.config.model_config import MetricControl, ModelConfig

DEADLINE_PARAMETER: Final = "deadline_us"
"""How long the answer to a request may take, if the request does not say so. Not Triton's."""
MAX_DEADLINE_US: Final = 10**15
"""Thirty years. Beyond it, points in time would not fit the clock's numbers."""


def find_faults(config: ModelConfig, name: str) -> Iterator[str]:
    """Yield the faults of everything that is no list of its own."""
    yield from _name(config, name)
    yield from _backend(config)
    if config.max_batch_size < 0:
        yield f"'max_batch_size' must be non-negative value for {config.name}: found {config.max_batch_size}"
    yield from _versions(config)
    yield from _scheduling_choice(config)
    yield from _response_cache(config)
    yield from _deadline(config)
    for index, control in enumerate(config.model_metrics.metric_control if config.model_metrics else ()):
        yield from _metric_control(control, f"model_metrics.metric_control[{index}]", config.name)


def _name(config: ModelConfig, name: str) -> Iterator[str]:
    if not config.name:
        yield f"model configuration must specify 'name' for the model in directory '{name}'"
    elif config.name != name:
        hint = ""
        if config.name.strip() == name.strip():
            hint = ": they differ only in blanks"
        elif config.name.lower() == name.lower():
            hint = ": they differ only in upper and lower case"
        yield (
            f"unexpected directory name '{name}' for model '{config.name}', directory name must equal model name{hint}"
        )


def _backend(config: ModelConfig) -> Iterator[str]:
    is_ensemble = config.platform == ENSEMBLE_PLATFORM
    if not config.backend and not is_ensemble:
        near = near_name(config.platform, PLATFORMS)
        yield (
            f"unexpected platform type '{config.platform}' for {config.name}: no 'backend' is set and the platform "
            f"implies none" + (f"; did you mean '{near}'?" if near else "")
        )
    elif config.backend and is_ensemble:
        yield (
            f"Ensemble model '{config.name}' must have platform type '{ENSEMBLE_PLATFORM}' and empty backend type: "
            f"'backend' is '{config.backend}'"
        )
    allowed = platforms_of(config.backend)
    if allowed and canonical_platform(config.platform) not in allowed:
        yield (
            f"unexpected 'platform' and 'backend' pair, got:{config.platform}, {config.backend} for {config.name}: "
            f"backend '{config.backend}' goes with platform {' or '.join(allowed)}"
        )
    if is_ensemble and config.ensemble_scheduling is None:
        yield (
            f"ensemble scheduling must be set for ensemble {config.name} whose platform is {ENSEMBLE_PLATFORM}: add "
            f"'ensemble_scheduling'"
        )


def _versions(config: ModelConfig) -> Iterator[str]:
    latest = config.version_policy.latest if config.version_policy is not None else None
    if latest is not None and latest.num_versions == 0:
        yield f"version_policy.latest.num_versions is 0 for {config.name}, expected at least 1: no version would load"


def _scheduling_choice(config: ModelConfig) -> Iterator[str]:
    choices = [
        choice
        for choice in ("dynamic_batching", "sequence_batching", "ensemble_scheduling")
        if getattr(config, choice) is not None
    ]
    if len(choices) > 1:
        yield f"only one scheduling choice is allowed for {config.name}, found {', '.join(choices)}"


def _response_cache(config: ModelConfig) -> Iterator[str]:
    if config.response_cache is None or not config.response_cache.enable:
        return
    refused = f"Response Cache does not currently support model {config.name} with"
    remedy = "Please disable the response cache (response_cache.enable)."
    if config.sequence_batching is not None:
        yield f"{refused} sequence batching scheduler. {remedy}"
    if config.model_transaction_policy is not None and config.model_transaction_policy.decoupled:
        yield f"{refused} 'decoupled' transaction policy. {remedy}"


def _deadline(config: ModelConfig) -> Iterator[str]:
    text = config.parameter(DEADLINE_PARAMETER, "0")
    if not (text.isascii() and text.isdecimal() and int(text[:20]) <= MAX_DEADLINE_US):
        yield (
            f"parameter '{DEADLINE_PARAMETER}' of {config.name}: expected microseconds from 0 to {MAX_DEADLINE_US}, got "
            f"'{text:.40}'"
        )


def _metric_control(control: MetricControl, path: str, model: str) -> Iterator[str]:
    if control.metric_identifier is None:
        yield f"metric control must specify 'metric_identifier' for {model}: {path}"
    elif not control.metric_identifier.family:
        yield f"metric identifier must specify non-empty 'family' for {model}: {path}.metric_identifier"
    options = control.histogram_options
    if options is None:
        yield f"metric control must specify 'histogram_options' for {model}: {path}"
    elif not options.buckets:
        yield f"histogram options must specify non-empty 'buckets' for {model}: {path}.histogram_options"
    elif any(low >= high for low, high in zip(options.buckets, options.buckets[1:], strict=False)):
        yield (
            f"histogram options must specify increasing 'buckets' for {model}: {path}.histogram_options.buckets is "
            f"{list(options.buckets)}"
        )
