"""Infer messages for tests of the gRPC codecs: made and read with the official client's own classes."""

from __future__ import annotations

from typing import Any

from tritonclient.grpc import service_pb2

from bireme.types import InferenceRequest, InferenceResponse, InvalidArgument, NotFound
from bireme.wire import grpc as wire_grpc
from bireme.wire.regions import Place

Request = service_pb2.ModelInferRequest
Response = service_pb2.ModelInferResponse
StreamResponse = service_pb2.ModelStreamInferResponse


def respond(request: InferenceRequest, response: InferenceResponse) -> None:
    """Be the callback of a request that nobody runs."""


class FakeRegions:
    """Shared memory regions that are bytearrays."""

    def __init__(self, **regions: bytearray) -> None:
        self._regions = regions

    def __len__(self) -> int:
        return len(self._regions)

    def slice(self, region: str, offset: int, byte_size: int) -> memoryview:
        """Return a view of a part of a region."""
        if region not in self._regions:
            raise NotFound(f"Unable to find shared memory region: '{region}'")
        memory = memoryview(self._regions[region])
        if not 0 <= offset <= offset + byte_size <= len(memory):
            raise InvalidArgument(f"Invalid offset + byte size for shared memory region: '{region}'")
        return memory[offset : offset + byte_size]

    def overlap(self, first: Place, second: Place) -> bool:
        """Whether two places share bytes."""
        start, other = first.offset, second.offset
        return (
            first.region == second.region
            and start < other + second.byte_size
            and other < start + first.byte_size
        )


def set_parameters(target: Any, parameters: dict[str, Any]) -> None:
    """Fill in a map of ``InferParameter``: ``key=("int64_param", 1)`` or a plain value; None: none of the fields."""
    for key, value in parameters.items():
        if isinstance(value, tuple):
            choice, held = value
        else:
            choice = {bool: "bool_param", int: "int64_param", str: "string_param", float: "double_param"}.get(
                type(value), ""
            )
            held = value
        entry = target[key]
        if choice:
            setattr(entry, choice, held)


def make_input(
    name: str = "X", datatype: str = "FP32", shape: Any = (2,), contents: Any = None, **parameters: Any
) -> Any:
    """Return an input of a request; ``contents`` is a dict of fields, and present if it's empty, too."""
    item = Request.InferInputTensor(name=name, datatype=datatype, shape=shape)
    set_parameters(item.parameters, parameters)
    if contents is not None:
        item.contents.SetInParent()
        for field, elements in contents.items():
            getattr(item.contents, field).extend(elements)
    return item


def make_output(name: str, **parameters: Any) -> Any:
    """Return a requested output."""
    item = Request.InferRequestedOutputTensor(name=name)
    set_parameters(item.parameters, parameters)
    return item


def make_request(
    *inputs: Any, raw: Any = (), outputs: Any = (), parameters: Any = None, **fields: Any
) -> Any:
    """Return a request to model ``m``."""
    fields = {"model_name": "m"} | fields
    request = Request(inputs=inputs, raw_input_contents=raw, outputs=outputs, **fields)
    set_parameters(request.parameters, parameters or {})
    return request


def decode(message: Any, regions: Any = None) -> InferenceRequest:
    """Decode a request, serialised or not."""
    data = message if isinstance(message, bytes | bytearray | memoryview) else message.SerializeToString()
    return wire_grpc.decode_infer_request(data, respond, regions=regions or FakeRegions())


def joined(message: wire_grpc.EncodedMessage) -> bytes:
    """Return the whole of an encoded message, finishing it first."""
    while not message.advance():
        pass
    data = b"".join(message.pieces)
    assert message.nbytes == len(data)
    return data


def read_response(message: wire_grpc.EncodedMessage) -> Any:
    """Return what a client reads from an encoded message."""
    return Response.FromString(joined(message))
