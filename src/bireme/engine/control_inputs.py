"""ControlInputs: the tensors that tell a model where in its sequence a request is.

Clients never send them. Each is ``[1]``, or ``[1, 1]`` where the model batches, so that a batch's are one per row.

Source: Triton ``sequence_batch_scheduler.cc`` (CreateBooleanControlTensors, SetControlTensors), ``infer_request.cc``
(ValidateCorrelationId).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

from bireme.config import ModelConfig
from bireme.config.model_config import SequenceControl
from bireme.types import Array, InferenceRequest, InferenceResponse, InvalidArgument, Tensor, datatypes

_VALUES: Final = {"int32_false_true": "INT32", "fp32_false_true": "FP32", "bool_false_true": "BOOL"}
_CORRELATION_ID: Final = "CONTROL_SEQUENCE_CORRID"


class ControlInputs:
    """The control inputs of one model."""

    __slots__ = ("_flags", "_id_names", "_id_type", "_make_id", "_model_name", "_null", "_shape")

    def __init__(self, config: ModelConfig) -> None:
        """``config`` is valid and has ``sequence_batching``."""
        batching = config.sequence_batching
        assert batching is not None
        self._model_name = config.name
        self._shape = (1, 1) if config.max_batch_size > 0 else (1,)
        controls = [(tensor.name, control) for tensor in batching.control_input for control in tensor.control]
        ids = [(name, control) for name, control in controls if control.kind == _CORRELATION_ID]
        flags = [(name, control) for name, control in controls if control.kind != _CORRELATION_ID]
        # By START and END: tensors are shared by all requests, so nobody may write to them.
        self._flags = {
            (start, end): self._make_flags(flags, start=start, end=end, ready=True)
            for start in (False, True)
            for end in (False, True)
        }
        self._null = self._make_flags(flags, start=False, end=False, ready=False)
        self._id_names = [name for name, _ in ids]
        self._id_type = datatypes.from_config_name(ids[0][1].data_type) if ids else ""
        self._make_id = _id_maker(self._id_type, self._shape) if ids else None

    def check_id(self, request: InferenceRequest) -> None:
        """Check that the request's sequence id is of the kind that the model takes.

        Raises:
            InvalidArgument: it is a string and the model takes numbers, or the reverse.
        """
        if not self._id_type or not request.sequence_id:
            return
        is_string = isinstance(request.sequence_id, str)
        if is_string != (self._id_type == "BYTES"):
            raise InvalidArgument(
                f"{request.id_prefix}sequence batching control '{self._id_names[0]}' data-type is "
                f"'{'BYTES' if is_string else 'UINT64'}', but model '{self._model_name}' expects '{self._id_type}'"
            )

    def add(self, request: InferenceRequest) -> None:
        """Add them to the inputs of ``request``, or replace those of an earlier run."""
        request.inputs = {
            **request.inputs,
            **self._flags[request.sequence_start, request.sequence_end],
            **self._ids(request.sequence_id),
        }

    def make_null(self, request: InferenceRequest) -> InferenceRequest:
        """Return a request that fills the row of an empty slot, with the inputs of ``request``; nobody waits for its answer."""
        null_id = "" if self._id_type == "BYTES" else 0
        return InferenceRequest(
            request.model_name,
            {**request.inputs, **self._null, **self._ids(null_id)},
            _discard,
            outputs=request.outputs,
        )

    def _ids(self, sequence_id: int | str) -> dict[str, Tensor]:
        if self._make_id is None:
            return {}
        array = self._make_id(sequence_id)
        return {name: Tensor(name, self._id_type, self._shape, array) for name in self._id_names}

    def _make_flags(
        self, controls: list[tuple[str, SequenceControl]], *, start: bool, end: bool, ready: bool
    ) -> dict[str, Tensor]:
        is_set = {
            "CONTROL_SEQUENCE_START": start,
            "CONTROL_SEQUENCE_END": end,
            "CONTROL_SEQUENCE_READY": ready,
        }
        tensors = {}
        for name, control in controls:
            datatype, values = next(
                (datatype, getattr(control, field))
                for field, datatype in _VALUES.items()
                if getattr(control, field)
            )
            value = values[is_set[control.kind]]
            array = np.full(self._shape, value, datatypes.NUMPY_DTYPES[datatype])
            array.flags.writeable = False
            tensors[name] = Tensor(name, datatype, self._shape, array)
        return tensors


def _id_maker(datatype: str, shape: tuple[int, ...]) -> Callable[[int | str], Array]:
    """Return what makes the tensor of an id; numbers are cut to the bits that the type has."""
    if datatype == "BYTES":

        def make_string(sequence_id: int | str) -> Array:
            array = np.empty(shape, np.object_)
            array.flat[0] = str(sequence_id).encode(errors="replace")
            return array

        return make_string
    dtype = datatypes.NUMPY_DTYPES[datatype]
    mask = (1 << 8 * dtype.itemsize) - 1
    unsigned = np.dtype(f"u{dtype.itemsize}")
    is_batched = len(shape) > 1

    def make_number(sequence_id: int | str) -> Array:
        # Half the time of numpy.full.
        value = int(sequence_id) & mask
        return np.array([[value]] if is_batched else [value], unsigned).view(dtype)

    return make_number


def _discard(_request: InferenceRequest, _response: InferenceResponse) -> None:
    """A null request's answer is nobody's."""
