"""What an ensemble consists of in the end, where its steps' models are ensembles themselves."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from bireme.backends.interface import Host
from bireme.config import ModelConfig
from bireme.types import InvalidArgument

MOST_LEVELS: Final = 64
"""Ensembles inside one another. A request passes them all in one call chain, and the interpreter's stack has an end."""


def levels_of(config: ModelConfig, host: Host) -> Iterator[dict[tuple[str, int], ModelConfig]]:
    """Yield the configs of the steps' models, by name and version; then those of the ensembles' among them, and so on."""
    level = [config]
    while level:
        found = {
            (step.model_name, step.model_version): host.find_config(step.model_name, step.model_version)
            for each in level
            if each.ensemble_scheduling is not None
            for step in each.ensemble_scheduling.step
        }
        if found:
            yield found
        level = list(found.values())


def models_in(name: str, version: int, host: Host) -> set[str]:
    """Return the names of the models that run when ``name`` does, which may be an ensemble."""
    config = host.find_config(name, version)
    if config.ensemble_scheduling is None:
        return {name}
    return {
        member
        for level in levels_of(config, host)
        for (member, _), its_config in level.items()
        if its_config.ensemble_scheduling is None
    }


def check_nesting(config: ModelConfig, host: Host) -> None:
    """See that an ensemble is not nested too deeply.

    Raises:
        InvalidArgument: it is.
    """
    for num_levels, _ in enumerate(levels_of(config, host), start=1):
        if num_levels > MOST_LEVELS:
            raise InvalidArgument(
                f"ensemble '{config.name}' has more than {MOST_LEVELS} levels of ensembles inside one another"
            )
