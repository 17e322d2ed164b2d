"""Rules on instance groups.

Source: Triton ``model_config_utils.cc`` (ValidateInstanceGroup).
"""

from __future__ import annotations

from collections.abc import Iterator

from bireme.config.gpus import UsableGpus
from bireme.config.model_config import ModelConfig, ModelInstanceGroup


def find_faults(config: ModelConfig, gpus: UsableGpus | None) -> Iterator[str]:
    """Yield the faults of ``instance_group``; ``gpus`` None: its kinds are known to be right."""
    if config.ensemble_scheduling is not None:  # a fault of its own, told by the ensemble's rules
        return
    if gpus is not None:
        yield from find_gpu_faults(config, gpus)
    for index, group in enumerate(config.instance_group):
        yield from _profiles(group, _label(group, index, config), config.platform)


def find_gpu_faults(config: ModelConfig, gpus: UsableGpus) -> Iterator[str]:
    """Yield what is wrong between the groups' kinds and their GPUs."""
    for index, group in enumerate(config.instance_group):
        label = _label(group, index, config)
        if group.kind in {"KIND_CPU", "KIND_MODEL"} and group.gpus:
            yield f"{label} has kind {group.kind} but specifies one or more GPUs: gpus is {list(group.gpus)}"
        elif group.kind == "KIND_GPU":
            if gpus.num == 0:
                yield (
                    f"{label} has kind KIND_GPU but {gpus.why_none}: use KIND_CPU, or KIND_AUTO to run on "
                    f"either"
                )
                continue
            for gpu in group.gpus:
                if not 0 <= gpu < gpus.num:
                    yield f"{label} specifies invalid or unsupported gpu id {gpu}. GPUs are: {_ids(gpus.num)}"


def _profiles(group: ModelInstanceGroup, label: str, platform: str) -> Iterator[str]:
    if not group.profile:
        return
    if platform != "tensorrt_plan":
        yield (
            f"{label} and platform {platform} specifies profile field which is only supported for TensorRT models: "
            f"profile is {list(group.profile)}"
        )
        return
    for profile in group.profile:
        if not (profile.isascii() and profile.isdecimal()):
            yield (
                f"{label} and platform {platform} specifies invalid profile {profile!r}. The field should contain "
                f"the string representation of a non-negative integer."
            )


def _label(group: ModelInstanceGroup, index: int, config: ModelConfig) -> str:
    return f"instance group {group.name or f'{config.name}_{index}'} of model {config.name}"


def _ids(num_gpus: int) -> str:
    return ", ".join(str(gpu) for gpu in range(num_gpus))
