"""Calls from Python: plain values into tensors, responses into results.

The rule for values: what carries a dtype of its own (a numpy array, a torch tensor) is converted only where nothing can
be lost; what does not (lists and scalars) takes the model's data type if its values fit.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypedDict

import numpy as np

from bireme.engine.validation import TensorSpec
from bireme.types import (
    Array,
    InferenceRequest,
    InferenceResponse,
    InvalidArgument,
    Parameter,
    Tensor,
    Unavailable,
    Unsupported,
    datatypes,
)
from bireme.wire import bfloat16

if TYPE_CHECKING:
    from bireme.engine.model import Model

# A waiting thread looks this often whether the loop still exists: nothing else would wake it from one that has gone.
_LOOP_CHECK_S = 1.0
_FLOATS = frozenset({"FP16", "FP32", "FP64"})


class InferSettings(TypedDict, total=False):
    """What an inference call may say beside the model and its inputs."""

    version: int
    """Default: the highest version that is ready."""
    outputs: Sequence[str]
    """Names of the wanted outputs; default: all."""
    parameters: dict[str, Parameter]
    """Handed on to the model."""
    priority: int
    """Queue priority; default: the model's."""
    timeout_us: int
    """How long the request may wait in the queue; default: the model's."""
    id: str
    """Comes back in the result, and stands in error messages."""
    sequence_id: int | str
    sequence_start: bool
    sequence_end: bool


class InferResult(Mapping[str, Array]):
    """The outputs of one inference by name, as numpy arrays (BYTES: object arrays of ``bytes``).

    The arrays are views of the model's output and must not be written to if other requests may share the batch.
    """

    __slots__ = ("_tensors", "id", "model_name", "model_version", "parameters")

    def __init__(self, response: InferenceResponse) -> None:
        self.model_name = response.model_name
        self.model_version = response.model_version
        self.id = response.id
        self.parameters: dict[str, Parameter] = response.parameters or {}
        self._tensors = {tensor.name: tensor for tensor in response.outputs}

    def tensor(self, name: str) -> Tensor:
        """Return an output with its data type."""
        try:
            return self._tensors[name]
        except KeyError:
            names = ", ".join(map(repr, self._tensors))
            raise KeyError(f"no output {name!r}: the result has {names or 'none'}") from None

    def __getitem__(self, name: str) -> Array:
        return self.tensor(name).to_numpy()

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    def __repr__(self) -> str:
        return f"InferResult({self.model_name!r} v{self.model_version}, {list(self._tensors.values())})"


class Waiter:
    """Carries one response to the thread that waits for it."""

    __slots__ = ("_done", "_response")

    def __init__(self) -> None:
        self._done = threading.Event()
        self._response: InferenceResponse | None = None

    def put(self, response: InferenceResponse) -> None:
        """Hand the response over."""
        self._response = response
        self._done.set()

    def wait(self, loop: asyncio.AbstractEventLoop) -> InferenceResponse:
        """Block until the response is there.

        Raises:
            Unavailable: ``loop`` ended between taking the request and answering it.
        """
        while not self._done.wait(_LOOP_CHECK_S):
            if loop.is_closed():
                raise Unavailable("Server not ready: its event loop has ended")
        assert self._response is not None
        return self._response


def wake_thread(request: InferenceRequest, response: InferenceResponse) -> None:
    """``respond`` of a request whose context is a `Waiter`."""
    request.context.put(response)


def wake_task(request: InferenceRequest, response: InferenceResponse) -> None:
    """``respond`` of a request whose context is a future of the loop."""
    future: asyncio.Future[InferenceResponse] = request.context
    if not future.done():  # the task that waited for it may have been cancelled
        future.set_result(response)


def result_of(response: InferenceResponse) -> InferResult:
    """Return a response's outputs, or raise its error."""
    if response.error is not None:
        raise response.error
    return InferResult(response)


def check_settings(settings: Mapping[str, Any]) -> None:
    """Refuse what would be taken in silence and mean something else.

    Raises:
        InvalidArgument: names the setting, what came and what is expected.
    """
    outputs = settings.get("outputs")
    if isinstance(outputs, str):
        raise InvalidArgument(
            f"outputs: expected a list of names, got the text {outputs!r}; write [{outputs!r}]"
        )
    for name in ("priority", "timeout_us"):
        value = settings.get(name, 0)
        if not isinstance(value, int) or value < 0:
            raise InvalidArgument(f"{name}: expected an integer from 0 on, got {value!r}")


def make_request(
    model: Model, inputs: Mapping[str, Any], version: int, settings: Mapping[str, Any]
) -> InferenceRequest:
    """Return a request to ``model``, asked for as ``version``. ``settings``: the other `InferSettings`.

    Raises:
        InvalidArgument: as `check_settings` and `make_tensors`.
        Unsupported: the model answers any number of times.
    """
    if settings:
        check_settings(settings)
    name = model.name
    if model.is_decoupled:
        raise Unsupported(
            f"infer() takes exactly one response, and model '{name}' is decoupled: ask a server for it, by "
            "generate_stream or ModelStreamInfer"
        )
    tensors = make_tensors(name, model.inputs, inputs)
    return InferenceRequest(name, tensors, wake_task, model_version=version, **settings)


def make_tensors(
    model_name: str, specs: Mapping[str, TensorSpec], inputs: Mapping[str, Any]
) -> dict[str, Tensor]:
    """Return ``inputs`` as tensors of the data types that the model expects.

    Names that the model does not have are passed on for the model to refuse.

    Raises:
        InvalidArgument: ``inputs`` is no mapping, or a value cannot be converted; names the input, what came and what
            is expected.
    """
    if not isinstance(inputs, Mapping):
        raise InvalidArgument(
            f"inputs of model '{model_name}': expected a mapping from name to values, with {', '.join(specs)}; "
            f"got {type(inputs).__name__}"
        )
    try:
        return {name: _make_tensor(name, specs.get(name), value) for name, value in inputs.items()}
    except _Misfit as misfit:
        raise InvalidArgument(f"input '{misfit.name}' of model '{model_name}': {misfit.why}") from None


class _Misfit(Exception):
    def __init__(self, name: str, why: str) -> None:
        super().__init__(name, why)
        self.name = name
        self.why = why


def _make_tensor(name: str, spec: TensorSpec | None, value: Any) -> Tensor:
    if isinstance(value, Tensor):
        if value.name == name:
            return value
        return Tensor.from_numpy(name, value.to_numpy(), value.datatype)
    if spec is None:
        return Tensor.from_numpy(name, value)
    typed = hasattr(value, "dtype")
    array = _convert_typed(name, spec, np.asarray(value)) if typed else _convert_untyped(name, spec, value)
    if array.ndim == 0:  # one value stands for the smallest tensor that the model takes
        array = array.reshape((1,) * len(spec.shape))
    return Tensor.from_numpy(name, array, spec.datatype)


def _convert_typed(name: str, spec: TensorSpec, array: Array) -> Array:
    """Convert an array whose dtype the caller chose, if its values all survive that."""
    found = array.dtype
    wanted = datatypes.NUMPY_DTYPES[spec.datatype]
    if spec.datatype == "BYTES":
        fits = found.kind in "OSU"
    elif spec.datatype == "BF16":
        fits = found.name == "bfloat16" or found == wanted  # uint16 holds the raw bits
    else:
        fits = found.kind not in "OSU" and np.can_cast(found, wanted, "safe")
    if fits:
        return array
    if spec.datatype == "BF16":
        hint = "pass an ml_dtypes.bfloat16 array, or the raw bits as uint16"
    elif spec.datatype == "BYTES" or found.kind in "OSU":
        hint = f"it expects {'str or bytes' if spec.datatype == 'BYTES' else 'numbers'}"
    else:
        hint = f"convert it yourself if that is meant: .astype(np.{wanted.name})"
    raise _Misfit(name, f"an array of dtype {found} does not convert to {spec.datatype} without loss; {hint}")


def _convert_untyped(name: str, spec: TensorSpec, value: Any) -> Array:
    """Convert nested lists or one scalar to the data type of ``spec``."""
    if spec.datatype == "BYTES":
        return _convert_texts(name, value)
    try:
        array = np.asarray(value)
    except ValueError as error:  # rows of different lengths
        raise _Misfit(name, f"the values do not form a tensor: {error}") from None
    kind = array.dtype.kind if array.size else "b"  # nothing fits everything
    fits = kind in {"BOOL": "b"}.get(spec.datatype, "biuf" if spec.datatype in {*_FLOATS, "BF16"} else "biu")
    if not fits:
        found = "text" if kind in "SU" else "mixed values" if kind == "O" else f"{array.dtype.name} values"
        raise _Misfit(name, f"{found} cannot become {spec.datatype}")
    if spec.datatype == "BF16":
        return bfloat16.from_float64(np.atleast_1d(array.astype(np.float64))).reshape(array.shape)
    wanted = datatypes.NUMPY_DTYPES[spec.datatype]
    if wanted.kind in "iu" and array.size:
        low, high = np.iinfo(wanted.str).min, np.iinfo(wanted.str).max
        if int(array.min()) < low or int(array.max()) > high:
            raise _Misfit(
                name,
                f"values from {array.min()} to {array.max()} do not fit into {spec.datatype} ({low} to {high})",
            )
    with np.errstate(over="ignore"):  # what FP16 or FP32 cannot hold is infinite
        return array.astype(wanted)


def _convert_texts(name: str, value: Any) -> Array:
    # dtype=object from the start: numpy's own text types cut trailing NUL bytes off.
    array = np.array(value, dtype=np.object_)
    for element in array.reshape(-1).tolist():
        if not isinstance(element, (bytes, str)):
            what = (
                "rows of different lengths" if isinstance(element, (list, tuple)) else type(element).__name__
            )
            raise _Misfit(name, f"BYTES takes str or bytes, found {what}")
    return array
