"""Rules on an ensemble that need its composing models: the maps against their tensors, batch sizes, decoupled steps.

Source: Triton ``ensemble_utils.cc`` (ValidateEnsembleConfig). There, a step may not even mix the tensors of a decoupled
model with those that exist once for a request; here it may: they are the same for each of the responses.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from bireme.config.model_config import EnsembleStep, ModelConfig, ModelInput, ModelOutput
from bireme.config.reshape import model_dims


class _Seen(NamedTuple):
    """An ensemble tensor, as one model sees it."""

    where: str
    data_type: str
    dims: tuple[int, ...]
    """Without the batch dimension."""
    full_dims: tuple[int, ...]


def find_member_faults(config: ModelConfig, members: Sequence[ModelConfig]) -> Iterator[str]:
    """Yield what does not fit between the ensemble ``config`` and ``members``, the final config of each step's model."""
    ensemble = config.ensemble_scheduling
    assert ensemble is not None
    name = config.name
    seen: dict[str, _Seen] = {}
    own: tuple[ModelInput | ModelOutput, ...] = (*config.input, *config.output)
    for tensor in own:
        # What the steps see where clients see something else.
        dims = model_dims(tensor)
        seen[tensor.name] = _see(f"ensemble '{name}'", tensor, dims, batches=config.max_batch_size > 0)
    for index, (step, member) in enumerate(zip(ensemble.step, members, strict=True)):
        where = f"in ensemble '{name}', step {index} ('{step.model_name}'): "
        if 0 < member.max_batch_size < config.max_batch_size:
            yield (
                f"ensemble '{name}' allows maximum batch size to be {config.max_batch_size}, but it contains model "
                f"'{step.model_name}' (step {index}) which only allows maximum batch size to be {member.max_batch_size}"
            )
        for fault in (*_input_faults(step, member), *_output_faults(step, member)):
            yield where + fault
        for fault in _tensor_faults(step, member, seen):
            yield where + fault


def _input_faults(step: EnsembleStep, member: ModelConfig) -> Iterator[str]:
    inputs = {tensor.name: tensor for tensor in member.input}
    for name, tensor in step.input_map.items():
        if name not in inputs:
            yield (
                f"ensemble tensor '{tensor}' is mapping to non-existing input '{name}' in model '{member.name}', which "
                f"has {_names(inputs)}"
            )
    for name, declared in inputs.items():
        if name not in step.input_map and not declared.optional:
            yield f"input '{name}' in model '{member.name}' is not mapped to any ensemble tensors"


def _output_faults(step: EnsembleStep, member: ModelConfig) -> Iterator[str]:
    outputs = {tensor.name for tensor in member.output}
    for name, tensor in step.output_map.items():
        if name not in outputs:
            yield (
                f"ensemble tensor '{tensor}' is mapped from non-existing output '{name}' in model '{member.name}', which "
                f"has {_names(outputs)}"
            )
    mapped: dict[str, str] = {}
    for name, tensor in step.output_map.items():
        if tensor in mapped:
            yield (
                f"multiple outputs in model '{member.name}' are mapped to the same ensemble tensor '{tensor}': "
                f"'{mapped[tensor]}' and '{name}'"
            )
        mapped[tensor] = name


def _tensor_faults(step: EnsembleStep, member: ModelConfig, seen: dict[str, _Seen]) -> Iterator[str]:
    """Compare data types and shapes with those that other models gave the same ensemble tensors."""
    mapped: list[tuple[str, ModelInput | ModelOutput]] = [
        *((step.input_map[each.name], each) for each in member.input if each.name in step.input_map),
        *((step.output_map[each.name], each) for each in member.output if each.name in step.output_map),
    ]
    for name, tensor in mapped:
        mine = _see(f"model '{member.name}'", tensor, tensor.dims, batches=member.max_batch_size > 0)
        fault = _disagreement(seen.setdefault(name, mine), mine)
        if fault:
            yield f"ensemble tensor '{name}': {fault}"


def _see(where: str, tensor: ModelInput | ModelOutput, dims: tuple[int, ...], *, batches: bool) -> _Seen:
    return _Seen(where, tensor.data_type, dims, (-1, *dims) if batches else dims)


def _disagreement(one: _Seen, other: _Seen) -> str:
    if one.data_type != other.data_type:
        return (
            f"inconsistent data type: {one.data_type} is inferred from {one.where} while {other.data_type} is inferred "
            f"from {other.where}"
        )
    # The same tensor may go to a model that batches and to one that takes the batch as a whole.
    if not _fit(one.dims, other.dims) and not _fit(one.full_dims, other.full_dims):
        return (
            f"inconsistent shape: {_shape(one.full_dims)} is inferred from {one.where} while {_shape(other.full_dims)} is "
            f"inferred from {other.where}"
        )
    return ""


def _fit(one: tuple[int, ...], other: tuple[int, ...]) -> bool:
    return len(one) == len(other) and all(a == b or -1 in (a, b) for a, b in zip(one, other, strict=True))


def _shape(dims: tuple[int, ...]) -> str:
    return f"[{','.join(map(str, dims))}]"


def _names(names: Iterable[str]) -> str:
    return ", ".join(f"'{name}'" for name in sorted(names)) or "none"
