"""AgentRegistry: finds an agent by name: built in, from another package, or a file of one's own.

Other packages declare theirs under the entry point group ``bireme.repository_agents``. A file is
``<agent directory>/<name>/agent.py`` with a class ``Agent`` in it.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import entry_points
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from threading import Lock
from typing import Final

from bireme.repository.agents.checksum import ChecksumAgent
from bireme.repository.agents.interface import AgentModel, RepositoryAgent
from bireme.types import InvalidArgument

ENTRY_POINT_GROUP: Final = "bireme.repository_agents"
"""Each entry point is called like the agent and names a class, or a function, that makes one from an `AgentModel`."""
AGENT_FILE: Final = "agent.py"
CLASS_NAME: Final = "Agent"

MakeAgent = Callable[[AgentModel], RepositoryAgent]


class AgentRegistry:
    """The agents that a server can use. Any thread may ask."""

    def __init__(self, directory: str = "") -> None:
        """``directory`` (``--repoagent-directory``) holds agents that are files; it need not exist."""
        self._directory = directory
        self._found: dict[str, MakeAgent] = {"checksum": ChecksumAgent}
        self._lock = Lock()

    def find(self, name: str) -> MakeAgent:
        """Return what makes an agent called ``name``; its code is imported once.

        Raises:
            InvalidArgument: there is none, or its code cannot be used; says where it was looked for.
        """
        with self._lock:
            found = self._found.get(name)
            if found is None:
                found = self._found[name] = self._import(name)
            return found

    def _import(self, name: str) -> MakeAgent:
        path = Path(self._directory, name, AGENT_FILE)
        try:
            for plugin in entry_points(group=ENTRY_POINT_GROUP, name=name):
                make: MakeAgent = plugin.load()
                return make
            # A client may name an agent: by a load with a config of its own.
            if self._directory and name not in ("", "..") and Path(name).name == name and path.is_file():
                return _import_file(name, path)
        except Exception as error:
            raise InvalidArgument(
                f"repo agent '{name}' cannot be used: {type(error).__name__}: {error}"
            ) from error
        raise InvalidArgument(self._describe_missing(name))

    def _describe_missing(self, name: str) -> str:
        library = f"libtritonrepoagent_{name}.so"
        searched = self._directory or "no directory, as --repoagent-directory is empty"
        if Path(self._directory, name, library).is_file():
            return (
                f"repo agent '{name}': '{library}' is there, but agents are written in Python here: put {AGENT_FILE} "
                f"beside it, with a class '{CLASS_NAME}'"
            )
        known = ", ".join(
            sorted({*self._found, *(plugin.name for plugin in entry_points(group=ENTRY_POINT_GROUP))})
        )
        return f"unable to find '{name}/{AGENT_FILE}' for repo agent '{name}', searched: {searched}; installed are {known}"


def _import_file(name: str, path: Path) -> MakeAgent:
    spec = spec_from_file_location(f"bireme_repoagent_{name}", path)
    assert spec is not None  # the name ends with .py
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    make: MakeAgent | None = getattr(module, CLASS_NAME, None)
    if not callable(make):
        raise TypeError(f"'{path}' has no class '{CLASS_NAME}'")
    return make
