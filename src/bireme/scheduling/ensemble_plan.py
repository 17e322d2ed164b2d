"""EnsemblePlan: an ensemble, compiled at load into slots and steps, and for each set of wanted outputs into a selection.

A slot is a tensor of the ensemble; one step at most writes it. A scope is what exists once for each response of a decoupled
step: scope 0 is the request itself, a decoupled step opens a scope of its own inside the one it runs in. A step runs in the
deepest scope of what it reads; what comes from the scopes around that is the same for all of its runs.

Source: Triton ``ensemble_utils.cc``, ``ensemble_scheduler.cc`` (pruning, ReshapeTensorDims).
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple

import numpy as np

from bireme.config import Condition, ModelConfig, conditions, defaults
from bireme.config.model_config import ModelOutput
from bireme.config.reshape import Reshape
from bireme.types import Array, InvalidArgument, Tensor, datatypes

SINK: Final = -1
"""The index of the request itself among those that wait for slots."""
_MOST_SELECTIONS: Final = 64
"""Sets of wanted outputs whose selection is kept."""
_MOST_DEFAULT_BYTES: Final = 1 << 31
"""Of a default, for one row. A scalar fills any shape, but responses have to hold it."""
_LEAVES: Final[dict[str, type | tuple[type, ...]]] = {
    "BOOL": bool,
    "BYTES": str,
    "FP16": (int, float),
    "BF16": (int, float),
    "FP32": (int, float),
    "FP64": (int, float),
}
"""What stands for an element in JSON, by data type; for the others: integers."""


class Feed(NamedTuple):
    """One input of a step."""

    name: str
    slot: int
    is_required: bool
    bridge: Bridge | None


class Bridge(NamedTuple):
    """Between a model that batches and one that does not. Source: Triton ``ensemble_scheduler.cc`` (ReshapeTensorDims)."""

    adds: bool
    """Whether the reader batches and the writer does not."""
    dims: tuple[int, ...]
    """What the reader wants, without the batch dimension."""

    def apply(self, tensor: Tensor) -> Tensor:
        """Return ``tensor`` with a batch dimension of 1 added or taken away, if that makes it fit; else as it is."""
        shape = tensor.shape
        fits = _admits(self.dims, shape)
        if self.adds:
            return tensor.reshaped((1, *shape)) if fits else tensor
        return tensor if fits or shape[:1] != (1,) else tensor.reshaped(shape[1:])


class Step:
    """One model of the ensemble."""

    __slots__ = (
        "condition",
        "condition_slots",
        "defaults",
        "feeds",
        "index",
        "is_batching",
        "is_decoupled",
        "label",
        "model_name",
        "model_version",
        "needs",
        "out_scope",
        "output_names",
        "outputs",
        "scope",
    )

    def __init__(
        self, index: int, name: str, version: int, feeds: Sequence[Feed], outputs: Mapping[str, int]
    ) -> None:
        self.index = index
        self.model_name = name
        self.model_version = version
        self.feeds = tuple(feeds)
        self.outputs = dict(outputs)
        """Slots by the names of the model's outputs."""
        self.output_names = tuple(outputs)
        self.label = f"step {index} ('{name}')"
        self.condition: Condition | None = None
        self.condition_slots: dict[str, int] = {}
        """Slots of the tensors that the condition looks at, by their names."""
        self.defaults: dict[int, Default] = {}
        """What slots hold when the step is skipped."""
        self.is_decoupled = False
        self.is_batching = False
        self.needs: frozenset[int] = frozenset(feed.slot for feed in feeds)
        """The slots that it waits for."""
        self.scope = self.out_scope = 0

    def __repr__(self) -> str:
        return f"Step({self.index}, {self.model_name!r})"


class Default(NamedTuple):
    """What an output of a skipped step is."""

    name: str
    datatype: str
    row: Array
    """Without the batch dimension."""
    batches: bool

    def make(self, batch_size: int) -> Tensor:
        """Return it for a request of ``batch_size`` rows."""
        array = np.broadcast_to(self.row, (batch_size, *self.row.shape)) if self.batches else self.row
        return Tensor(self.name, self.datatype, array.shape, array)


class Output(NamedTuple):
    """One output of the ensemble."""

    name: str
    slot: int
    bridge: Bridge | None
    reshape: Reshape | None
    """From what the steps see to what clients see."""


class Selection:
    """What has to run for some of the outputs."""

    __slots__ = ("missing", "num_reads", "outputs", "sink_needs", "sink_scope", "steps_of_scope", "waiters")

    def __init__(self, plan: EnsemblePlan, outputs: tuple[Output, ...]) -> None:
        self.outputs = outputs
        self.sink_needs = frozenset(output.slot for output in outputs)
        self.sink_scope = plan.deepest({plan.scope_of_slot[slot] for slot in self.sink_needs})
        steps = _needed_steps(plan, self.sink_needs)
        self.steps_of_scope: list[list[Step]] = [[] for _ in plan.parent_scopes]
        self.waiters: list[list[int]] = [[] for _ in range(plan.num_slots)]
        """By slot, the steps of its own scope that wait for it, by index."""
        self.missing: dict[int, int] = {}
        """For each step of the request's own scope, how many slots it waits for."""
        self.num_reads = [0] * plan.num_slots
        """How often each slot is read before it can be let go; 0: it lives as long as its scope."""
        outlive: set[int] = set()
        for step in steps:
            self.steps_of_scope[step.scope].append(step)
        needs = [(step.index, step.scope, step.needs) for step in steps]
        for index, scope, slots in (*needs, (SINK, self.sink_scope, self.sink_needs)):
            if scope == 0:
                self.missing[index] = len(slots)
            for slot in slots:
                if plan.scope_of_slot[slot] == scope:
                    self.waiters[slot].append(index)
                    self.num_reads[slot] += 1
                else:
                    outlive.add(slot)
        for slot in outlive:
            self.num_reads[slot] = 0


class EnsemblePlan:
    """The compiled ensemble. Immutable but for its cache; any thread."""

    def __init__(self, config: ModelConfig, members: Sequence[ModelConfig]) -> None:
        """Compile ``config``, which is valid together with ``members``, the configs of its steps' models.

        Raises:
            InvalidArgument: a step takes tensors of different decoupled models, or a default does not fit its tensor.
        """
        ensemble = config.ensemble_scheduling
        assert ensemble is not None
        self.name = config.name
        self.is_batching = config.max_batch_size > 0
        self.max_inflight_requests = ensemble.max_inflight_requests
        """How many requests each step may have in flight; 0: any number."""
        self._slots: dict[str, int] = {}
        self.inputs = {tensor.name: self._slot(tensor.name) for tensor in config.input}
        self.input_reshapes = {
            tensor.name: Reshape(tensor.dims, tensor.reshape.shape)
            for tensor in config.input
            if tensor.reshape is not None
        }
        """From what clients see to what the steps see."""
        self.steps = [self._make_step(index, config, members[index]) for index in range(len(ensemble.step))]
        self._set_conditions(config, members)
        writes_batches = self._batching_of_slots()
        self._set_bridges(members, writes_batches)
        self.num_slots = len(self._slots)
        self.parent_scopes: list[int] = [-1]
        self.scope_of_slot = [0] * self.num_slots
        self._set_scopes()
        self._outputs = {tensor.name: self._make_output(tensor, writes_batches) for tensor in config.output}
        self.is_decoupled = len(self.parent_scopes) > 1
        """Whether a request may have any number of responses."""
        self.readers = self._find_readers()
        """For each step, those that read what it writes."""
        self.select = lru_cache(_MOST_SELECTIONS)(self._select)
        self.select(None)

    def _find_readers(self) -> list[tuple[Step, ...]]:
        readers: list[list[Step]] = [[] for _ in range(self.num_slots)]
        for step in self.steps:
            for slot in step.needs:
                readers[slot].append(step)
        return [
            tuple(dict.fromkeys(reader for slot in step.outputs.values() for reader in readers[slot]))
            for step in self.steps
        ]

    def _select(self, names: tuple[str, ...] | None) -> Selection:
        """Return what has to run for the outputs called ``names``; None: for all."""
        return Selection(
            self, tuple(self._outputs[name] for name in (self._outputs if names is None else names))
        )

    def deepest(self, scopes: Iterable[int]) -> int:
        """Return the scope inside all the others.

        Raises:
            InvalidArgument: there is none: they are of different decoupled models.
        """
        found = 0
        for scope in scopes:
            if self._is_inside(scope, found):
                found = scope
            elif not self._is_inside(found, scope):
                raise InvalidArgument(
                    f"in ensemble '{self.name}', tensors that come from different decoupled models cannot be put together"
                )
        return found

    def _is_inside(self, inner: int, outer: int) -> bool:
        while inner > outer:
            inner = self.parent_scopes[inner]
        return inner == outer

    def _slot(self, tensor: str) -> int:
        return self._slots.setdefault(tensor, len(self._slots))

    def _make_step(self, index: int, config: ModelConfig, member: ModelConfig) -> Step:
        assert config.ensemble_scheduling is not None
        step = config.ensemble_scheduling.step[index]
        optional = {tensor.name for tensor in member.input if tensor.optional}
        feeds = [
            Feed(name, self._slot(tensor), name not in optional, None)
            for name, tensor in step.input_map.items()
        ]
        outputs = {name: self._slot(tensor) for name, tensor in step.output_map.items()}
        made = Step(index, step.model_name, step.model_version, feeds, outputs)
        policy = member.model_transaction_policy
        made.is_decoupled = policy is not None and policy.decoupled
        made.is_batching = member.max_batch_size > 0
        return made

    def _set_conditions(self, config: ModelConfig, members: Sequence[ModelConfig]) -> None:
        assert config.ensemble_scheduling is not None
        found, found_defaults = conditions(config), defaults(config)
        for step, member in zip(self.steps, members, strict=True):
            tensors = config.ensemble_scheduling.step[step.index].output_map
            for name, slot in step.outputs.items():
                tensor = tensors[name]
                if tensor in found:
                    step.condition = found[tensor]
                    step.condition_slots = {read: self._slots[read] for read in step.condition.tensors}
                    step.needs |= frozenset(step.condition_slots.values())
                if tensor in found_defaults:
                    declared = next(output for output in member.output if output.name == name)
                    step.defaults[slot] = _make_default(
                        self.name, tensor, declared, found_defaults[tensor], batches=step.is_batching
                    )

    def _batching_of_slots(self) -> list[bool]:
        """Return, for each slot, whether what is in it has a batch dimension."""
        batches = [self.is_batching] * len(self._slots)
        for step in self.steps:
            for slot in step.outputs.values():
                batches[slot] = step.is_batching
        return batches

    def _set_bridges(self, members: Sequence[ModelConfig], writes_batches: list[bool]) -> None:
        for step, member in zip(self.steps, members, strict=True):
            dims = {tensor.name: tensor.dims for tensor in member.input}
            step.feeds = tuple(
                feed._replace(bridge=Bridge(step.is_batching, dims[feed.name]))
                if writes_batches[feed.slot] != step.is_batching
                else feed
                for feed in step.feeds
            )

    def _set_scopes(self) -> None:
        """Follow the tensors from the inputs; a decoupled step opens a scope."""
        ready = set(self.inputs.values())
        waiting = list(self.steps)
        while runnable := [step for step in waiting if step.needs <= ready]:
            for step in runnable:
                step.scope = self._scope_of(step)
                step.out_scope = step.scope
                if step.is_decoupled:
                    step.out_scope = len(self.parent_scopes)
                    self.parent_scopes.append(step.scope)
                for slot in step.outputs.values():
                    self.scope_of_slot[slot] = step.out_scope
                ready.update(step.outputs.values())
                waiting.remove(step)

    def _scope_of(self, step: Step) -> int:
        try:
            return self.deepest({self.scope_of_slot[slot] for slot in step.needs})
        except InvalidArgument:
            producers = [
                other.label
                for other in self.steps
                if other.is_decoupled
                and any(self._is_inside(self.scope_of_slot[s], other.out_scope) for s in step.needs)
            ]
            raise InvalidArgument(
                f"in ensemble '{self.name}', {step.label} receives inputs originated from different decoupled models: "
                f"{', '.join(producers)}"
            ) from None

    def _make_output(self, tensor: ModelOutput, writes_batches: list[bool]) -> Output:
        slot = self._slots[tensor.name]
        reshape = None if tensor.reshape is None else Reshape(tensor.reshape.shape, tensor.dims)
        dims = tensor.dims if reshape is None else reshape.source
        bridge = Bridge(self.is_batching, dims) if writes_batches[slot] != self.is_batching else None
        return Output(tensor.name, slot, bridge, reshape)

    def __repr__(self) -> str:
        return f"EnsemblePlan({self.name!r}, {len(self.steps)} steps, {len(self.parent_scopes)} scopes)"


def _needed_steps(plan: EnsemblePlan, wanted: frozenset[int]) -> list[Step]:
    """Return the steps without which some of ``wanted`` would not exist, in the config's order."""
    writers = {slot: step for step in plan.steps for slot in step.outputs.values()}
    needed: set[Step] = set()
    looking = list(wanted)
    while looking:
        step = writers.get(looking.pop())
        if step is not None and step not in needed:
            needed.add(step)
            looking += step.needs
    return [step for step in plan.steps if step in needed]


def _make_default(ensemble: str, tensor: str, output: ModelOutput, value: Any, *, batches: bool) -> Default:
    """Return the default of ``tensor``, which is ``output`` of a step's model.

    Raises:
        InvalidArgument: the value does not fit the data type or the shape.
    """
    datatype = datatypes.from_config_name(output.data_type)
    try:
        _check_leaves(value, _LEAVES.get(datatype, int))
        if datatype == "BYTES":
            row = Tensor.from_numpy(tensor, np.array(value, dtype=np.object_), "BYTES").to_numpy()
        else:
            row = np.array(value, dtype=datatypes.NUMPY_DTYPES[datatype])
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise InvalidArgument(
            f"parameter 'default:{tensor}' of ensemble '{ensemble}' is no {datatype} tensor: {error}"
        ) from None
    if row.ndim == 0:
        row = np.broadcast_to(row, tuple(1 if dim == -1 else dim for dim in output.dims))
    elif not row.size and -1 in output.dims:  # JSON has no way to write an array of shape [0, 4, 2]
        row = row.reshape([max(dim, 0) for dim in output.dims])
    if math.prod(row.shape) * row.itemsize > _MOST_DEFAULT_BYTES:
        raise InvalidArgument(
            f"parameter 'default:{tensor}' of ensemble '{ensemble}' would have more than {_MOST_DEFAULT_BYTES} bytes: "
            f"output '{output.name}' has {list(output.dims)}"
        )
    if not _admits(output.dims, row.shape):
        raise InvalidArgument(
            f"parameter 'default:{tensor}' of ensemble '{ensemble}' has shape {list(row.shape)}, but output "
            f"'{output.name}' has {list(output.dims)}"
        )
    return Default(tensor, datatype, row, batches)


def _check_leaves(value: Any, kinds: type | tuple[type, ...]) -> None:
    """See that a JSON value is a scalar or a list of what the data type takes: numpy would turn almost all into it.

    Raises:
        TypeError: it is or holds something else.
    """
    if isinstance(value, list):
        for each in value:
            _check_leaves(each, kinds)
    elif not isinstance(value, kinds) or (isinstance(value, bool) and kinds is not bool):
        raise TypeError(f"{json.dumps(value)} is none of its elements")


def _admits(dims: tuple[int, ...], shape: tuple[int, ...]) -> bool:
    return len(dims) == len(shape) and all(a in (-1, b) for a, b in zip(dims, shape, strict=True))
