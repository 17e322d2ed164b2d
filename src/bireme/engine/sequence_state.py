"""Implicit state: tensors that the server carries from one request of a sequence to the next.

A state is an input of the model that no client sends and an output that comes back as that input with the sequence's next
request. `SequenceStates` adds the inputs to an execution and takes the outputs out of its results. The tensors live in the
sequence's `SequenceSlot` and nowhere else, as a dict by input name, each with a leading batch dimension of 1 if the model batches.

- A START request begins with the initial state, whatever was there.
- A request that fails leaves the state as it was before it. So does one whose deadline has passed while it ran: its caller has
  heard that it failed, and may send it again.
- Null requests, and those of a warm-up, get a state of their own that nobody keeps.

Source: Triton ``sequence_state.cc`` (SequenceStates), ``sequence_batch_scheduler.cc`` (GenerateInitialStateData).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Final

import numpy as np

from bireme.config.model_config import ModelConfig, ModelOutput, SequenceState
from bireme.engine.data_files import read_elements, zeros
from bireme.engine.gather import GatherBuffers, join_rows
from bireme.engine.scatter import OutputPlan, Result
from bireme.types import Array, BackendFailed, BiremeError, InferenceRequest, SequenceSlot, datatypes

INITIAL_STATE_FOLDER: Final = "initial_state"
"""Name of the folder, beside config.pbtxt, that holds the data files."""

_LARGE_NBYTES: Final = 1 << 16
"""A smaller state is copied sooner (3 µs) than it is found out whether it must be (0.3 µs for each input)."""

States = dict[str, Array]


def read_states(config: ModelConfig, model_dir: Path) -> SequenceStates | None:
    """Return the states of a model whose config is final and valid; None: it has none. Blocking: it reads data files.

    Raises:
        InvalidArgument: a data file is missing, elsewhere, too short or of another kind.
    """
    batching = config.sequence_batching
    if batching is None or not batching.state:
        return None
    return SequenceStates(
        _State(config, state, _initial_value(config, state, model_dir)) for state in batching.state
    )


class SequenceStates:
    """The states of one model. It holds no sequence's tensors itself: any thread may use it."""

    __slots__ = ("_are_variable", "_initial_shapes", "_states")

    def __init__(self, states: Iterable[_State]) -> None:
        self._states = tuple(states)
        self._are_variable = any(state.is_variable for state in self._states)
        self._initial_shapes = tuple(state.initial.shape for state in self._states)

    def add_inputs(
        self, inputs: dict[str, Array], slots: Sequence[SequenceSlot | None], buffers: GatherBuffers
    ) -> None:
        """Add the states of ``slots``, one for each row of the batch, to the inputs of an execution.

        The arrays are borrowed from the slots or from ``buffers``.

        Raises:
            BackendFailed: states of one batch have different shapes.
        """
        held = [None if slot is None else self._of(slot) for slot in slots]
        model = next((states for states in held if states is not None), None)
        for state in self._states:
            name = state.name
            if model is None:
                rows = [state.initial.copy() for _ in held]
            else:
                rows = [_blank(model[name]) if states is None else states[name] for states in held]
            inputs[name] = state.join(rows, buffers)

    def keep(
        self,
        outputs: Mapping[str, Array],
        inputs: Mapping[str, Array],
        requests: list[InferenceRequest],
        slots: Sequence[SequenceSlot | None],
        results: list[Result],
    ) -> None:
        """Put the new states into ``slots``, as their ``next``, all of them or none; not where the request's result is an error.

        Sequences whose states have come to have different shapes share no batch any more.

        Raises:
            BackendFailed: an output is missing, or has a wrong data type or shape. No state has changed.
        """
        columns = [(state.name, state.take(outputs, inputs, requests)) for state in self._states]
        for index, slot in enumerate(slots):
            if slot is not None and not isinstance(results[index], BiremeError):
                state = {name: rows[index] for name, rows in columns}
                key = None
                if self._are_variable:
                    shapes = tuple(rows[index].shape for _, rows in columns)
                    key = None if shapes == self._initial_shapes else shapes
                slot.next = (state, key)

    def _of(self, slot: SequenceSlot) -> States:
        if slot.is_start or slot.state is None:
            # Copies: a framework that writes into its input spoils this sequence and no other.
            slot.state = {state.name: state.initial.copy() for state in self._states}
            slot.batch_key = None
        states: States = slot.state
        return states


class _State:
    """One state: what its tensors are called, and what they look like."""

    __slots__ = ("_buffer", "_is_answered", "_label", "_output", "_shape", "initial", "is_variable", "name")

    def __init__(self, config: ModelConfig, state: SequenceState, initial: Array) -> None:
        self.name = state.input_name
        self.initial = initial
        """Never given away, only copies."""
        self.is_variable = -1 in state.dims
        self._shape = (*_leading(config), *state.dims)
        self._output = OutputPlan(
            config, ModelOutput(name=state.output_name, data_type=state.data_type, dims=state.dims)
        )
        self._label = f"model '{config.name}', state '{state.output_name}'"
        # Clients may write to what they are answered, or it may lie in their memory.
        self._is_answered = any(output.name == state.output_name for output in config.output)
        # An input of the config may have the name too, and another type.
        self._buffer = f"{self.name} (state)"

    def join(self, rows: list[Array], buffers: GatherBuffers) -> Array:
        if self.is_variable and any(row.shape != rows[0].shape for row in rows):
            shapes = ", ".join(str(list(shape)) for shape in sorted({row.shape for row in rows}))
            raise BackendFailed(f"{self._label}: sequences of one batch have states of shapes {shapes}")
        return join_rows(self._buffer, rows, len(rows), buffers)

    def take(
        self, outputs: Mapping[str, Array], inputs: Mapping[str, Array], requests: list[InferenceRequest]
    ) -> list[Array]:
        """Return the new state of each request's sequence, in memory that nobody else has."""
        rows = self._output.cut(outputs, requests)
        if isinstance(rows, BiremeError):
            raise rows
        shape = rows[0].shape
        if shape != self._shape and not _fits(shape, self._shape):
            raise BackendFailed(
                f"{self._label}: the config's dims make shape {list(self._shape)}, but the model returned "
                f"{list(shape)}"
            )
        if len(rows) == 1 and self._is_own(rows[0], inputs):
            return rows
        return [row.copy() for row in rows]

    def _is_own(self, array: Array, inputs: Mapping[str, Array]) -> bool:
        """Whether a large array is neither the client's nor in its request, so that it need not be copied."""
        return (
            array.nbytes >= _LARGE_NBYTES
            and not self._is_answered
            and not any(
                np.may_share_memory(array, other) for name, other in inputs.items() if name != self.name
            )
        )


def _initial_value(config: ModelConfig, state: SequenceState, model_dir: Path) -> Array:
    """Return what a sequence starts with: the config's data; without any, zeros (or empty strings), variable dims as 1."""
    datatype = datatypes.from_config_name(state.data_type)
    if not state.initial_state:
        dims = tuple(1 if dim == -1 else dim for dim in state.dims)
        return zeros(datatype, prod(dims)).reshape((*_leading(config), *dims))
    (initial,) = state.initial_state
    num_elements = prod(initial.dims)
    if initial.data_file is None:
        values = zeros(datatype, num_elements)
    else:
        what = f"state '{state.input_name}' of model '{config.name}'"
        folder = model_dir / INITIAL_STATE_FOLDER
        values = read_elements(what, "initial_state", datatype, num_elements, folder, initial.data_file)
    return values.reshape((*_leading(config), *initial.dims))


def _leading(config: ModelConfig) -> tuple[int, ...]:
    return (1,) if config.max_batch_size > 0 else ()


def _blank(array: Array) -> Array:
    """Return a state for a null request: zeros, or empty strings, of the shape of a real one."""
    return np.full(array.shape, b"", np.object_) if array.dtype.hasobject else np.zeros_like(array)


def _fits(shape: tuple[int, ...], dims: tuple[int, ...]) -> bool:
    return len(shape) == len(dims) and all(dim in (-1, size) for size, dim in zip(shape, dims, strict=True))
