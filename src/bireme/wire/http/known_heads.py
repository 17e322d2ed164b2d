"""JSON heads that came before: most clients repeat theirs byte for byte, with other tensor data behind it.

Decoding a small binary request costs 6 µs, of which all but 2 are spent on JSON that says what the last request's JSON
said. So a head of binary tensors without an id or parameters is remembered with the layout that it describes. Of tensors
in shared memory it is remembered where they lie; the memory itself is looked up anew for each request, and so its
region's registration, bounds and size are.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from bireme.types import Buffer, InferenceRequest, Respond, Tensor
from bireme.wire.http.region_place import input_places, read_place
from bireme.wire.regions import Place, Regions
from bireme.wire.wanted_outputs import KnownWishes, WantedOutputs

MAX_HEAD_BYTES: Final = 2048
"""Longer heads are not remembered: they cost more to look up and keep than they save."""
_MAX_HEADS: Final = 1024

_TensorLayout = tuple[str, str, tuple[int, ...], "np.dtype[Any] | None", int, int]


class HeadLayout:
    """What a head says: where its tensors lie behind it, and which outputs are wanted."""

    __slots__ = ("_context", "_outputs", "_tensors", "nbytes")

    def __init__(self, request: InferenceRequest) -> None:
        """Take the layout from the first request with this head; all of its tensors are binary."""
        self._outputs = request.outputs
        self._context = request.context
        tensors: list[_TensorLayout] = []
        offset = 0
        for tensor in request.inputs.values():
            dtype = None if tensor.is_encoded else tensor.to_numpy().dtype
            nbytes = tensor.nbytes
            tensors.append((tensor.name, tensor.datatype, tensor.shape, dtype, offset, nbytes))
            offset += nbytes
        self._tensors = tuple(tensors)
        self.nbytes = offset
        """Size of the tensor data that must follow."""

    def make_request(
        self,
        body: Buffer,
        start: int,
        model_name: str,
        model_version: int,
        respond: Respond,
        regions: Regions,  # noqa: ARG002 - as RegionLayout
    ) -> InferenceRequest:
        """Return the request whose tensors are the bytes of ``body`` from ``start`` on, as views."""
        inputs: dict[str, Tensor] = {}
        for name, datatype, shape, dtype, offset, nbytes in self._tensors:
            place = start + offset
            if dtype is None:
                inputs[name] = Tensor(name, datatype, shape, None, memoryview(body)[place : place + nbytes])
            else:
                inputs[name] = Tensor(name, datatype, shape, np.ndarray(shape, dtype, body, place))
        request = InferenceRequest(model_name, inputs, respond, model_version=model_version)
        request.outputs = self._outputs
        request.context = self._context
        return request


class RegionLayout:
    """What a head says that names shared memory."""

    __slots__ = ("_default_binary", "_outputs", "_places", "_tensors", "_wishes", "nbytes")

    def __init__(self, request: InferenceRequest, document: dict[str, Any]) -> None:
        """Take the layout from the first request with this head, and from the JSON where regions are named."""
        self._outputs = request.outputs
        wanted: WantedOutputs = request.context
        self._default_binary = wanted.default_binary
        self._wishes = None if wanted.by_name is None else KnownWishes(wanted.by_name)
        tensors: list[tuple[str, str, tuple[int, ...], np.dtype[Any] | None, Place | None, int]] = []
        self.nbytes = 0
        """Size of the tensor data that must follow."""
        for tensor, item in zip(request.inputs.values(), document["inputs"], strict=True):
            dtype = None if tensor.is_encoded else tensor.to_numpy().dtype
            parameters = item["parameters"]
            place = read_place(tensor.name, parameters) if "shared_memory_region" in parameters else None
            nbytes = 0 if place is not None else tensor.nbytes
            tensors.append((tensor.name, tensor.datatype, tensor.shape, dtype, place, nbytes))
            self.nbytes += nbytes
        self._tensors = tuple(tensors)
        self._places = tuple(input_places(document["inputs"]))

    def make_request(
        self,
        body: Buffer,
        start: int,
        model_name: str,
        model_version: int,
        respond: Respond,
        regions: Regions,
    ) -> InferenceRequest:
        """Return the request whose tensors are in ``regions``, and in ``body`` from ``start`` on.

        Raises:
            NotFound, InvalidArgument, Unavailable: as `Regions.slice`.
        """
        view = memoryview(body)
        inputs: dict[str, Tensor] = {}
        for name, datatype, shape, dtype, place, nbytes in self._tensors:
            if place is not None:
                memory = regions.slice(*place)
            else:
                memory = view[start : start + nbytes]
                start += nbytes
            if dtype is None:
                inputs[name] = Tensor(name, datatype, shape, None, memory)
            else:
                inputs[name] = Tensor(name, datatype, shape, np.ndarray(shape, dtype, memory))
        request = InferenceRequest(model_name, inputs, respond, model_version=model_version)
        request.outputs = self._outputs
        if self._wishes is None:
            request.context = WantedOutputs(default_binary=self._default_binary)
        else:
            by_name = self._wishes.find(regions)
            request.context = WantedOutputs(default_binary=self._default_binary, by_name=by_name)
            request.targets = self._wishes.find_targets(regions, self._places, by_name)
        return request


_layouts: dict[bytes, HeadLayout | RegionLayout] = {}

find = _layouts.get
"""Return the layout of a head, or None."""


def remember(head: bytes, document: dict[str, Any], request: InferenceRequest) -> None:
    """Keep the layout of ``head`` if all that differs between requests with this head is their tensors' bytes."""
    if request.id or document.get("parameters") is not None:
        return
    if any("data" in item for item in document["inputs"]):
        return
    if len(_layouts) >= _MAX_HEADS:  # heads come from clients; refilling the table is cheap
        _layouts.clear()
    by_name = request.context.by_name
    if any("shared_memory_region" in item["parameters"] for item in document["inputs"]) or (
        by_name is not None and any(choice.region is not None for choice in by_name.values())
    ):
        _layouts[head] = RegionLayout(request, document)
    else:
        _layouts[head] = HeadLayout(request)
