"""Gather: the tensors of a batch's requests become the arrays of one execution.

A batch of one passes the request's own arrays. The rows of a larger batch are copied into buffers that the instance
reuses; strings are not (an array of references holds its elements alive).

Source: Triton ``backend_input_collector.cc`` (batch inputs, ragged inputs).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import prod
from sys import getrefcount

import numpy as np

from bireme.config.model_config import BatchInput, ModelConfig
from bireme.config.reshape import Reshape
from bireme.types import Array, InferenceRequest, datatypes

# References to a buffer that nobody else holds: the dict, the local variable and getrefcount's own argument.
_NUM_OWN_REFERENCES = 3


class GatherBuffers:
    """The memory that one instance gathers its batches into; grows to the largest batch. Not for two threads at once.

    A buffer is handed out again only when nothing refers to it any more. So a result that is a view of the model's
    input (an identity model) needs no copy: its buffer is left to it and a new one is made. Looking at the reference
    count costs 40 ns; comparing the addresses of every input and output costs 300 ns a pair and misses memory that a
    framework shares in ways of its own.
    """

    __slots__ = ("_buffers",)

    def __init__(self) -> None:
        self._buffers: dict[str, Array] = {}

    def take(self, name: str, dtype: np.dtype[np.generic], num_elements: int) -> Array:
        """Return an uninitialised 1-D array for input ``name``; valid for as long as it or a view of it lives."""
        buffer = self._buffers.get(name)
        if buffer is None or buffer.size < num_elements or getrefcount(buffer) > _NUM_OWN_REFERENCES:
            # A power of two, so that slowly growing batches settle; memory that is never touched costs nothing.
            buffer = np.empty(1 << max(num_elements - 1, 0).bit_length(), dtype)
            self._buffers[name] = buffer
        return buffer[:num_elements]

    @property
    def nbytes(self) -> int:
        """Bytes held for reuse."""
        return sum(buffer.nbytes for buffer in self._buffers.values())

    def __repr__(self) -> str:
        sizes = ", ".join(f"{name}: {buffer.nbytes}" for name, buffer in self._buffers.items())
        return f"GatherBuffers({sizes})"


Gather = Callable[[list[InferenceRequest], int, GatherBuffers], dict[str, Array]]


def make_gather(config: ModelConfig) -> Gather:
    """Return the function that gathers batches of the model; models without special inputs get the fast one."""
    special = any(tensor.reshape is not None or tensor.allow_ragged_batch for tensor in config.input)
    return SpecialGather(config) if special or config.batch_input else gather_plain


def gather_plain(
    requests: list[InferenceRequest], batch_size: int, buffers: GatherBuffers
) -> dict[str, Array]:
    """Return the inputs of one execution over ``batch_size`` rows."""
    inputs: dict[str, Array] = {}
    first = requests[0].inputs
    if len(requests) == 1:
        for name, tensor in first.items():
            inputs[name] = tensor.to_numpy()
        return inputs
    for name in first:
        inputs[name] = join_rows(
            name, [request.inputs[name].to_numpy() for request in requests], batch_size, buffers
        )
    return inputs


def join_rows(name: str, arrays: list[Array], num_rows: int, buffers: GatherBuffers) -> Array:
    """Return ``arrays``, of ``num_rows`` rows in all, below one another; a single one as it is.

    ``name`` is that of the buffer that they are copied into.
    """
    first = arrays[0]
    if len(arrays) == 1:
        return first
    dtype = first.dtype
    if dtype.hasobject:
        return np.concatenate(arrays)
    shape = (num_rows, *first.shape[1:])
    joined = buffers.take(name, dtype, prod(shape)).reshape(shape)
    # One call copies everything: 1 µs and 0.1 µs per array, a third of assigning slice by slice.
    np.concatenate(arrays, out=joined)
    return joined


class SpecialGather:
    """Gathers for models with reshaped or ragged inputs or with batch inputs."""

    def __init__(self, config: ModelConfig) -> None:
        self._num_leading = 1 if config.max_batch_size > 0 else 0
        self._reshapes = {
            tensor.name: Reshape(tensor.dims, tensor.reshape.shape)
            for tensor in config.input
            if tensor.reshape is not None
        }
        self._ragged = frozenset(tensor.name for tensor in config.input if tensor.allow_ragged_batch)
        self._batch_inputs = [_BatchInputPlan(batch_input) for batch_input in config.batch_input]

    def __call__(
        self, requests: list[InferenceRequest], batch_size: int, buffers: GatherBuffers
    ) -> dict[str, Array]:
        """Return the inputs of one execution; batch inputs come last."""
        sources = {
            name: self._arrays(name, [request.inputs[name].to_numpy() for request in requests])
            for name in requests[0].inputs
        }
        inputs: dict[str, Array] = {}
        for name, arrays in sources.items():
            if name in self._ragged:
                flat = [array.reshape(-1) for array in arrays]
                inputs[name] = join_rows(name, flat, sum(map(len, flat)), buffers)
            else:
                inputs[name] = join_rows(name, arrays, batch_size, buffers)
        for plan in self._batch_inputs:
            value = plan.make([array.shape for array in sources[plan.source]])
            inputs.update(dict.fromkeys(plan.targets, value))
        return inputs

    def _arrays(self, name: str, arrays: list[Array]) -> list[Array]:
        reshape = self._reshapes.get(name)
        if reshape is None:
            return arrays
        return [reshape.apply(array, self._num_leading) for array in arrays]


Shapes = list[tuple[int, ...]]


class _BatchInputPlan:
    """Makes the tensor of one ``batch_input`` from the shapes of its source input, one shape per request."""

    def __init__(self, batch_input: BatchInput) -> None:
        self.targets = batch_input.target_name
        self.source = batch_input.source_input[0]
        self._dtype = datatypes.NUMPY_DTYPES[datatypes.from_config_name(batch_input.data_type)]
        self._values = _BATCH_INPUT_KINDS[batch_input.kind]

    def make(self, shapes: Shapes) -> Array:
        return np.asarray(self._values(shapes), dtype=self._dtype)


def _counts(shapes: Shapes) -> Array:
    return np.array([prod(shape) for shape in shapes], dtype=np.int64)


def _accumulated_with_zero(shapes: Shapes) -> Array:
    return np.concatenate((np.zeros(1, dtype=np.int64), np.cumsum(_counts(shapes))))


def _item_shapes(shapes: Shapes) -> Array:
    items: Iterable[tuple[int, ...]] = (shape[1:] for shape in shapes for _ in range(shape[0]))
    return np.array(list(items), dtype=np.int64).reshape(-1, len(shapes[0]) - 1)


_BATCH_INPUT_KINDS: dict[str, Callable[[Shapes], Array]] = {
    "BATCH_ELEMENT_COUNT": _counts,
    "BATCH_ACCUMULATED_ELEMENT_COUNT": lambda shapes: np.cumsum(_counts(shapes)),
    "BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO": _accumulated_with_zero,
    # The shape is the message; the original leaves the content undefined.
    "BATCH_MAX_ELEMENT_COUNT_AS_SHAPE": lambda shapes: np.zeros(_counts(shapes).max(), dtype=np.int64),
    "BATCH_ITEM_SHAPE": _item_shapes,
    "BATCH_ITEM_SHAPE_FLATTEN": lambda shapes: _item_shapes(shapes).reshape(-1),
}
