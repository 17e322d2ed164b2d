"""Rules on an ensemble that can be checked without its composing models: the steps and the flow between them.

Source: Triton ``model_config_utils.cc`` (ValidateEnsembleSchedulingConfig, BuildEnsembleGraph).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from bireme.config.backend_rules import ENSEMBLE_PLATFORM
from bireme.config.conditions import DEFAULT, WHEN, Condition, conditions, defaults
from bireme.config.faults import near_name
from bireme.config.model_config import EnsembleStep, ModelConfig, ModelEnsembling
from bireme.types.errors import InvalidArgument


def find_faults(config: ModelConfig) -> Iterator[str]:
    """Yield the faults of ``ensemble_scheduling``."""
    ensemble = config.ensemble_scheduling
    if ensemble is None:
        return
    name = config.name
    if config.platform != ENSEMBLE_PLATFORM:
        yield (
            f"ensemble scheduling cannot be set for model '{name}' whose platform is not {ENSEMBLE_PLATFORM}: "
            f"'platform' is '{config.platform}'"
        )
    if config.instance_group:
        yield f"instance group should not be specified for ensemble '{name}'"
    if config.optimization is not None:
        yield f"optimization should not be specified for ensemble '{name}'"
    if config.model_warmup:
        yield f"model_warmup can not be specified for ensemble '{name}'"
    if not ensemble.step:
        yield f"must specify 'step' for ensemble '{name}'"
        return
    for index, step in enumerate(ensemble.step):
        for field in ("model_name", "input_map", "output_map"):
            if not getattr(step, field):
                yield f"must specify '{field}' in step {index} of ensemble '{name}'"
    yield from _multiple_writers(ensemble, name)
    try:
        found = conditions(config)
        found_defaults = defaults(config)
    except InvalidArgument as error:
        yield error.message
        return
    yield from _misplaced(config, ensemble, found, found_defaults)
    yield from _flow(config, ensemble, looked_at(ensemble, found))


def looked_at(ensemble: ModelEnsembling, found: Mapping[str, Condition]) -> list[frozenset[str]]:
    """Return, for each step, the tensors that its condition looks at."""
    return [
        frozenset(
            name for tensor in step.output_map.values() if tensor in found for name in found[tensor].tensors
        )
        for step in ensemble.step
    ]


def _misplaced(
    config: ModelConfig,
    ensemble: ModelEnsembling,
    found: Mapping[str, Condition],
    found_defaults: Iterable[str],
) -> Iterator[str]:
    """Look for conditions and defaults of tensors that no step writes, and for steps with two conditions."""
    name = config.name
    written = {tensor for step in ensemble.step for tensor in step.output_map.values()}
    for prefix, tensors in ((WHEN, found), (DEFAULT, found_defaults)):
        for tensor in tensors:
            if tensor not in written:
                yield (
                    f"parameter '{prefix}{tensor}' of ensemble '{name}' names no tensor that a step writes; there are "
                    + (", ".join(f"'{each}'" for each in sorted(written)) or "none")
                )
    for index, step in enumerate(ensemble.step):
        own = [tensor for tensor in step.output_map.values() if tensor in found]
        if len(own) > 1:
            yield (
                f"step {index} ('{step.model_name}') of ensemble '{name}' has several conditions, of "
                f"{' and '.join(repr(tensor) for tensor in own)}: join them by 'and'"
            )


def _multiple_writers(ensemble: ModelEnsembling, name: str) -> Iterator[str]:
    writers: dict[str, int] = {}
    for index, step in enumerate(ensemble.step):
        for tensor in step.output_map.values():
            if tensor in writers:
                yield (
                    f"ensemble tensor '{tensor}' can appear in an output map only once for ensemble '{name}' step "
                    f"{index}: step {writers[tensor]} writes it already"
                )
            writers.setdefault(tensor, index)


def _flow(
    config: ModelConfig, ensemble: ModelEnsembling, looked_at: Sequence[frozenset[str]]
) -> Iterator[str]:
    """Follow the tensors from the ensemble's inputs: what is used, what is ever written, what leads nowhere."""
    name = config.name
    read = {tensor for step in ensemble.step for tensor in step.input_map.values()}.union(*looked_at)
    written = {tensor for step in ensemble.step for tensor in step.output_map.values()}
    inputs = [tensor.name for tensor in config.input]
    outputs = [tensor.name for tensor in config.output]
    for tensor in inputs:
        if tensor in written:
            yield f"ensemble input '{tensor}' for ensemble '{name}' is written by a step as well"
        elif tensor not in read:
            yield f"ensemble input '{tensor}' for ensemble '{name}' is not used"
    needs = [
        tuple(dict.fromkeys((*step.input_map.values(), *sorted(looked_at[index]))))
        for index, step in enumerate(ensemble.step)
    ]
    ready = _reachable(ensemble.step, needs, set(inputs))
    for tensor in outputs:
        if tensor not in read | written:
            yield f"ensemble output '{tensor}' for ensemble '{name}' is not used: no step writes it"
        elif tensor not in ready:
            yield _unwritten(tensor, ensemble.step, needs, ready, name)
    for tensor in sorted((read | written) - set(outputs)):
        if tensor not in ready:
            near = None if tensor in written else near_name(tensor, sorted(written.union(inputs)))
            hint = f"; did you mean '{near}'?" if near else ""
            yield f"ensemble tensor '{tensor}' is unused in ensemble '{name}': nothing ever writes it{hint}"
        elif tensor not in read:
            yield f"ensemble tensor '{tensor}' is unused in ensemble '{name}': no step reads it and it is no output"


def _reachable(
    steps: tuple[EnsembleStep, ...], needs: Sequence[tuple[str, ...]], ready: set[str]
) -> set[str]:
    """Return the tensors that come to exist when those in ``ready`` do; ``needs``: what each step waits for."""
    waiting = set(range(len(steps)))
    while True:
        runnable = {index for index in waiting if ready.issuperset(needs[index])}
        if not runnable:
            return ready
        for index in runnable:
            ready.update(steps[index].output_map.values())
        waiting -= runnable


def _unwritten(
    output: str,
    steps: tuple[EnsembleStep, ...],
    needs: Sequence[tuple[str, ...]],
    ready: set[str],
    name: str,
) -> str:
    """Say that an output is never written, and which tensor at the start of its chain is missing."""
    makers = {tensor: index for index, step in enumerate(steps) for tensor in step.output_map.values()}
    missing, seen = output, {output}
    while (index := makers.get(missing)) is not None:
        source = next((tensor for tensor in needs[index] if tensor not in ready | seen), None)
        if source is None:
            break
        seen.add(source)
        missing = source
    message = f"output '{output}' for ensemble '{name}' is not written"
    if missing != output:
        message += f": at least one of its depending tensors, '{missing}', is not connected"
    return message
