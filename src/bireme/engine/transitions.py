"""Transitions: every change of what serves, one plain function each. Loop thread only.

A request sees the state before or after such a function, and never one between.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace

from bireme.engine.dependencies import DependencyGraph, dependencies_of
from bireme.engine.live_models import LiveModels
from bireme.engine.load_plan import LoadPlan
from bireme.engine.memory import release_memory
from bireme.engine.model import Model
from bireme.engine.model_state import (
    UNLOADED,
    FailedLoad,
    LoadSource,
    Members,
    ModelRecord,
    VersionRecord,
    VersionState,
)
from bireme.engine.model_table import ModelTable
from bireme.telemetry import ServerMetrics
from bireme.types import BiremeError, InvalidArgument

log = logging.getLogger("bireme.engine")

_ON_THE_WAY = (VersionState.LOADING, VersionState.READY)


class Transitions:
    """What becomes of a model's record, and with it of its models, metrics and place in the graph of dependencies."""

    def __init__(
        self, table: ModelTable, live: LiveModels, graph: DependencyGraph, metrics: ServerMetrics
    ) -> None:
        self._table = table
        self._live = live
        self._graph = graph
        self._metrics = metrics

    def start_load(self, record: ModelRecord, plan: LoadPlan) -> None:
        """Show that the versions that do not serve yet are on their way. Twice is as once."""
        waiting = [record.versions.setdefault(version, VersionRecord()) for version in plan.to_load]
        waiting = [version_record for version_record in waiting if version_record.state not in _ON_THE_WAY]
        for version_record in waiting:
            version_record.move(VersionState.LOADING)
        if waiting or not plan.dependencies:
            log.info("loading: %s:%s", plan.name, ",".join(map(str, plan.to_load)))

    def finish_load(
        self, record: ModelRecord, plan: LoadPlan | None, members: Members, models: Mapping[int, Model]
    ) -> None:
        """Let the new models serve, then retire what they replace and what the version policy dropped."""
        record.has_failed = False
        record.reason = ""
        record.failed = None
        record.members = members
        wanted = record.ready_versions if plan is None else plan.versions
        replaced = [self._serve(record.versions[version], model) for version, model in models.items()]
        for version, version_record in list(record.versions.items()):
            if version in wanted:
                version_record.reason = ""
            elif version_record.is_ready:
                self._start_unloading(version_record)
            elif not version_record.is_unloaded and version_record.state is VersionState.UNAVAILABLE:
                del record.versions[version]  # it had failed, and nobody wants it any more
        if plan is not None:
            record.source = plan.source
            for version in plan.kept:
                kept = record.ready_versions[version]
                kept.config = replace(kept.config, version_policy=plan.source.config.version_policy)
        self._publish(record)
        for model in filter(None, replaced):
            self._live.retire(model)
        for version, model in models.items():
            seconds = model.statistics.load_duration_ns / 1e9
            log.info("successfully loaded '%s' version %d in %.2f s", record.name, version, seconds)

    def fail_load(
        self,
        record: ModelRecord,
        plan: LoadPlan,
        members: Members,
        models: Mapping[int, Model],
        errors: Mapping[int, BiremeError],
    ) -> BiremeError:
        """Leave what serves as it is; where nothing serves yet, let the good versions. Return what to answer."""
        record.has_failed = True
        was_serving = bool(record.ready_versions)
        for version, model in models.items():
            version_record = record.versions[version]
            if not was_serving:
                self._serve(version_record, model)
                continue
            if not version_record.is_ready:
                version_record.move(VersionState.UNAVAILABLE, reason=UNLOADED)
            self._live.retire(model)
        if models and not was_serving:
            record.source = plan.source
            record.members = members
        reason = next(iter(errors.values())).message
        record.failed = FailedLoad(plan, members, reason) if members else None
        for version, error in errors.items():
            self._fail_version(record, version, error)
        self._publish(record)
        if record.failed is None and not self._live.uses(plan.source.directory):
            self._live.dispose(_clear_up, plan.source)
        clauses = "".join(
            f"version {version} is at UNAVAILABLE state: {error.message};"
            for version, error in errors.items()
        )
        return InvalidArgument(f"load failed for model '{record.name}': {clauses}\n")

    def _fail_version(self, record: ModelRecord, version: int, error: BiremeError) -> None:
        is_wanted = error.message.startswith(f"{UNLOADED}:")
        log.log(
            logging.INFO if is_wanted else logging.ERROR,
            "failed to load '%s' version %d: %s",
            record.name,
            version,
            error.message,
        )
        version_record = record.versions.setdefault(version, VersionRecord())
        if version_record.is_ready:
            version_record.reason = _still_serving(error.message)
        elif version_record.state in (VersionState.UNLOADING, VersionState.UNAVAILABLE):
            version_record.reason = error.message
        else:
            if version_record.state is None:
                version_record.move(VersionState.LOADING)
            version_record.move(VersionState.UNAVAILABLE, reason=error.message)

    def note_failure(self, record: ModelRecord, reason: str) -> None:
        """Remember a load that failed before any version was tried."""
        log.error("failed to load '%s': %s", record.name, reason)
        record.has_failed = True
        record.reason = reason
        for version_record in record.versions.values():
            if version_record.is_ready:
                version_record.reason = _still_serving(reason)
            elif version_record.state is VersionState.UNAVAILABLE:
                version_record.reason = reason

    def unload(self, record: ModelRecord) -> None:
        """Let the model serve no more, and remember nothing of it but that."""
        record.source = None
        record.failed = None
        record.members = {}
        record.has_failed = False
        record.is_explicit = False
        record.reason = ""
        for version_record in record.versions.values():
            if version_record.is_ready:
                self._start_unloading(version_record)
            elif version_record.state is VersionState.UNAVAILABLE:
                version_record.reason = UNLOADED
            elif version_record.state is VersionState.UNLOADING:
                version_record.reason = ""
        self._publish(record)

    def _serve(self, version_record: VersionRecord, model: Model) -> Model | None:
        """Let ``model`` answer for its version; return the model that it replaces."""
        replaced = version_record.model if version_record.is_ready else None
        if replaced is not None and _shows_the_same(replaced, model):
            # The version never stopped serving, so its counters go on.
            replaced.statistics.load_duration_ns = model.statistics.load_duration_ns
            model.adopt_statistics(replaced.statistics)
        else:
            if replaced is not None:
                self._metrics.remove_model(replaced.statistics)
            self._metrics.add_model(model.statistics)
        version_record.move(VersionState.READY, model=model)
        return replaced

    def _start_unloading(self, version_record: VersionRecord, reason: str = "") -> None:
        model = version_record.model
        assert model is not None
        version_record.move(VersionState.UNLOADING, model=model, reason=reason)
        self._metrics.remove_model(model.statistics)
        self._live.retire(model, version_record)

    def _publish(self, record: ModelRecord) -> None:
        """Let requests and the graph of dependencies know what the record says now."""
        self._table.publish(record)
        sources = (record.source, record.failed and record.failed.plan.source)
        self._graph.assign(
            record.name,
            [need.name for source in sources if source for need in dependencies_of(source.config)],
        )

    def withdraw(self, record: ModelRecord, reason: str) -> None:
        """Let an ensemble that no longer fits its composing models serve no more, until it does again."""
        record.source = None
        record.members = {}
        for version_record in record.versions.values():
            if version_record.is_ready:
                self._start_unloading(version_record, reason)
        self._publish(record)

    def fail_again(self, record: ModelRecord, failed: FailedLoad) -> None:
        """Remember that there is a newer config than that which serves, or served, and that it has not been possible yet."""
        record.failed = replace(failed, members=self._table.look_at(failed.members))
        record.has_failed = True
        for version_record in record.versions.values():
            if version_record.is_ready:
                version_record.reason = _still_serving(failed.reason)
        self._publish(record)


def _clear_up(source: LoadSource) -> None:
    """Remove what a failed load brought along, and what its backend left behind."""
    if source.agents is not None:
        source.agents.end()
    source.directory.close()
    release_memory()


def _still_serving(reason: str) -> str:
    return f"the last load failed, what was loaded before keeps serving: {reason}"


def _shows_the_same(old: Model, new: Model) -> bool:
    """Whether both have the same metric labels, buckets and families."""
    return _what_is_shown(old) == _what_is_shown(new)


def _what_is_shown(model: Model) -> tuple[object, ...]:
    config = model.config
    return config.metric_tags, config.model_metrics, config.response_cache, model.max_batch_size
