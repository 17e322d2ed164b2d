"""The states of model versions, as the repository index shows them. Loop thread only.

    (absent) → LOADING → READY → UNLOADING → UNAVAILABLE "unloaded"
               LOADING → UNAVAILABLE <reason>
               UNLOADING, UNAVAILABLE → LOADING

A reload loads a second, hidden copy beside a READY version: the state stays READY and its model is swapped. Only READY
versions can be selected.

Source: Triton ``model_lifecycle.cc``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

from bireme.config import ModelConfig
from bireme.engine.dependencies import Dependency
from bireme.engine.model import Model
from bireme.repository import Fingerprint, ModelDirectory, name_of, namespace_of
from bireme.repository.agents import AgentChain
from bireme.types import Way

if TYPE_CHECKING:
    from bireme.engine.load_plan import LoadPlan

UNLOADED = "unloaded"
"""The reason of a version that is not available because somebody wanted it so. More may follow a colon."""


class Member(NamedTuple):
    """What an ensemble is made for, of a composing model that serves."""

    config: ModelConfig
    """Without the version policy, which changes nothing for the ensemble."""
    way: Way


Members = Mapping[Dependency, Member | None]
"""The composing models of an ensemble; None: one does not serve."""


def identity_of(key: str) -> dict[str, str]:
    """Return a model's name, and its namespace if there is one, as the repository index shows them."""
    namespace = namespace_of(key)
    return {"name": name_of(key), "namespace": namespace} if namespace else {"name": key}


class VersionState(StrEnum):
    """State of one model version."""

    LOADING = "LOADING"
    READY = "READY"
    UNLOADING = "UNLOADING"
    UNAVAILABLE = "UNAVAILABLE"


_ALLOWED = {
    None: {VersionState.LOADING},
    VersionState.LOADING: {VersionState.READY, VersionState.UNAVAILABLE},
    VersionState.READY: {VersionState.READY, VersionState.UNLOADING},
    VersionState.UNLOADING: {VersionState.UNAVAILABLE, VersionState.LOADING},
    VersionState.UNAVAILABLE: {VersionState.LOADING},
}


class VersionRecord:
    """One version's state. ``model`` serves while READY and is finishing its requests while UNLOADING."""

    __slots__ = ("_state", "model", "reason")

    def __init__(self) -> None:
        self._state: VersionState | None = None
        self.reason = ""
        """Why it is not available, or (UNLOADING) will not be; on a READY version, why its last reload failed."""
        self.model: Model | None = None

    @property
    def state(self) -> VersionState | None:
        """None until the first `move`."""
        return self._state

    @property
    def is_ready(self) -> bool:
        """Whether the version serves."""
        return self._state is VersionState.READY

    @property
    def is_unloaded(self) -> bool:
        """Whether the version does not serve because somebody wanted it so; it may still be finishing its requests."""
        if self._state is VersionState.UNLOADING and not self.reason:
            return True
        return not self.is_ready and self.reason.partition(":")[0] == UNLOADED

    def move(self, state: VersionState, *, model: Model | None = None, reason: str = "") -> None:
        """Go to ``state``, the only way to change it; a move that the diagram lacks is a bug."""
        assert state in _ALLOWED[self._state], f"{self._state} → {state}"
        self._state = state
        self.model = model
        self.reason = reason

    def __repr__(self) -> str:
        return f"VersionRecord({self._state}{', ' + self.reason if self.reason else ''})"


@dataclass(frozen=True, slots=True)
class LoadSource:
    """What a model was loaded from."""

    directory: ModelDirectory
    config: ModelConfig
    """As read: normalised, not yet completed from the model file."""
    fingerprint: Fingerprint | None
    """None for a load with overrides, which the next plain load undoes."""
    agents: AgentChain | None = None
    """The repository agents that hear what becomes of this load."""


@dataclass(frozen=True, slots=True)
class FailedLoad:
    """A load of an ensemble that failed, to be tried again when a composing model is another than it was."""

    plan: LoadPlan
    members: Members
    reason: str


class ModelRecord:
    """All that is known of one model name since somebody first tried to load it."""

    __slots__ = (
        "failed",
        "has_failed",
        "is_explicit",
        "lock",
        "members",
        "name",
        "num_users",
        "reason",
        "source",
        "versions",
    )

    def __init__(self, name: str) -> None:
        self.name = name
        """The model's key (`bireme.repository.model_key`)."""
        self.versions: dict[int, VersionRecord] = {}
        self.reason = ""
        """Why the last load failed before any version was tried (a bad config, a duplicate name)."""
        self.source: LoadSource | None = None
        """Where the READY versions come from; None while nothing is loaded."""
        self.members: Members = {}
        """What the READY versions of an ensemble were validated against."""
        self.failed: FailedLoad | None = None
        """What an ensemble becomes as soon as its composing models allow it."""
        self.is_explicit = False
        """Whether somebody asked for the model itself, and not only for an ensemble that needs it."""
        self.has_failed = False
        """Whether the last load failed: then the next one does its work even if no file has changed."""
        self.lock = asyncio.Lock()
        """Held by the one load or unload that is at work on this model."""
        self.num_users = 0
        """Loads and unloads that hold the lock or wait for it."""

    @property
    def identity(self) -> dict[str, str]:
        """What an element of the repository index begins with."""
        return identity_of(self.name)

    @property
    def is_known(self) -> bool:
        """Whether there is anything to say about the model; a blank record is one that is only being looked for."""
        return bool(self.versions or self.reason)

    @property
    def ready_versions(self) -> dict[int, Model]:
        """The versions that serve, ascending, with their models."""
        return {
            version: record.model
            for version, record in sorted(self.versions.items())
            if record.is_ready and record.model is not None
        }

    @property
    def is_settled(self) -> bool:
        """Whether strict readiness accepts the model: every version is READY, on its way, or unloaded on purpose.

        A version that still finishes its requests is unloaded on purpose, too. (Triton lets it count as not ready, so
        that an unload makes probes fail for as long as its last request takes; and so does the load of a new model.)
        """
        versions = self.versions.values()
        if not versions or (self.reason and not any(record.is_ready for record in versions)):
            return False
        return all(
            record.is_ready or record.is_unloaded or record.state is VersionState.LOADING
            for record in versions
        )

    @property
    def is_unloaded(self) -> bool:
        """Whether nothing of the model serves because somebody wanted it so."""
        versions = self.versions.values()
        return bool(versions) and not self.reason and all(record.is_unloaded for record in versions)

    def index_entries(self) -> Iterator[dict[str, str]]:
        """Yield the model's elements of the repository index."""
        versions = sorted(self.versions.items())
        for version, record in versions:
            entry = {**self.identity, "version": str(version), "state": str(record.state)}
            reason = record.reason
            if record.is_ready and record.model is not None:
                reason = record.model.away_reason or reason
            yield {**entry, "reason": reason} if reason else entry
        # A reason that no version shows yet: the load failed before there were any, or while they were unloading.
        if self.reason and not any(record.is_ready or record.reason == self.reason for _, record in versions):
            yield {**self.identity, "state": str(VersionState.UNAVAILABLE), "reason": self.reason}

    def __repr__(self) -> str:
        return f"ModelRecord({self.name!r}, {self.versions})"
