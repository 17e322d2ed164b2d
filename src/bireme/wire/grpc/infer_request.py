"""A serialised ``ModelInferRequest`` → `InferenceRequest`.

The tensors (raw contents) stay where they are in the message, and the rest is parsed by protobuf unless it's known from
an earlier request. Everything wrong with a message is a `BiremeError`, never another exception. Whether the tensors suit
the model is the engine's to say.

Source: KServe v2 gRPC "ModelInferRequest", raw tensor contents; Triton ``grpc/infer_handler.cc``
(``InferGRPCToInput``, ``SetInferenceRequestMetadata``).
"""

from __future__ import annotations

from functools import cache
from math import prod
from typing import Any

import numpy as np

from bireme.types import Array, Buffer, InferenceRequest, InvalidArgument, Respond, Tensor, datatypes
from bireme.wire.grpc import known_requests
from bireme.wire.grpc.contents import read_contents
from bireme.wire.grpc.descriptors import message_class
from bireme.wire.grpc.errors import UnreadableMessage
from bireme.wire.grpc.parameters import read_parameters, read_region
from bireme.wire.grpc.request_parts import RequestParts, split_request
from bireme.wire.grpc.wanted_outputs import read_outputs
from bireme.wire.model_version import parse_model_version
from bireme.wire.regions import Place, Regions
from bireme.wire.shapes import INT64_MAX, MAX_NUM_DIMS, check_shape, too_many_dims
from bireme.wire.wanted_outputs import find_targets


def decode_infer_request(message: Buffer, respond: Respond, *, regions: Regions) -> InferenceRequest:
    """Return the request that ``message`` describes. Its ``context`` is a `GrpcWanted`.

    Raw contents are views into ``message``, aligned as they lie there; BYTES among them stay encoded. Tensors in shared
    memory are views of their region.

    Raises:
        UnreadableMessage: it's no ``ModelInferRequest``.
        InvalidArgument: it breaks a rule; names the tensor, what was expected and what was found.
        NotFound, Unavailable: as `Regions.slice`.
    """
    parts = split_request(message)
    head, request_id, starts, ends = parts
    known = known_requests.find(head) if len(head) <= known_requests.MAX_HEAD_BYTES else None
    if known is not None and len(starts) >= known.num_raw_contents:
        made = known.make_request(message, request_id, starts, ends, respond, regions)
        if made is not None:
            return made
    return _Reader(message, parts, respond, regions).read()


@cache
def _request_class() -> Any:
    return message_class("inference.ModelInferRequest")


class _Reader:
    """Makes a request from its parsed head."""

    def __init__(self, message: Buffer, parts: RequestParts, respond: Respond, regions: Regions) -> None:
        self._message = message
        self._regions = regions
        self._head_bytes, request_id, self._starts, self._ends = parts
        self._head = _parse(self._head_bytes)
        self._request = InferenceRequest(self._head.model_name, {}, respond, id=request_id)
        self._num_taken = 0
        """How many of the raw contents belong to inputs that have been read."""
        self._places: dict[str, Place] = {}
        """Of the inputs in shared memory, where they are."""
        self._is_repeatable = len(self._head_bytes) <= known_requests.MAX_HEAD_BYTES

    def read(self) -> InferenceRequest:
        """Return the request.

        Raises:
            InvalidArgument, NotFound, Unavailable: as `decode_infer_request`.
        """
        request, head = self._request, self._head
        request.model_version = parse_model_version(head.model_version)
        empty_final = read_parameters(request, head.parameters) if head.parameters else False
        for item in head.inputs:
            if item.name in request.inputs:
                raise InvalidArgument(f"{request.id_prefix}input '{item.name}' already exists in request")
            request.inputs[item.name] = self._read_input(item)
        request.context = read_outputs(head.outputs, empty_final=empty_final, regions=self._regions)
        by_name = request.context.by_name
        if by_name is not None:
            request.outputs = list(by_name)
            request.targets = find_targets(self._regions, self._places.values(), by_name)
        if self._is_repeatable:
            known_requests.remember(self._head_bytes, request, self._places)
        return request

    def _read_input(self, item: Any) -> Tensor:
        name: str = item.name
        datatype: str = item.datatype
        if datatype not in datatypes.NUMPY_DTYPES:
            raise InvalidArgument(
                f"invalid datatype for input {name}: found '{datatype}', expected one of "
                f"{', '.join(datatypes.NUMPY_DTYPES)}"
            )
        shape = _read_shape(name, item.shape)
        place = read_region(name, item.parameters) if item.parameters else None
        has_contents = item.HasField("contents")
        if place is not None:
            if has_contents:
                raise InvalidArgument(
                    f"unexpected 'content' provided when using shared memory for input tensor '{name}' for model "
                    f"'{self._head.model_name}'"
                )
            self._places[name] = place
            return self._from_buffer(name, datatype, shape, self._regions.slice(*place))
        if has_contents:
            self._is_repeatable = False
            return self._from_contents(name, datatype, shape, item.contents)
        if self._num_taken == len(self._starts):
            raise InvalidArgument(
                f"unable to find data for input tensor '{name}' for model '{self._head.model_name}' in request."
            )
        start, end = self._starts[self._num_taken], self._ends[self._num_taken]
        self._num_taken += 1
        return self._from_buffer(name, datatype, shape, memoryview(self._message)[start:end])

    def _from_buffer(self, name: str, datatype: str, shape: tuple[int, ...], data: memoryview) -> Tensor:
        if datatype == "BYTES":
            return Tensor(name, datatype, shape, None, data)
        self._check_size(name, datatype, shape, len(data))
        return Tensor(name, datatype, shape, np.ndarray(shape, datatypes.NUMPY_DTYPES[datatype], data))

    def _from_contents(self, name: str, datatype: str, shape: tuple[int, ...], contents: Any) -> Tensor:
        model_name = self._head.model_name
        if self._starts:
            raise InvalidArgument(
                f"contents field must not be specified when using raw_input_contents for '{name}' for model "
                f"'{model_name}'"
            )
        data: Array | bytes = read_contents(name, model_name, datatype, contents)
        if isinstance(data, bytes):
            return Tensor(name, datatype, shape, None, data)
        self._check_size(name, datatype, shape, data.nbytes)
        return Tensor(name, datatype, shape, data.reshape(shape))

    def _check_size(self, name: str, datatype: str, shape: tuple[int, ...], nbytes: int) -> None:
        expected = prod(shape) * datatypes.ITEM_SIZES[datatype]
        if nbytes != expected:
            raise InvalidArgument(
                f"{self._request.id_prefix}input byte size mismatch for input '{name}' for model "
                f"'{self._head.model_name}'. Expected {expected}, got {nbytes}"
            )


def _parse(head: bytes) -> Any:
    from google.protobuf.message import DecodeError

    try:
        return _request_class().FromString(head)
    except DecodeError as error:
        raise UnreadableMessage(str(error)) from None


def _read_shape(name: str, dims: Any) -> tuple[int, ...]:
    if len(dims) > MAX_NUM_DIMS:  # before their product, which would take for ever
        raise too_many_dims(name, len(dims))
    shape = tuple(dims)
    if shape and (min(shape) <= 0 or prod(shape) > INT64_MAX):
        check_shape(name, shape)
    return shape
