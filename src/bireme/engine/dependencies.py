"""Which models depend on which: an ensemble on the models of its steps. Pure: names and versions only.

A model that calls others by itself (BLS) declares nothing, so there is nothing here to know about it.

Source: Triton ``model_repository_manager.cc`` (``DependencyGraph``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from bireme.config import ModelConfig


class Dependency(NamedTuple):
    """A composing model, as a step names it."""

    name: str
    version: int = -1
    """-1: the latest that serves."""

    def __str__(self) -> str:
        return f"'{self.name}'" if self.version == -1 else f"'{self.name}' version {self.version}"


def dependencies_of(config: ModelConfig) -> tuple[Dependency, ...]:
    """Return what a model with this config needs, each once, in the order of its steps."""
    steps = () if config.ensemble_scheduling is None else config.ensemble_scheduling.step
    return tuple(dict.fromkeys(Dependency(step.model_name, step.model_version) for step in steps))


class DependencyGraph:
    """Who needs whom, by name. It may hold cycles: those of models that therefore do not load."""

    __slots__ = ("_members", "_users")

    def __init__(self) -> None:
        self._members: dict[str, tuple[str, ...]] = {}
        self._users: dict[str, set[str]] = {}

    def assign(self, name: str, members: Iterable[str]) -> None:
        """Say what ``name`` needs from now on, in place of what was said before."""
        for member in self._members.pop(name, ()):
            users = self._users[member]
            users.discard(name)
            if not users:
                del self._users[member]
        unique = tuple(dict.fromkeys(members))
        if unique:
            self._members[name] = unique
        for member in unique:
            self._users.setdefault(member, set()).add(name)

    def members_of(self, name: str) -> tuple[str, ...]:
        """Return what ``name`` itself needs."""
        return self._members.get(name, ())

    def users_of(self, name: str) -> list[str]:
        """Return who itself needs ``name``, sorted."""
        return sorted(self._users.get(name, ()))

    def levels_above(self, name: str) -> Iterator[list[str]]:
        """Yield all who need ``name``, however indirectly, in levels: none needs another of its own or a later level.

        Those of a cycle come last, together with all who need them.
        """
        above = self._all_above(name)
        missing = {user: sum(member in above for member in self.members_of(user)) for user in above}
        level = [user for user in above if not missing[user]]
        while level:
            yield sorted(level)
            users = [user for done in level for user in self._users.get(done, ()) if user in missing]
            for done in level:
                del missing[done]
            level = []
            for user in users:
                missing[user] -= 1
                if not missing[user]:
                    level.append(user)
        if missing:
            yield sorted(missing)

    def find_cycle(self, name: str, members: Iterable[str]) -> list[str] | None:
        """Return a shortest way from ``name`` by one of ``members`` back to itself, both ends included; None: there is none."""
        ways = [[name]]
        seen: set[str] = set()
        while ways:
            longer: list[list[str]] = []
            for way in ways:
                for member in members if len(way) == 1 else self.members_of(way[-1]):
                    if member == name:
                        return [*way, name]
                    if member not in seen:
                        seen.add(member)
                        longer.append([*way, member])
            ways = longer
        return None

    def _all_above(self, name: str) -> set[str]:
        found: set[str] = set()
        new = {name}
        while new:
            new = {user for each in new for user in self._users.get(each, ())} - found - {name}
            found |= new
        return found

    def __repr__(self) -> str:
        return f"DependencyGraph({self._members})"
