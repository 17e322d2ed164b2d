"""The body of an infer call whose header length is 0: no JSON, all of it is the data of a model's only input.

Source: Triton ``http_server.cc`` (``EVBufferToRawInput``), ``infer_request.cc`` (``Normalize``).
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Protocol

import numpy as np

from bireme.types import InferenceRequest, InvalidArgument, Respond, Tensor, datatypes
from bireme.wire.http.limits import Limits
from bireme.wire.shapes import format_shape
from bireme.wire.wanted_outputs import ALL_AS_BINARY

_PREFIX = "[request id: <id_unknown>] "


class InputSpec(Protocol):
    """What must be known of a model's input (the engine's ``TensorSpec`` is one)."""

    name: str
    datatype: str
    dims: tuple[int, ...]
    """Without the batch dimension; -1 is variable."""
    shape: tuple[int, ...]
    """``dims``, with the batch dimension in front when the model batches."""


def decode_raw_request(
    body: memoryview,
    inputs: Mapping[str, InputSpec],
    *,
    model_name: str,
    model_version: int = -1,
    respond: Respond,
    limits: Limits,
) -> InferenceRequest:
    """Return a request with one input, a view into ``body`` (BYTES: one element, copied); all outputs go out binary.

    Raises:
        InvalidArgument: the model has not exactly one input, or ``body`` does not fit it.
    """
    nbytes = len(body)
    if nbytes > limits.max_input_size:
        raise InvalidArgument(
            f"Raw input has a byte_size ({nbytes} bytes) that exceeds the maximum allowed value of "
            f"{limits.max_input_size} bytes. Use --http-max-input-size to increase the limit."
        )
    if len(inputs) != 1:
        raise InvalidArgument(
            f"{_PREFIX}Raw request must only have 1 input (found 1) to be deduced but got {len(inputs)} inputs in "
            f"'{model_name}' model configuration"
        )
    (spec,) = inputs.values()
    decode = _decode_bytes if spec.datatype == "BYTES" else _decode_fixed_size
    tensor = decode(spec, body, model_name)
    return InferenceRequest(
        model_name, {spec.name: tensor}, respond, model_version=model_version, context=ALL_AS_BINARY
    )


def _decode_bytes(spec: InputSpec, body: memoryview, model_name: str) -> Tensor:
    if any(dim != 1 for dim in spec.dims):
        raise InvalidArgument(
            f"{_PREFIX}For BYTE datatype raw input '{spec.name}', the model must have input shape [1]: '{model_name}' "
            f"has {format_shape(spec.dims)}"
        )
    shape = (1,) * len(spec.shape)
    array = np.empty(shape, np.object_)
    array[(0,) * len(shape)] = bytes(body)
    return Tensor(spec.name, "BYTES", shape, array)


def _decode_fixed_size(spec: InputSpec, body: memoryview, model_name: str) -> Tensor:
    """Return a tensor whose one variable dimension, if any, takes what the fixed ones leave."""
    if spec.dims.count(-1) > 1:
        raise InvalidArgument(
            f"{_PREFIX}The shape of the raw input '{spec.name}' can not be deduced because there are more than one "
            f"variable-sized dimension: '{model_name}' has {format_shape(spec.dims)}"
        )
    nbytes = len(body)
    step = prod(dim for dim in spec.dims if dim != -1) * datatypes.ITEM_SIZES[spec.datatype]
    variable = nbytes // step if step else 0
    dims = tuple(variable if dim == -1 else dim for dim in spec.dims)
    if prod(dims) * datatypes.ITEM_SIZES[spec.datatype] != nbytes:
        expected = f"a multiple of {step}" if step and -1 in spec.dims else step
        raise InvalidArgument(
            f"{_PREFIX}input byte size mismatch for input '{spec.name}' for model '{model_name}'. Expected "
            f"{expected}, got {nbytes}"
        )
    shape = (1, *dims) if len(spec.shape) > len(spec.dims) else dims
    array = np.ndarray(shape, datatypes.NUMPY_DTYPES[spec.datatype], body)
    return Tensor(spec.name, spec.datatype, shape, array)
