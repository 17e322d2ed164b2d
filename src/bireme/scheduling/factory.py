"""The one place where a model's configuration chooses its scheduler."""

from __future__ import annotations

from bireme.config import ModelConfig
from bireme.scheduling.batch_strategy import BatchStrategy, StrategicBatcher
from bireme.scheduling.direct import DirectScheduler
from bireme.scheduling.dynamic_batch import DynamicBatcher
from bireme.scheduling.interface import Scheduler
from bireme.types import Unsupported


def build_scheduler(
    config: ModelConfig, *, hold_until: int = 0, strategy: BatchStrategy | None = None
) -> Scheduler:
    """Return an empty scheduler for a valid configuration.

    ``hold_until`` and ``strategy`` are for `DynamicBatcher`; other schedulers have no use for them.

    Raises:
        Unsupported: the configuration chooses a scheduler that does not exist yet; names the field.
    """
    if config.sequence_batching is not None:
        raise Unsupported(
            f"model '{config.name}': 'sequence_batching' in its configuration is not supported yet; a model may have "
            "'dynamic_batching', 'ensemble_scheduling' or no scheduling choice"
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
