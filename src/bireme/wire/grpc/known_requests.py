"""Heads of requests that came before: most clients repeat theirs byte for byte, with other tensor data behind it.

Parsing the head of a small request costs 12 µs, to learn what the last request's head said. So a head is remembered
with what it describes, if all of that is in the head itself.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from bireme.types import Buffer, InferenceRequest, Respond, Tensor

MAX_HEAD_BYTES: Final = 2048
"""Longer heads are not remembered: they cost more to look up and keep than they save."""
_MAX_HEADS: Final = 1024

_TensorLayout = tuple[str, str, tuple[int, ...], "np.dtype[Any] | None", int]


class KnownRequest:
    """What a head says: all of a request but its id and the data of its tensors."""

    __slots__ = (
        "_context",
        "_has_options",
        "_model_name",
        "_model_version",
        "_outputs",
        "_parameters",
        "_priority",
        "_tensors",
        "_timeout_us",
        "num_tensors",
    )

    def __init__(self, request: InferenceRequest) -> None:
        """Take over what the first request with this head is; all of its tensors came as raw contents."""
        self._model_name = request.model_name
        self._model_version = request.model_version
        self._outputs = request.outputs
        self._context = request.context
        self._parameters = request.parameters
        self._priority = request.priority
        self._timeout_us = request.timeout_us
        self._has_options = bool(request.parameters or request.priority or request.timeout_us)
        tensors: list[_TensorLayout] = []
        for tensor in request.inputs.values():
            is_bytes = tensor.datatype == "BYTES"
            dtype, nbytes = (None, -1) if is_bytes else (tensor.to_numpy().dtype, tensor.nbytes)
            tensors.append((tensor.name, tensor.datatype, tensor.shape, dtype, nbytes))
        self._tensors = tuple(tensors)
        self.num_tensors = len(tensors)
        """The least number of raw contents."""

    def make_request(
        self, message: Buffer, request_id: str, starts: list[int], ends: list[int], respond: Respond
    ) -> InferenceRequest | None:
        """Return the request whose tensors are views of the raw contents in ``message``; None: they don't fit."""
        inputs: dict[str, Tensor] = {}
        index = 0
        for name, datatype, shape, dtype, nbytes in self._tensors:
            start, end = starts[index], ends[index]
            index += 1  # noqa: SIM113 (zip and enumerate cost 0.15 µs more)
            if dtype is None:
                inputs[name] = Tensor(name, datatype, shape, None, memoryview(message)[start:end])
            elif end - start == nbytes:
                inputs[name] = Tensor(name, datatype, shape, np.ndarray(shape, dtype, message, start))
            else:
                return None
        request = InferenceRequest(
            self._model_name, inputs, respond, model_version=self._model_version, id=request_id
        )
        request.outputs = self._outputs
        request.context = self._context
        if self._has_options:
            request.parameters = None if self._parameters is None else self._parameters.copy()
            request.priority = self._priority
            request.timeout_us = self._timeout_us
        return request


_known: dict[bytes, KnownRequest] = {}

find = _known.get
"""Return what is known of a head, or None."""


def remember(head: bytes, request: InferenceRequest) -> None:
    """Keep what ``head`` says, unless requests of a kind differ in it: those of a sequence do."""
    if request.sequence_id or request.sequence_start or request.sequence_end:
        return
    if len(_known) >= _MAX_HEADS:  # heads come from clients; refilling the table is cheap
        _known.clear()
    _known[head] = KnownRequest(request)
