"""RequestValidator: checks a request against its model's config, once, before it is queued.

Everything that can be known at load is computed at load. The passing path compares a few tuples; the failing path is
allowed to be slow and explains itself.

Source: spec of HTTP inference (core validation); Triton ``InferenceRequest::Normalize``.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

from bireme.config import ModelConfig
from bireme.config.model_config import ModelInput, ModelOutput
from bireme.engine.control_inputs import ControlInputs
from bireme.types import InferenceRequest, InvalidArgument, Tensor, datatypes

MAX_INLINE_BYTES = 64 << 10
"""Encoded size of a BYTES tensor up to which it is decoded on the loop: 16 000 elements at most, 3 ms. A million take
0.3 s, so callers have a larger one decoded beside the loop first (`RequestValidator.check_bytes`)."""


def needs_bytes_check(request: InferenceRequest) -> bool:
    """Whether ``request`` has a BYTES tensor too large to be decoded on the loop."""
    return any(
        tensor.datatype == "BYTES" and tensor.is_encoded and len(tensor.to_buffer()) > MAX_INLINE_BYTES
        for tensor in request.inputs.values()
    )


class TensorSpec:
    """An input or output as clients see it. ``shape`` is ``dims`` with -1 in front when the model batches."""

    __slots__ = ("datatype", "dims", "is_fixed", "name", "optional", "ragged", "shape")

    def __init__(self, tensor: ModelInput | ModelOutput, max_batch_size: int) -> None:
        self.name = tensor.name
        self.datatype = datatypes.from_config_name(tensor.data_type)
        self.dims = tuple(tensor.dims)
        self.shape = (-1, *self.dims) if max_batch_size > 0 else self.dims
        self.is_fixed = -1 not in self.dims
        self.optional = isinstance(tensor, ModelInput) and tensor.optional
        self.ragged = isinstance(tensor, ModelInput) and tensor.allow_ragged_batch

    def admits(self, dims: tuple[int, ...]) -> bool:
        """Whether ``dims`` (without the batch dimension) fit: -1 in the config stands for any size."""
        expected = self.dims
        if self.is_fixed or len(dims) != len(expected):
            return dims == expected
        # A loop: half the time of all() over a generator.
        for want, size in zip(expected, dims, strict=True):  # noqa: SIM110
            if want != size and want != -1:  # noqa: PLR1714 (a set costs as much as the rest)
                return False
        return True

    def __repr__(self) -> str:
        return f"TensorSpec({self.name!r}, {self.datatype}{list(self.shape)})"


class RequestValidator:
    """Checks requests of one model version and sets their ``batch_size`` and ``batch_key``."""

    def __init__(self, config: ModelConfig) -> None:
        self.model_name = config.name
        self.max_batch_size = config.max_batch_size
        self.inputs = {tensor.name: TensorSpec(tensor, config.max_batch_size) for tensor in config.input}
        self.outputs = {tensor.name: TensorSpec(tensor, config.max_batch_size) for tensor in config.output}
        self._num_required = sum(not spec.optional for spec in self.inputs.values())
        self._has_optional = self._num_required < len(self.inputs)
        batches = config.dynamic_batching is not None or config.sequence_batching is not None
        self._variable = [s.name for s in self.inputs.values() if batches and not (s.is_fixed or s.ragged)]
        self._shape_tensors = [t.name for t in config.input if batches and t.is_shape_tensor]
        self._needs_key = batches and bool(self._has_optional or self._variable or self._shape_tensors)
        self._check_id = ControlInputs(config).check_id if config.sequence_batching is not None else None

    def check(self, request: InferenceRequest) -> None:
        """Check ``request`` and set its ``batch_size`` and ``batch_key``.

        Raises:
            InvalidArgument: names the tensor, what was expected and what came.
        """
        inputs = request.inputs
        if self._has_optional or len(inputs) != self._num_required:
            self._check_input_names(request)
        if self.max_batch_size:
            self._check_batch(request)
        else:
            for tensor in inputs.values():
                self._check_tensor(request, tensor, tensor.shape)
        if request.outputs is not None:
            self._check_outputs(request, request.outputs)
        if self._check_id is not None:
            self._check_id(request)
        if self._needs_key:
            request.batch_key = self._batch_key(request)

    def check_bytes(self, request: InferenceRequest) -> None:
        """Decode the BYTES inputs of ``request``, so that `check` finds them decoded; may run on any thread.

        Raises:
            InvalidArgument: names the tensor, the element and the offset.
        """
        for tensor in request.inputs.values():
            spec = self.inputs.get(tensor.name)
            if spec is not None and spec.datatype == tensor.datatype == "BYTES":
                self._check_bytes(request, tensor)

    def _check_batch(self, request: InferenceRequest) -> None:
        """Check the inputs of a batching model: equal first dimensions, within the limit, then each tensor."""
        batch_size = -1
        for tensor in request.inputs.values():
            shape = tensor.shape
            if not shape:
                raise self._error(
                    request,
                    f"input '{tensor.name}' has no shape but model requires batch dimension for '{self.model_name}'",
                )
            self._check_tensor(request, tensor, shape[1:])
            if batch_size != shape[0]:
                if batch_size >= 0:
                    raise self._error(
                        request,
                        f"input '{tensor.name}' batch size does not match other inputs for '{self.model_name}'. "
                        f"Expected {batch_size}, got {shape[0]}",
                    )
                batch_size = shape[0]
        if not 0 < batch_size <= self.max_batch_size and request.inputs:
            raise self._error(request, self._wrong_batch_size(batch_size))
        request.batch_size = max(batch_size, 1)

    def _check_tensor(self, request: InferenceRequest, tensor: Tensor, dims: tuple[int, ...]) -> None:
        """Check name, data type and ``dims`` (the shape without the batch dimension) of one input."""
        spec = self.inputs.get(tensor.name)
        if spec is None or tensor.datatype != spec.datatype:
            raise self._wrong_tensor(request, tensor)
        if dims != spec.dims and not spec.admits(dims):
            raise self._error(request, self._wrong_shape(spec, tensor.shape))
        if spec.datatype == "BYTES":
            self._check_bytes(request, tensor)

    def _batch_key(self, request: InferenceRequest) -> object:
        inputs = request.inputs
        key: tuple[object, ...] = tuple(inputs[name].shape[1:] for name in self._variable if name in inputs)
        if self._shape_tensors:  # what they hold is the shape of the whole batch
            key += tuple(
                self._shape_values(request, inputs[name]) for name in self._shape_tensors if name in inputs
            )
        return (key, frozenset(inputs)) if self._has_optional else key

    def _shape_values(self, request: InferenceRequest, tensor: Tensor) -> bytes:
        """Return what a shape tensor says of each item of the batch: the same."""
        content, num_rows = bytes(tensor.to_buffer()), request.batch_size if self.max_batch_size else 1
        row = content[: len(content) // num_rows]
        if row * num_rows != content:
            raise self._error(
                request,
                f"the rows of shape tensor '{tensor.name}' differ for '{self.model_name}'. All items of a batch have one shape",
            )
        return row

    def _check_input_names(self, request: InferenceRequest) -> None:
        found = request.inputs
        required = [name for name, spec in self.inputs.items() if not spec.optional]
        missing = [name for name in required if name not in found]
        total = len(self.inputs)
        if not missing and len(found) <= total:
            return  # an unknown name is reported by the tensor check
        expected = (
            f"number of inputs between {len(required)} and {total}"
            if self._has_optional
            else f"{total} inputs"
        )
        message = f"expected {expected} but got {len(found)} inputs for model '{self.model_name}'. Got input(s) {_quoted(found)}"
        if missing:
            message += f", but missing required input(s) {_quoted(missing)}"
        unknown = [name for name in found if name not in self.inputs]
        if unknown:
            message += f", and the model has no input(s) {_quoted(unknown)}"
        raise self._error(request, f"{message}. Please provide all required input(s): {_quoted(required)}")

    def _check_bytes(self, request: InferenceRequest, tensor: Tensor) -> None:
        try:
            tensor.to_numpy()
        except InvalidArgument as error:
            raise self._error(request, f"{error.message} for model '{self.model_name}'") from None

    def _check_outputs(self, request: InferenceRequest, wanted: Iterable[str]) -> None:
        for name in wanted:
            if name not in self.outputs:
                raise self._error(
                    request,
                    f"unexpected inference output '{name}' for model '{self.model_name}'"
                    f"{_suggestion(name, self.outputs)}",
                )

    def _wrong_tensor(self, request: InferenceRequest, tensor: Tensor) -> InvalidArgument:
        spec = self.inputs.get(tensor.name)
        if spec is None:
            return self._error(
                request,
                f"unexpected inference input '{tensor.name}' for model '{self.model_name}'"
                f"{_suggestion(tensor.name, self.inputs)}",
            )
        return self._error(
            request,
            f"inference input '{tensor.name}' data-type is '{tensor.datatype}', but model '{self.model_name}' "
            f"expects '{spec.datatype}'",
        )

    def _wrong_shape(self, spec: TensorSpec, shape: tuple[int, ...]) -> str:
        text = (
            f"unexpected shape for input '{spec.name}' for model '{self.model_name}'. "
            f"Expected {_dims(spec.shape)}, got {_dims(shape)}."
        )
        if self.max_batch_size and spec.admits(shape):
            text += (
                f" NOTE: the model batches (max_batch_size {self.max_batch_size}), so every input starts with a "
                f"batch dimension: send {_dims((1, *shape))} for one item."
            )
        elif not self.max_batch_size and spec.admits(shape[1:]):
            text += (
                " NOTE: the model does not batch (max_batch_size 0), so its inputs have no batch dimension: "
                f"send {_dims(shape[1:])}."
            )
        return text

    def _wrong_batch_size(self, batch_size: int) -> str:
        if batch_size < 1:
            return f"inference request batch-size must be >= 1 for '{self.model_name}', got {batch_size}"
        return f"inference request batch-size must be <= {self.max_batch_size} for '{self.model_name}', got {batch_size}"

    @staticmethod
    def _error(request: InferenceRequest, message: str) -> InvalidArgument:
        return InvalidArgument(request.id_prefix + message)


def _dims(shape: Iterable[int]) -> str:
    return f"[{','.join(map(str, shape))}]"


def _quoted(names: Iterable[str]) -> str:
    return f"[{','.join(repr(name) for name in names)}]"


def _suggestion(name: str, known: Iterable[str]) -> str:
    by_folded = {other.casefold(): other for other in known}
    near = get_close_matches(name.casefold(), by_folded, n=1)
    if near:
        return f"; did you mean '{by_folded[near[0]]}'?"
    return f"; the model has {_quoted(by_folded.values())}"
