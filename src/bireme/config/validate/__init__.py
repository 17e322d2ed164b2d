"""Every rule that a config must obey. A rule is a generator of faults; no rule stops another from being looked at."""

from __future__ import annotations

from bireme.config.faults import summarise
from bireme.config.gpus import NO_GPUS, UsableGpus
from bireme.config.model_config import ModelConfig
from bireme.config.validate import batching, ensembles, general, instance_groups, sequences, tensors, warmup
from bireme.config.validate.ensemble_members import find_member_faults
from bireme.types.errors import InvalidArgument

__all__ = ["find_faults", "find_member_faults", "validate"]


def find_faults(
    config: ModelConfig, *, name: str, require_io: bool, gpus: UsableGpus | None = NO_GPUS
) -> list[str]:
    """Return all violated rules, each with the model, the field, what it holds and what it may hold.

    Args:
        config: with its backend known (`complete_backend`) and defaults filled in (`normalise`).
        name: of the model's directory.
        require_io: inputs and outputs must be complete; False while a backend may still complete them.
        gpus: those that the model may use; None: that was checked when the instance groups were normalised.
    """
    return [
        *general.find_faults(config, name),
        *batching.find_faults(config),
        *sequences.find_faults(config),
        *ensembles.find_faults(config),
        *instance_groups.find_faults(config, gpus),
        *tensors.find_faults(config, is_complete=require_io),
        *warmup.find_faults(config),
    ]


def validate(config: ModelConfig, *, name: str, require_io: bool, gpus: UsableGpus | None = NO_GPUS) -> None:
    """Check every rule; arguments as of `find_faults`.

    Raises:
        InvalidArgument: at least one is violated; the message holds all.
    """
    found = find_faults(config, name=name, require_io=require_io, gpus=gpus)
    if found:
        raise InvalidArgument(summarise(found))
