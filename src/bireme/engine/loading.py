"""Loads one version of a model, from its file to warmed instances. Blocking: for a loading thread, never the loop."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

from bireme.backends.interface import Backend, Instance, LoadedModel, ModelContext, Placement, RequestInstance
from bireme.config import ModelConfig, apply_autocomplete, read_labels, validate
from bireme.engine.batch import BatchPlan
from bireme.engine.custom_batching import find_strategy
from bireme.engine.sequence_state import read_states
from bireme.engine.warmup import run_warmup
from bireme.scheduling import Scheduler, build_scheduler
from bireme.scheduling.sequence_batcher import SequenceBatcher
from bireme.types import Execution

log = logging.getLogger("bireme.engine")


@dataclass(slots=True)
class PreparedModel:
    """A version whose weights are in memory and whose instances are warm; it serves nobody yet."""

    name: str
    version: int
    config: ModelConfig
    """Final: what the file says is filled in, and it is valid."""
    loaded: LoadedModel
    scheduler: Scheduler | SequenceBatcher
    plan: BatchPlan
    instances: list[tuple[Placement, Instance | RequestInstance]]
    """The active ones."""
    passive: list[Instance | RequestInstance] = field(default_factory=list)
    labels: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Class labels by output name."""
    warmup: list[Execution] = field(default_factory=list)
    """What was executed to warm the instances up; it counts in the model's statistics."""
    load_duration_ns: int = 0

    def close(self) -> None:
        """Close the instances, then the model. For a version that never came to serve."""
        for instance in (*(instance for _, instance in self.instances), *self.passive):
            instance.close()
        self.loaded.close()


def load_version(ctx: ModelContext, backend: Backend, *, auto_complete: bool) -> PreparedModel:
    """Open the model, complete and check its config, make its instances and warm them up.

    An ensemble is completed even without ``auto_complete``: how it answers is what its steps do.

    On failure everything that was opened is closed again.

    Raises:
        BiremeError: why the version cannot serve.
    """
    start_ns = time.monotonic_ns()
    with ExitStack() as undo:
        loaded = backend.load(ctx)
        undo.callback(loaded.close)
        config = ctx.config
        if auto_complete or config.ensemble_scheduling is not None:
            config = apply_autocomplete(config, loaded.complete_config(config))
            if config.max_batch_size and not ctx.config.max_batch_size and config.ensemble_scheduling is None:
                log.info(
                    "model '%s': max_batch_size is set to %d, since the model file batches and the config gives none",
                    ctx.name,
                    config.max_batch_size,
                )
        validate(config, name=ctx.name, require_io=True, gpus=None)
        loaded.check_config(config)
        # Triton's test hook: hold everything, once, until so many requests are queued.
        scheduler = build_scheduler(
            config,
            hold_until=int(os.environ.get("TRITONSERVER_DELAY_SCHEDULER") or 0),
            strategy=find_strategy(
                config, version_dir=ctx.version_dir, model_dir=ctx.model_dir, backend_dir=ctx.backend_dir
            ),
        )
        plan = BatchPlan(config, read_states(config, ctx.model_dir))
        prepared = PreparedModel(ctx.name, ctx.version, config, loaded, scheduler, plan, [])
        for placement, passive in placements(config):
            instance = loaded.create_instance(placement)
            undo.callback(instance.close)
            if passive:
                prepared.passive.append(instance)
            else:
                prepared.instances.append((placement, instance))
        prepared.labels = {
            output.name: read_labels(ctx.model_dir, output.label_filename)
            for output in config.output
            if output.label_filename
        }
        active = [instance for _, instance in prepared.instances]
        prepared.warmup = run_warmup(config, ctx.model_dir, prepared.plan, active, ctx.host)
        undo.pop_all()
    prepared.load_duration_ns = time.monotonic_ns() - start_ns
    return prepared


def placements(config: ModelConfig) -> Iterator[tuple[Placement, bool]]:
    """Yield where each instance of ``config`` runs, and whether it is passive.

    Instances on different GPUs of one group share their name, as in Triton. An ensemble has one, without a group.
    """
    if config.ensemble_scheduling is not None:
        yield Placement(config.name), False
    for group in config.instance_group:
        for device_id in group.gpus or (0,):
            for index in range(group.count):
                placement = Placement(f"{group.name}_{index}", group.kind, device_id, group.profile)
                yield placement, group.passive
