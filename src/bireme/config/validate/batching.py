"""Rules on dynamic batching: preferred sizes, priority levels, queue policies.

Source: Triton ``model_config_utils.cc`` (ValidateModelConfig).
"""

from __future__ import annotations

from collections.abc import Iterator

from bireme.config.model_config import ModelConfig, ModelDynamicBatching, ModelQueuePolicy


def find_faults(config: ModelConfig) -> Iterator[str]:
    """Yield the faults of ``dynamic_batching`` and of a custom batching library's place."""
    batching = config.dynamic_batching
    if batching is not None:
        yield from preferred_size_faults(
            batching.preferred_batch_size,
            "dynamic batching preferred size",
            "dynamic_batching.preferred_batch_size",
            config,
        )
        yield from _priorities(batching, config.name)
        if batching.preserve_ordering:
            yield from _preserve_ordering(batching, config.name)
    if config.sequence_batching is not None and "TRITON_BATCH_STRATEGY_PATH" in config.parameters:
        yield (
            f"TRITON_BATCH_STRATEGY_PATH cannot be specified with sequence batcher for {config.name}: remove it from "
            f"'parameters'"
        )


def preferred_size_faults(sizes: tuple[int, ...], what: str, path: str, config: ModelConfig) -> Iterator[str]:
    """Yield the faults of a list of preferred batch sizes."""
    for index, size in enumerate(sizes):
        if size <= 0:
            yield f"{what} must be positive for {config.name}: {path}[{index}] is {size}"
        elif size > config.max_batch_size:
            yield (
                f"{what} must be <= max batch size for {config.name}: {path}[{index}] is {size}, 'max_batch_size' is "
                f"{config.max_batch_size}"
            )


def _priorities(batching: ModelDynamicBatching, model: str) -> Iterator[str]:
    levels = batching.priority_levels
    if levels == 0:
        return
    default = batching.default_priority_level
    if not 1 <= default <= levels:
        yield (
            f"default priority level must be in range [1, {levels}] for {model}: "
            f"dynamic_batching.default_priority_level is {default}"
        )
    for level in batching.priority_queue_policy:
        if not 1 <= level <= levels:
            yield (
                f"priority queue policy must have priority level in range [1, {levels}] for {model}: "
                f"dynamic_batching.priority_queue_policy has an entry for {level}"
            )


def _preserve_ordering(batching: ModelDynamicBatching, model: str) -> Iterator[str]:
    if batching.priority_levels > 1:
        yield (
            f"Only one priority level is allowed when 'preserve_ordering' is true for {model}: "
            f"dynamic_batching.priority_levels is {batching.priority_levels}"
        )
    policies = {"default_queue_policy": batching.default_queue_policy or ModelQueuePolicy()}
    for level, policy in batching.priority_queue_policy.items():
        policies[f"priority_queue_policy[{level}]"] = policy
    for path, policy in policies.items():
        if policy.timeout_action == "DELAY" and policy.default_timeout_microseconds != 0:
            yield (
                f"Queue policy can not have DELAY as timeout action when 'preserve_ordering' is true for {model}: "
                f"dynamic_batching.{path}.timeout_action"
            )
