"""Scatter: the arrays of one execution become the output tensors of each of its requests.

Responses hold views of the batch's arrays; nothing is copied. What a backend returns is checked here, once: a missing
output, a wrong data type or a wrong number of rows fails the requests that want that output, and no others.

Source: Triton ``backend_output_responder.cc``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import accumulate, pairwise
from math import prod
from typing import Final

import numpy as np

from bireme.config.model_config import ModelConfig, ModelOutput
from bireme.config.reshape import Reshape
from bireme.types import Array, BackendFailed, BiremeError, InferenceRequest, Tensor, datatypes

Outputs = Mapping[str, Array]
Result = list[Tensor] | BiremeError
Scatter = Callable[[Outputs, list[InferenceRequest]], list[Result]]

_NO_DTYPE: Final = np.dtype("V1")
"""Equal to the dtype of no result."""


def make_scatter(config: ModelConfig) -> Scatter:
    """Return the function that scatters the model's results; a batch of one of a plain model takes the fast way."""
    general = _GeneralScatter(config)
    if config.batch_output or any(output.reshape is not None for output in config.output):
        return general
    return _make_plain(config, general)


def _make_plain(config: ModelConfig, general: Scatter) -> Scatter:
    """Return a scatter whose way for one request is as short as it can be: 0.9 µs for two outputs."""
    batches = config.max_batch_size > 0
    # BYTES always take the general way: str elements become bytes there. (None would not do: numpy takes it for float64.)
    specs = [
        (name, datatype, _NO_DTYPE if datatype == "BYTES" else datatypes.NUMPY_DTYPES[datatype])
        for name, datatype in _names_and_types(config)
    ]

    def scatter(outputs: Outputs, requests: list[InferenceRequest]) -> list[Result]:
        if len(requests) != 1:
            return general(outputs, requests)
        request = requests[0]
        wanted = request.outputs
        tensors: list[Tensor] = []
        try:
            for name, datatype, dtype in specs:
                if wanted is None or name in wanted:
                    array = outputs[name]
                    shape = array.shape
                    # int64 has two equal dtypes (long and long long), so identity is only the fast half of the test.
                    if (array.dtype is not dtype and array.dtype != dtype) or (
                        batches and shape[0] != request.batch_size
                    ):
                        return general(outputs, requests)
                    tensors.append(Tensor(name, datatype, shape, array))
        except (AttributeError, IndexError, KeyError):
            return general(outputs, requests)
        return [tensors]

    return scatter


class _GeneralScatter:
    """Scatters any batch of any model, and says what is wrong where the fast way gave up."""

    def __init__(self, config: ModelConfig) -> None:
        self._outputs = [OutputPlan(config, output) for output in config.output]

    def __call__(self, outputs: Outputs, requests: list[InferenceRequest]) -> list[Result]:
        """Return for each request its wanted outputs in the config's order, or why it has none."""
        columns = [(plan.name, plan.datatype, plan.cut(outputs, requests)) for plan in self._outputs]
        results: list[Result] = []
        for index, request in enumerate(requests):
            wanted = request.outputs
            tensors: list[Tensor] = []
            fault: BiremeError | None = None
            for name, datatype, pieces in columns:
                if wanted is not None and name not in wanted:
                    continue
                if isinstance(pieces, BiremeError):
                    fault = pieces
                    break
                piece = pieces[index]
                tensors.append(Tensor(name, datatype, piece.shape, piece))
            results.append(tensors if fault is None else fault)
        return results


class OutputPlan:
    """Checks one output of a batch and cuts it into the requests' pieces."""

    def __init__(self, config: ModelConfig, output: ModelOutput) -> None:
        self.name = output.name
        self.datatype = datatypes.from_config_name(output.data_type)
        self._label = f"model '{config.name}', output '{output.name}'"
        self._num_leading = 1 if config.max_batch_size > 0 else 0
        self._reshape = Reshape(output.reshape.shape, output.dims) if output.reshape is not None else None
        self._dims = (-1,) * self._num_leading + tuple(output.dims)
        self._source = next(
            (entry.source_input[0] for entry in config.batch_output if output.name in entry.target_name), None
        )
        source = next((tensor for tensor in config.input if tensor.name == self._source), None)
        self._source_reshape = (
            Reshape(source.dims, source.reshape.shape)
            if source is not None and source.reshape is not None
            else None
        )

    def cut(self, outputs: Outputs, requests: list[InferenceRequest]) -> list[Array] | BiremeError:
        """Return the piece of each request, or the error of all that want this output."""
        try:
            array = self._typed(outputs)
            if self._source is not None:
                return self._cut_like_input(array, self._source, requests)
            return self._cut_rows(array, requests)
        except BackendFailed as error:
            return error

    def _typed(self, outputs: Outputs) -> Array:
        """Return the output as an array of the config's data type."""
        array = outputs.get(self.name)
        if array is None:
            found = ", ".join(f"'{name}'" for name in outputs) or "nothing"
            raise BackendFailed(f"{self._label} is missing from the result; the model returned {found}")
        if not isinstance(array, np.ndarray):
            raise BackendFailed(f"{self._label}: expected a numpy array, found {type(array).__name__}")
        array = np.asarray(array)
        dtype = array.dtype
        if self.datatype == "BYTES" and dtype.kind in "OSU":
            return Tensor.from_numpy(self.name, array, "BYTES").to_numpy()
        if self.datatype == "BF16" and dtype.name == "bfloat16":
            return array.view(np.uint16)
        if dtype != datatypes.NUMPY_DTYPES[self.datatype] or self.datatype == "BYTES":
            raise BackendFailed(
                f"{self._label}: the config's data_type is {datatypes.to_config_name(self.datatype)}, but the model "
                f"returned {_described(dtype)}"
            )
        return array

    def _cut_rows(self, array: Array, requests: list[InferenceRequest]) -> list[Array]:
        """Cut along the batch dimension; a model that does not batch runs one request at a time."""
        num_rows = sum(request.batch_size for request in requests)
        if self._num_leading and array.shape[:1] != (num_rows,):
            raise BackendFailed(
                f"{self._label}: expected {num_rows} rows, one per batch item, in the first dimension; found shape "
                f"{list(array.shape)}"
            )
        if self._reshape is not None:
            array = self._reshaped(self._reshape, array)
        if len(requests) == 1:
            return [array]
        ends = accumulate((request.batch_size for request in requests), initial=0)
        return [array[start:stop] for start, stop in pairwise(ends)]

    def _reshaped(self, reshape: Reshape, array: Array) -> Array:
        try:
            return reshape.apply(array, self._num_leading)
        except (IndexError, ValueError):
            expected = (*array.shape[: self._num_leading], *reshape.source)
            raise BackendFailed(
                f"{self._label}: expected shape {list(expected)}, as its 'reshape' in the config says; found "
                f"{list(array.shape)}"
            ) from None

    def _cut_like_input(self, array: Array, source: str, requests: list[InferenceRequest]) -> list[Array]:
        """Cut the flat array into pieces of the config's dims, variable ones taken from the same axes of ``source``."""
        shapes = [self._shape_like(request.inputs[source].shape) for request in requests]
        ends = list(accumulate((prod(shape) for shape in shapes), initial=0))
        flat = array.reshape(-1)
        if flat.size != ends[-1]:
            raise BackendFailed(
                f"{self._label}: expected {ends[-1]} elements, as the shapes of input '{source}' say "
                f"(batch_output); found shape {list(array.shape)}"
            )
        return [
            flat[start:stop].reshape(shape)
            for shape, (start, stop) in zip(shapes, pairwise(ends), strict=True)
        ]

    def _shape_like(self, source: tuple[int, ...]) -> tuple[int, ...]:
        if self._source_reshape is not None:
            source = self._source_reshape.shape(source, self._num_leading)
        try:
            return tuple(source[axis] if dim == -1 else dim for axis, dim in enumerate(self._dims))
        except IndexError:
            raise BackendFailed(
                f"{self._label}: the config's shape {list(self._dims)} has a variable dimension where input "
                f"'{self._source}' has none: found shape {list(source)}"
            ) from None


def _names_and_types(config: ModelConfig) -> list[tuple[str, str]]:
    return [(output.name, datatypes.from_config_name(output.data_type)) for output in config.output]


def _described(dtype: np.dtype[np.generic]) -> str:
    """Name a numpy dtype and, where there is one, the config's name for it."""
    try:
        return f"{dtype} ({datatypes.to_config_name(datatypes.from_numpy(dtype))})"
    except KeyError:
        return str(dtype)
