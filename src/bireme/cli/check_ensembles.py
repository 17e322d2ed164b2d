"""What ``bireme repo check`` says of ensembles once it has seen all other models: whether they fit those they consist of."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from bireme.backends.ensemble.backend import EnsembleBackend
from bireme.backends.interface import ModelContext
from bireme.backends.lone_host import LoneHost
from bireme.config import ModelConfig, apply_autocomplete
from bireme.engine.dependencies import DependencyGraph, dependencies_of
from bireme.engine.model_table import suggest
from bireme.types import BiremeError, InvalidArgument, NotFound


@dataclass(slots=True)
class CheckedModel:
    """What ensembles need to know of a model that was looked at."""

    config: ModelConfig | None
    """As read; None: it has faults."""
    versions: tuple[int, ...]
    add_fault: Callable[[str], None]
    finals: dict[int, ModelConfig] = field(default_factory=dict)
    """The configs that its versions would serve with, as far as they are known and good."""


def check_ensembles(models: Mapping[str, CheckedModel], *, opens_models: bool) -> None:
    """Add to the ensembles among ``models`` what does not fit their composing models.

    Without ``opens_models``, configs that only the model files could complete are taken for good.
    """
    with closing(_Ensembles(models, opens_models=opens_models)) as ensembles:
        for name in models:
            ensembles.check(name)


class _Ensembles(LoneHost):
    """Plays the server towards the backend of ensembles: its models serve as soon as they were found good."""

    def __init__(self, models: Mapping[str, CheckedModel], *, opens_models: bool) -> None:
        super().__init__()
        self._models = models
        self._opens_models = opens_models
        self._graph = DependencyGraph()
        self._waiting: set[str] = set()
        for name, model in models.items():
            if model.config is not None and (needs := dependencies_of(model.config)):
                self._graph.assign(name, [need.name for need in needs])
                self._waiting.add(name)

    def check(self, name: str) -> None:
        """Check an ensemble, once, and before it those that it consists of."""
        todo, opened = [name], set()
        while todo:
            opened.add(todo[-1])
            members = [
                each
                for each in self._graph.members_of(todo[-1])
                if each in self._waiting and each not in opened
            ]
            if members:
                todo += members
            else:
                self._check_one(todo.pop())

    def _check_one(self, name: str) -> None:
        if name not in self._waiting:
            return
        self._waiting.discard(name)
        model = self._models[name]
        assert model.config is not None
        try:
            circle = self._graph.find_cycle(name, self._graph.members_of(name))
            if circle is not None:
                way = " -> ".join(f"'{each}'" for each in circle)
                raise InvalidArgument(f"circular dependency between ensembles: {way}")
            if self._opens_models or self._knows_members(model.config):
                final = self._complete(model.config)
                model.finals.update(dict.fromkeys(model.versions, final))
        except BiremeError as error:
            model.add_fault(error.message)

    def find_config(self, name: str, version: int) -> ModelConfig:
        """Return the config that a model would serve with."""
        model = self._models.get(name)
        if model is None:
            raise NotFound(
                f"model '{name}' is in none of the repositories, or in several{suggest(name, self._models)}"
            )
        self.check(name)
        if not model.finals:
            raise NotFound(f"model '{name}' would not load")
        final = model.finals.get(max(model.finals) if version == -1 else version)
        if final is None:
            others = ", ".join(map(str, model.finals))
            raise NotFound(f"version {version} of model '{name}' would not be loaded, only {others}")
        return final

    def _complete(self, config: ModelConfig) -> ModelConfig:
        nowhere = Path()
        ensemble = EnsembleBackend().load(ModelContext(config.name, 1, nowhere, nowhere, config, host=self))
        return apply_autocomplete(config, ensemble.complete_config(config))

    def _knows_members(self, config: ModelConfig) -> bool:
        """Whether the configs of all composing models that are there are complete by themselves."""
        members = [self._models.get(need.name) for need in dependencies_of(config)]
        return all(
            model is None or model.config is None or bool(model.config.input and model.config.output)
            for model in members
        )
