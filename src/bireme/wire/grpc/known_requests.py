"""Heads of requests that came before: most clients repeat theirs byte for byte, with other tensor data behind it.

Parsing the head of a small request costs 12 µs, to learn what the last request's head said. So a head is remembered
with what it describes, if all of that is in the head itself. Of tensors in shared memory it is remembered where they lie;
the memory itself is looked up anew for each request.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from bireme.types import Buffer, InferenceRequest, Respond, Tensor
from bireme.wire.grpc.wanted_outputs import GrpcWanted
from bireme.wire.regions import Place, Regions
from bireme.wire.wanted_outputs import KnownWishes, WantedOutput

MAX_HEAD_BYTES: Final = 2048
"""Longer heads are not remembered: they cost more to look up and keep than they save."""
_MAX_HEADS: Final = 1024
_MAX_SEQUENCES: Final = 256
"""Heads of sequences come and go: beyond so many the oldest is forgotten, so that they don't crowd out the others."""

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
        "_sequence_id",
        "_tensors",
        "_timeout_us",
        "num_raw_contents",
    )

    def __init__(self, request: InferenceRequest) -> None:
        """Take over what the first request with this head is; all of its tensors came as raw contents."""
        self._model_name = request.model_name
        self._model_version = request.model_version
        self._outputs = request.outputs
        self._context: GrpcWanted = request.context
        self._parameters = request.parameters
        self._priority = request.priority
        self._timeout_us = request.timeout_us
        self._sequence_id = request.sequence_id
        self._has_options = bool(
            request.parameters or request.priority or request.timeout_us or request.sequence_id
        )
        self._tensors = tuple(map(_layout, request.inputs.values()))
        self.num_raw_contents = len(self._tensors)
        """How many of the raw contents the inputs take; any beyond them are ignored."""

    def make_request(
        self,
        message: Buffer,
        request_id: str,
        starts: list[int],
        ends: list[int],
        respond: Respond,
        regions: Regions,  # noqa: ARG002 (as KnownRegionRequest)
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
        return self._with_inputs(inputs, request_id, respond)

    def _with_inputs(self, inputs: dict[str, Tensor], request_id: str, respond: Respond) -> InferenceRequest:
        request = InferenceRequest(
            self._model_name, inputs, respond, model_version=self._model_version, id=request_id
        )
        request.outputs = self._outputs
        request.context = self._context
        if self._has_options:
            request.parameters = None if self._parameters is None else self._parameters.copy()
            request.priority = self._priority
            request.timeout_us = self._timeout_us
            request.sequence_id = self._sequence_id
        return request


class KnownRegionRequest(KnownRequest):
    """What a head says that names shared memory."""

    __slots__ = ("_places", "_wishes")

    def __init__(self, request: InferenceRequest, places: Mapping[str, Place]) -> None:
        """Take over what the first request with this head is; ``places`` says of inputs where in regions they are."""
        super().__init__(request)
        self._places = [places.get(name) for name in request.inputs]
        self.num_raw_contents = self._places.count(None)
        self._context = GrpcWanted(
            empty_final=request.context.empty_final
        )  # let go of the first one's regions
        by_name: Mapping[str, WantedOutput] | None = request.context.by_name
        self._wishes = KnownWishes(by_name) if by_name else None

    def make_request(
        self,
        message: Buffer,
        request_id: str,
        starts: list[int],
        ends: list[int],
        respond: Respond,
        regions: Regions,
    ) -> InferenceRequest | None:
        """Return the request whose tensors are in ``regions`` and among the raw contents; None: they don't fit.

        Raises:
            NotFound, InvalidArgument, Unavailable: as `Regions.slice`.
        """
        inputs: dict[str, Tensor] = {}
        index = 0
        for (name, datatype, shape, dtype, nbytes), place in zip(self._tensors, self._places, strict=True):
            if place is not None:
                memory = regions.slice(*place)
            else:
                memory = memoryview(message)[starts[index] : ends[index]]
                index += 1
                if dtype is not None and len(memory) != nbytes:
                    return None
            array = None if dtype is None else np.ndarray(shape, dtype, memory)
            inputs[name] = Tensor(name, datatype, shape, array, memory if dtype is None else None)
        request = self._with_inputs(inputs, request_id, respond)
        if self._wishes is not None:
            by_name = self._wishes.find(regions)
            request.context = GrpcWanted(by_name=by_name, empty_final=self._context.empty_final)
            request.targets = self._wishes.find_targets(regions, filter(None, self._places), by_name)
        return request


def _layout(tensor: Tensor) -> _TensorLayout:
    is_bytes = tensor.datatype == "BYTES"
    dtype, nbytes = (None, -1) if is_bytes else (tensor.to_numpy().dtype, tensor.nbytes)
    return tensor.name, tensor.datatype, tensor.shape, dtype, nbytes


_known: dict[bytes, KnownRequest] = {}
_of_sequences: deque[bytes] = deque()
"""Those of the heads that belong to sequences, the oldest first."""

find = _known.get
"""Return what is known of a head, or None."""


def remember(head: bytes, request: InferenceRequest, places: Mapping[str, Place]) -> None:
    """Keep what ``head`` says, unless it is the first or the last of a sequence and so comes only once.

    ``places`` says of the inputs in shared memory where they are; the others came as raw contents.
    """
    if request.sequence_start or request.sequence_end:
        return
    if len(_known) >= _MAX_HEADS:  # heads come from clients; refilling the table is cheap
        _known.clear()
        _of_sequences.clear()
    if request.sequence_id:
        if len(_of_sequences) >= _MAX_SEQUENCES:
            _known.pop(_of_sequences.popleft(), None)
        _of_sequences.append(head)
    by_name = request.context.by_name
    if places or (by_name is not None and any(choice.region is not None for choice in by_name.values())):
        _known[head] = KnownRegionRequest(request, places)
    else:
        _known[head] = KnownRequest(request)
