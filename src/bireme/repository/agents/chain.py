"""AgentChain: the agents of one load of one model, in the order of the config.

Source: Triton ``repo_agent.cc`` and ``model_repository_manager.cc`` (``CreateAgentModelListWithLoadAction``).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from enum import Enum, auto
from pathlib import Path
from threading import Lock
from typing import NamedTuple

from bireme.config import ModelConfig
from bireme.repository.agents.interface import AgentModel, RepositoryAgent
from bireme.repository.agents.registry import AgentRegistry
from bireme.repository.storage import ModelDirectory
from bireme.types import BiremeError, InvalidArgument

log = logging.getLogger("bireme.repository")


class _State(Enum):
    LOADING = auto()
    FAILED = auto()
    LOADED = auto()
    UNLOADING = auto()
    GONE = auto()


class _AtWork(NamedTuple):
    """An agent that has seen LOAD."""

    name: str
    model: AgentModel
    agent: RepositoryAgent


class AgentChain:
    """Agents that have seen LOAD, and where their model is on its way. Blocking, and for any thread.

    Each step is taken once: one that does not follow from the last does nothing, so whoever knows that the model has come
    to some point may say so.
    """

    def __init__(self, agents: Iterable[_AtWork], origin: ModelDirectory) -> None:
        """Use `load` to make one."""
        self._agents = tuple(agents)
        self._origin = origin
        """What the first agent was given: as long as an agent may read from it, it stays."""
        self._state = _State.LOADING
        self._lock = Lock()

    @classmethod
    def load(
        cls, name: str, directory: ModelDirectory, config: ModelConfig, registry: AgentRegistry
    ) -> tuple[AgentChain, ModelDirectory]:
        """Let the agents that ``config`` names see LOAD, in order; return them and the directory to load from.

        Raises:
            BiremeError: an agent is not known, or has failed; those that had begun have been told so.
        """
        wanted = () if config.model_repository_agents is None else config.model_repository_agents.agents
        begun: list[_AtWork] = []
        path = directory.path
        try:
            for entry in wanted:
                make = registry.find(entry.name)
                try:
                    model = AgentModel(name, path, config, entry.parameters)
                    agent = make(model)
                    begun.append(_AtWork(entry.name, model, agent))
                    path = _check_location(agent.load(), path)
                except BiremeError:
                    raise
                except BaseException as error:  # what is not ours may even call exit()
                    log.exception("repository agent '%s' failed for model '%s'", entry.name, name)
                    raise InvalidArgument(
                        f"repository agent '{entry.name}' failed: {type(error).__name__}: {error}"
                    ) from error
        except BiremeError:
            cls(begun, directory).end()
            raise
        output = directory if path == directory.path else ModelDirectory(path)
        return cls(begun, directory), output

    def complete(self) -> None:
        """Say that the model serves."""
        self._step((_State.LOADING, _State.FAILED), _State.LOADED, "load_complete")

    def fail(self) -> None:
        """Say that the model does not load; it may still, without being asked for again, if it is an ensemble."""
        self._step((_State.LOADING,), _State.FAILED, "load_fail")

    def unload(self) -> None:
        """Say that the model is about to go."""
        self._step((_State.LOADED,), _State.UNLOADING, "unload")

    def end(self) -> None:
        """Say that the model is gone, and whatever had to be said before. What the agents have made is removed."""
        self.fail()
        self.unload()
        self._step((_State.UNLOADING,), _State.GONE, "unload_complete")
        with self._lock:
            self._state = _State.GONE
        for each in self._agents:
            each.model.remove_directories()

    def _step(self, since: tuple[_State, ...], state: _State, action: str) -> None:
        with self._lock:
            if self._state not in since:
                return
            self._state = state
            # UNLOAD comes in the order of LOAD; what ends something goes the way back.
            for name, model, agent in self._agents if state is _State.UNLOADING else self._agents[::-1]:
                try:
                    getattr(agent, action)()
                except BaseException:
                    log.exception("repository agent '%s': %s of model '%s' failed", name, action, model.name)

    def __repr__(self) -> str:
        return f"AgentChain({[each.name for each in self._agents]}, {self._state.name})"


def _check_location(answer: object, path: Path) -> Path:
    """Return the directory that an agent's ``load`` has answered with; None leaves ``path``."""
    if answer is None:
        return path
    if not isinstance(answer, (str, Path)):
        raise TypeError(f"load() returned {type(answer).__name__}, expected a directory's path or None")
    location = Path(answer).absolute()
    if not location.is_dir():
        raise NotADirectoryError(f"load() returned '{answer}', which is no directory")
    return location
