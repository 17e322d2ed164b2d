"""ModelTable: which models are known and which serve, and what is said about those that do not. Loop thread only."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sized
from dataclasses import replace
from difflib import get_close_matches

from bireme.engine.dependencies import Dependency
from bireme.engine.model import Model
from bireme.engine.model_state import (
    UNLOADED,
    Member,
    Members,
    ModelRecord,
    VersionRecord,
    VersionState,
    identity_of,
)
from bireme.engine.step_namespaces import ambiguous
from bireme.repository import name_of, namespace_of
from bireme.types import BiremeError, InvalidArgument, NotFound, Unavailable

DUPLICATE = "model appears in two or more repositories"

# One comparison takes about 10 µs of the loop's time.
_MOST_NAMES_COMPARED = 500
_LONGEST_NAME_COMPARED = 128


class ModelTable:
    """The records of all models by name, and the look-up tables made from them.

    ``latest`` and ``versions`` are what requests use: one dict look-up, no test of any state.
    """

    __slots__ = ("_has_namespaces", "latest", "lingering", "records", "versions")

    def __init__(self, *, has_namespaces: bool = False) -> None:
        """``has_namespaces``: a name may be that of several models, which keys tell apart."""
        self._has_namespaces = has_namespaces
        self.records: dict[str, ModelRecord] = {}
        """Every model that somebody tried to load, by key; blank ones are only being looked for."""
        self.latest: dict[str, Model] = {}
        """By key, the highest READY version; by name as well, where one model alone of that name serves."""
        self.versions: dict[tuple[str, int], Model] = {}
        """Every READY version, in the same way."""
        self.lingering: dict[tuple[str, int], Model] = {}
        """Unloaded versions that ensembles still need for the requests that they have begun; for models only."""

    def find(self, name: str, version: int) -> Model | None:
        """Return the READY version that a request for ``version`` (-1: the latest) gets."""
        return self.latest.get(name) if version == -1 else self.versions.get((name, version))

    def find_lingering(self, name: str, version: int) -> Model | None:
        """As `find`, among the unloaded ones that are still needed."""
        if version != -1:
            return self.lingering.get((name, version))
        versions = [number for owner, number in self.lingering if owner == name]
        return self.lingering[name, max(versions)] if versions else None

    def publish(self, record: ModelRecord) -> None:
        """Bring the look-up tables up to date with one model's record."""
        self._enter(record.name, record.ready_versions)
        if self._has_namespaces:
            name = name_of(record.name)
            serving = [each.ready_versions for each in self.records_of(name) if each.ready_versions]
            self._enter(name, serving[0] if len(serving) == 1 else {})

    def records_of(self, name: str) -> list[ModelRecord]:
        """Return the records of all known models called ``name``; a key stands for its one model."""
        if not self._has_namespaces or namespace_of(name):
            record = self.records.get(name)
            return [] if record is None else [record]
        return [record for key, record in self.records.items() if name_of(key) == name and record.is_known]

    def record_of(self, name: str) -> ModelRecord | None:
        """Return the record that requests for ``name`` get; None: there is none, or several."""
        records = self.records_of(name)
        if len(records) > 1:
            records = [record for record in records if record.ready_versions]
        return records[0] if len(records) == 1 else None

    def _enter(self, name: str, ready: Mapping[int, Model]) -> None:
        for key in [key for key in self.versions if key[0] == name]:
            del self.versions[key]
        self.versions.update({(name, version): model for version, model in ready.items()})
        self.latest.pop(name, None)
        if ready:
            self.latest[name] = ready[max(ready)]

    def refusal(self, name: str, version: int) -> BiremeError:
        """Return the error for a model version (-1: the latest) that is not in the look-up tables."""
        if self._has_namespaces and len(records := self.records_of(name)) > 1:
            num_serving = sum(bool(record.ready_versions) for record in records)
            if num_serving > 1:
                return ambiguous(name, num_serving)
            if num_serving == 0:
                return NotFound(
                    f"Identifier of model '{name}' is not found in global map: of its {len(records)} models none serves"
                )
        record = self.record_of(name)
        if record is None or not record.is_known:
            message = f"Request for unknown model: '{name}' is not found{suggest(name, self.latest)}"
            return InvalidArgument(message) if self._has_namespaces else NotFound(message)
        if version == -1:
            states = [_describe(number, each) for number, each in sorted(record.versions.items())]
            why = "; ".join(states) or f"its last load failed: {record.reason}"
            return NotFound(f"Request for unknown model: '{name}' has no available versions: {why}")
        found = record.versions.get(version)
        if found is None:
            ready = ", ".join(map(str, record.ready_versions)) or "none"
            return NotFound(
                f"Request for unknown model: '{name}' version {version} is not found (ready: {ready})"
            )
        return Unavailable(
            f"Request for unknown model: '{name}' version {version} is not at ready state: "
            f"{_describe(version, found)}"
        )

    def _absence(self, name: str, version: int) -> str:
        """Say why a model version (-1: the latest) does not serve, to follow its name in a message."""
        record = self.records.get(name)
        if record is None or not record.is_known:
            return "which is not loaded"
        if version != -1 and (ready := record.ready_versions):
            return f"which is not loaded (ready: {', '.join(map(str, ready))})"
        if record.is_unloaded:
            return "which was unloaded"
        states = [_describe(number, each) for number, each in sorted(record.versions.items())]
        return f"which is not ready: {'; '.join(states) or record.reason}"

    def look_at(self, needs: Iterable[Dependency]) -> Members:
        """Return what an ensemble that ``needs`` these models has to know of them now."""
        models = {need: self.find(*need) for need in needs}
        return {
            need: None if model is None else Member(replace(model.config, version_policy=None), model.way)
            for need, model in models.items()
        }

    def has_changed(self, members: Members) -> bool:
        """Whether a composing model is another than when `look_at` returned ``members``."""
        return self.look_at(members) != members

    def lacking(self, name: str, missing: Iterable[Dependency], failures: Mapping[str, str]) -> BiremeError:
        """Return why ensemble ``name`` cannot load, if composing models are missing; ``failures``: of their own loads."""
        missing = list(missing)
        clauses = [
            f"{need}, which failed to load: {failures[need.name]}"
            if need.name in failures and need.name not in self.latest
            else f"{need}, {self._absence(*need)}"
            for need in missing
        ]
        records = [self.records.get(need.name) for need in missing]
        is_wanted = all(record is not None and record.is_unloaded for record in records)
        message = f"ensemble '{name}' depends on {'; and on '.join(clauses)}"
        return InvalidArgument(f"{UNLOADED}: {message}" if is_wanted else message)

    def select(self, name: str | None, version: int) -> list[Model]:
        """Return the READY versions of every model, of one (-1: all of its versions), or one version; in order.

        Raises:
            InvalidArgument: the model or the version is not ready.
        """
        if name is None:
            records = sorted(self.records.items())
            return [model for _, record in records for model in record.ready_versions.values()]
        found = self.record_of(name)
        ready = {} if found is None else found.ready_versions
        if not ready:
            raise InvalidArgument(f"requested model '{name}' is not available")
        if version != -1 and version not in ready:
            raise InvalidArgument(f"requested model version is not available for model '{name}'")
        return [model for number, model in sorted(ready.items()) if version in (-1, number)]

    def all_settled(self) -> bool:
        """Whether every known model has a version, and every version is READY or unloaded on purpose."""
        return all(record.is_settled for record in self.records.values() if record.is_known)

    def index(self, directories: Mapping[str, Sized], *, ready: bool = False) -> list[dict[str, str]]:
        """Return the repository index: every directory, and every model with a state.

        ``directories`` are the names in the repositories, each with the repositories that have it.
        """
        known = {name: record for name, record in self.records.items() if record.is_known}
        entries: list[dict[str, str]] = []
        for name in sorted({*directories, *known}):
            if name in known:
                entries.extend(known[name].index_entries())
            elif len(directories[name]) > 1:
                entries.append({"name": name, "state": str(VersionState.UNAVAILABLE), "reason": DUPLICATE})
            else:
                entries.append(identity_of(name))
        return [entry for entry in entries if not ready or entry.get("state") == VersionState.READY]

    def __repr__(self) -> str:
        return f"ModelTable({list(self.records.values())})"


def _describe(version: int, record: VersionRecord) -> str:
    reason = record.reason.strip().partition("\n")[0]
    return f"version {version} is {record.state}{f' ({reason})' if reason else ''}"


def suggest(name: str, known: Iterable[str]) -> str:
    """Return a hint at the name that was probably meant, to follow a message; empty if there is none."""
    names = list(known)
    trimmed = name.strip()
    if trimmed != name and trimmed in names:
        return f"; did you mean '{trimmed}'? The name has a blank at its start or end"
    if len(names) > _MOST_NAMES_COMPARED or len(name) > _LONGEST_NAME_COMPARED:
        return ""
    by_folded = {other.casefold(): other for other in names}
    near = get_close_matches(name.casefold(), by_folded, n=1, cutoff=0.75)
    return f"; did you mean '{by_folded[near[0]]}'?" if near else ""
