"""With namespaces, an ensemble's config holds the keys of its steps' models while it is loaded, and their names for everybody else.

Source: Triton ``model_repository_manager.cc`` (``DependencyGraph::ConnectDependencyGraph``).
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from pathlib import Path

from bireme.config import ModelConfig
from bireme.config.model_config import EnsembleStep
from bireme.repository import make_key, name_of, namespace_of
from bireme.types import InvalidArgument


def ambiguous(name: str, num_models: int) -> InvalidArgument:
    """Return the error for a name that several namespaces have."""
    return InvalidArgument(
        f"There are {num_models} identifiers of model '{name}' in global map, model namespace must be provided to resolve "
        f"ambiguity."
    )


def with_keys(config: ModelConfig, key: str, keys: Collection[str]) -> ModelConfig:
    """Return ``config``, of the model ``key``, with keys in place of its steps' names.

    A step that names a namespace gets that one's model. Any other gets the one in the ensemble's own namespace, or else
    the only one that there is in ``keys``. What is not there yet is looked for in the ensemble's own.

    Raises:
        InvalidArgument: several other namespaces have such a model.
    """
    return _with_steps(config, lambda step: _with_key(step, _key_of_step(step, namespace_of(key), keys)))


def with_names(config: ModelConfig) -> ModelConfig:
    """Return ``config`` as it is shown: with its steps' names, each with its namespace."""
    return _with_steps(config, lambda step: replace(step, model_name=name_of(step.model_name)))


def _with_steps(config: ModelConfig, change: Callable[[EnsembleStep], EnsembleStep]) -> ModelConfig:
    ensemble = config.ensemble_scheduling
    if ensemble is None:
        return config
    return replace(config, ensemble_scheduling=replace(ensemble, step=tuple(map(change, ensemble.step))))


def _with_key(step: EnsembleStep, key: str) -> EnsembleStep:
    return replace(step, model_name=key, model_namespace=namespace_of(key) or step.model_namespace)


def _key_of_step(step: EnsembleStep, own: str, keys: Collection[str]) -> str:
    name = step.model_name
    if step.model_namespace:
        path = str(Path(step.model_namespace).expanduser().absolute())
        wanted = (make_key(step.model_namespace, name), make_key(path, name))
        return next((key for key in wanted if key in keys), wanted[0])
    key = make_key(own, name)
    if key in keys:
        return key
    others = [key for key in keys if name_of(key) == name]
    if len(others) > 1:
        raise ambiguous(name, len(others))
    return others[0] if others else key
