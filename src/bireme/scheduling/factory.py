"""The one place where a model's configuration chooses its scheduler."""

from __future__ import annotations

from typing import Final

from bireme.config import ModelConfig
from bireme.scheduling.batch_strategy import BatchStrategy, StrategicBatcher
from bireme.scheduling.direct import DirectScheduler
from bireme.scheduling.dynamic_batch import DynamicBatcher
from bireme.scheduling.interface import Scheduler
from bireme.scheduling.sequence_batcher import SequenceBatcher
from bireme.types import InvalidArgument

MAX_QUEUE_SIZE_PARAMETER: Final = "SEQUENCE_MAX_QUEUE_SIZE"
"""How many requests of sequences may wait: sequence batching has no queue policy in its config."""


def build_scheduler(
    config: ModelConfig, *, hold_until: int = 0, strategy: BatchStrategy | None = None
) -> Scheduler | SequenceBatcher:
    """Return an empty scheduler for a valid configuration, whose instance groups are known.

    ``hold_until`` and ``strategy`` are for `DynamicBatcher`; `SequenceBatcher` takes the first, other schedulers neither.

    Raises:
        InvalidArgument: the limit of a queue of sequences is no number.
    """
    if config.sequence_batching is not None:
        return SequenceBatcher(
            config,
            sum(
                group.count * len(group.gpus or (0,)) for group in config.instance_group if not group.passive
            ),
            max_waiting=_read_max_waiting(config),
            hold_until=hold_until,
        )
    if config.dynamic_batching is not None and strategy is not None:
        return StrategicBatcher(
            config.name, config.dynamic_batching, config.max_batch_size, strategy, hold_until=hold_until
        )
    if config.dynamic_batching is not None:
        return DynamicBatcher(
            config.name, config.dynamic_batching, config.max_batch_size, hold_until=hold_until
        )
    return DirectScheduler(config.name)


def _read_max_waiting(config: ModelConfig) -> int:
    """Return the value of `MAX_QUEUE_SIZE_PARAMETER`; 0: no limit."""
    text = config.parameter(MAX_QUEUE_SIZE_PARAMETER, "0")
    if not text.isascii() or not text.isdigit():
        raise InvalidArgument(
            f"model '{config.name}': parameter {MAX_QUEUE_SIZE_PARAMETER} is '{text}'; expected a number of requests "
            "(0: no limit)"
        )
    return int(text)
