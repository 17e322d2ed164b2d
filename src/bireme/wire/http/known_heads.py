"""JSON heads that came before: most clients repeat theirs byte for byte, with other tensor data behind it.

Decoding a small binary request costs 6 µs, of which all but 2 are spent on JSON that says what the last request's JSON
said. So a head of binary tensors without an id or parameters is remembered with the layout that it describes.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from bireme.types import Buffer, InferenceRequest, Respond, Tensor

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
        self, body: Buffer, start: int, model_name: str, model_version: int, respond: Respond
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


_layouts: dict[bytes, HeadLayout] = {}

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
    _layouts[head] = HeadLayout(request)
