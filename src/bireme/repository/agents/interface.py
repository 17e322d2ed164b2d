"""What a repository agent is: one object for one load of one model, told of what happens to the model.

    from pathlib import Path
    from bireme.repository.agents import RepositoryAgent

    class Agent(RepositoryAgent):
        def load(self) -> Path:
            folder = self.model.make_directory()
            decrypt(self.model.directory, folder, key=self.model.parameters["key"])
            return folder

Source: Triton ``tritonrepoagent.h``: the actions LOAD, LOAD_COMPLETE, LOAD_FAIL, UNLOAD and UNLOAD_COMPLETE are methods here.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from bireme.config import ModelConfig
from bireme.repository.storage import ModelDirectory


class AgentModel:
    """The model that an agent is at work on."""

    __slots__ = ("_made", "config", "directory", "name", "parameters")

    def __init__(
        self, name: str, directory: Path, config: ModelConfig, parameters: Mapping[str, str]
    ) -> None:
        self.name = name
        self.directory = directory
        """The model's files, as the agent before has left them. They belong to that one, or to the repository: read only."""
        self.config = config
        """As written, nothing filled in."""
        self.parameters = parameters
        """What the config gives this agent."""
        self._made: list[ModelDirectory] = []

    def make_directory(self) -> Path:
        """Return a new empty directory for the agent's own files, which is removed when the model is gone."""
        path = Path(tempfile.mkdtemp(prefix="bireme-agent-"))
        self._made.append(ModelDirectory(path, partial(shutil.rmtree, ignore_errors=True)))
        return path

    def remove_directories(self) -> None:
        """Remove what `make_directory` has made; twice is as once."""
        for directory in self._made:
            directory.close()

    def __repr__(self) -> str:
        return f"AgentModel({self.name!r}, {str(self.directory)!r})"


class RepositoryAgent:
    """Base of all agents: does nothing. Its methods run on loading threads, one at a time, and may take their time.

    The order is `load`, then `load_complete` or `load_fail`; after `load_complete` come `unload` and `unload_complete`.
    Only what `load` raises has a consequence, which is that the model does not load; the rest is logged.
    """

    def __init__(self, model: AgentModel) -> None:
        self.model = model

    def load(self) -> Path | str | None:
        """Look at the files before the server does; return a directory that takes their place, or None."""
        return None

    def load_complete(self) -> None:
        """The model serves."""

    def load_fail(self) -> None:
        """The model does not load: this agent, another one, or the model itself has failed."""

    def unload(self) -> None:
        """The model is about to be unloaded, or another load has taken its place."""

    def unload_complete(self) -> None:
        """The model's last request is answered and the model is closed."""
