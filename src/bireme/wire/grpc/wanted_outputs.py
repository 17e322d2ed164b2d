"""How a request wants its outputs, read from the message: which, as classes, in shared memory.

Source: Triton ``grpc/infer_handler.h`` (``InferAllocatorPayload``), ``grpc_utils.h`` (``ParseSharedMemoryParams``),
``grpc_utils.cc`` (``ParseClassificationParams``).
"""

from __future__ import annotations

from typing import Any

from bireme.types import InvalidArgument
from bireme.wire.grpc.parameters import read_region
from bireme.wire.regions import OutputRegion, Regions
from bireme.wire.wanted_outputs import AS_JSON, WantedOutput, WantedOutputs


class GrpcWanted(WantedOutputs):
    """How the outputs of a gRPC request are to be sent: the request's ``context``."""

    __slots__ = ("empty_final",)

    def __init__(self, *, by_name: dict[str, WantedOutput] | None = None, empty_final: bool = False) -> None:
        super().__init__(by_name=by_name)
        self.empty_final = empty_final
        """Streams only: whether the end of a decoupled request is told even when no response comes with it."""


# Shared by all requests that ask for nothing special; nobody changes them.
ALL_OUTPUTS = GrpcWanted()
_AS_TENSOR = AS_JSON


def read_outputs(items: Any, *, empty_final: bool, regions: Regions) -> GrpcWanted:
    """Return how a request wants its outputs, after its list of ``InferRequestedOutputTensor``.

    An output may be listed again; the first of its entries that asks for something special counts, as in Triton.

    Raises:
        InvalidArgument: a parameter is of the wrong type or value.
        NotFound, Unavailable: as `Regions.slice`.
    """
    if not items:
        return GrpcWanted(empty_final=True) if empty_final else ALL_OUTPUTS
    by_name: dict[str, WantedOutput] = {}
    for item in items:
        name: str = item.name
        wanted = _read_output(name, item.parameters, regions) if item.parameters else _AS_TENSOR
        if by_name.get(name, _AS_TENSOR) is _AS_TENSOR:
            by_name[name] = wanted
    return GrpcWanted(by_name=by_name, empty_final=empty_final)


def _read_output(name: str, parameters: Any, regions: Regions) -> WantedOutput:
    place = read_region(name, parameters)
    num_classes = _read_classification(parameters)
    if place is None:
        return WantedOutput(classification=num_classes)
    if num_classes:
        raise InvalidArgument(
            f"output can't set both 'shared_memory_region' and 'classification': output '{name}' does"
        )
    region, offset, byte_size = place
    memory = regions.slice(region, offset, byte_size)
    return WantedOutput(region=OutputRegion(region, offset, byte_size, memory))


def _read_classification(parameters: Any) -> int:
    """Return the number of classes; 0: none are wanted."""
    if "classification" not in parameters:
        return 0
    value = parameters["classification"]
    if value.WhichOneof("parameter_choice") != "int64_param":
        raise InvalidArgument("invalid value type for 'classification' parameter, expected int64_param")
    count: int = value.int64_param
    if count <= 0:
        raise InvalidArgument(
            f"invalid value for 'classification' parameter, expected >= 0: found {count}, at least 1 has a meaning"
        )
    return count
