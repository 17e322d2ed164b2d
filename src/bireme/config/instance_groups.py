"""Instance groups: what an unset name, kind, count or GPU list means.

Source: Triton ``model_config_utils.cc`` (NormalizeInstanceGroup, SetDefaultInstanceCount).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from bireme.config.faults import summarise
from bireme.config.gpus import NO_GPUS, UsableGpus
from bireme.config.model_config import ModelConfig, ModelInstanceGroup
from bireme.config.validate.instance_groups import find_gpu_faults
from bireme.types.errors import InvalidArgument

# Others run slower with a second instance on the same cores.
_BACKENDS_WITH_TWO_CPU_INSTANCES: Final = frozenset({"onnxruntime", "tensorflow"})


def normalise_instance_groups(config: ModelConfig, gpus: UsableGpus = NO_GPUS) -> ModelConfig:
    """Return ``config`` with at least one instance group, each with its name, kind, count and GPUs resolved.

    Call it when the backend is known. An ensemble has no instances and is returned as it is.

    Raises:
        InvalidArgument: a group asks for a GPU that the model cannot have.
    """
    if config.ensemble_scheduling is not None:
        return config
    groups = config.instance_group or (ModelInstanceGroup(name=config.name),)
    groups = tuple(_normalise_group(group, index, config, gpus.num) for index, group in enumerate(groups))
    config = replace(config, instance_group=groups)
    faults = list(find_gpu_faults(config, gpus))
    if faults:
        raise InvalidArgument(summarise(faults))
    return config


def _normalise_group(
    group: ModelInstanceGroup, index: int, config: ModelConfig, num_gpus: int
) -> ModelInstanceGroup:
    kind = group.kind
    gpus = group.gpus
    if kind == "KIND_AUTO":
        has_gpus = num_gpus > 0 and all(0 <= gpu < num_gpus for gpu in gpus)
        kind = "KIND_GPU" if has_gpus else "KIND_CPU"
        # Triton keeps the list, and then refuses the group for it; AUTO is meant to run anywhere.
        gpus = gpus if has_gpus else ()
    count = group.count
    if count < 1:
        count = 2 if kind == "KIND_CPU" and config.backend in _BACKENDS_WITH_TWO_CPU_INSTANCES else 1
    if kind == "KIND_GPU" and not gpus:
        gpus = tuple(range(num_gpus))
    return replace(group, name=group.name or f"{config.name}_{index}", kind=kind, count=count, gpus=gpus)
