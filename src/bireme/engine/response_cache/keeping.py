"""From a response to what a cache may hold: memory that nobody else writes to, and whose size is known.

An array that owns its memory, and that nothing but the response refers to, is kept as it is. Everything else is copied
once: a view of a batch would hold the whole batch, a block of a model's process its shared memory; a client's region, or
the buffer that a Python model uses again, may change at any time.
"""

from __future__ import annotations

import sys
from typing import Any, Final

import numpy as np

from bireme.engine.response_cache.interface import ENTRY_NBYTES, TENSOR_NBYTES, CachedResponse, CachedTensor
from bireme.ipc.shared_memory import RegionMapping
from bireme.telemetry.spans import TRACE_PARAMETER
from bireme.types import Array, InferenceRequest, InferenceResponse, Parameter, Tensor


def keep(response: InferenceResponse) -> CachedResponse:
    """Return what to put into a cache for ``response``, a good and final one."""
    outputs = tuple(map(_keep, response.outputs))
    parameters = _without_trace(response.parameters)
    nbytes = ENTRY_NBYTES + sum(TENSOR_NBYTES + output.to_tensor().nbytes for output in outputs)
    if parameters:
        nbytes += sum(
            TENSOR_NBYTES + len(value) * 4 for value in parameters.values() if isinstance(value, str)
        )
    return CachedResponse(outputs, parameters, nbytes)


def own_inputs(request: InferenceRequest) -> None:
    """Copy the inputs of ``request`` that lie in a client's shared memory.

    The client could change them between the making of the key and the run of the model, and so put a wrong answer into the
    cache, for others.
    """
    inputs = request.inputs
    if any(map(_is_of_client, inputs.values())):
        request.inputs = {
            name: _copied(tensor) if _is_of_client(tensor) else tensor for name, tensor in inputs.items()
        }


def _is_of_client(tensor: Tensor) -> bool:
    memory: Any = tensor.memory
    while memory is not None:
        if isinstance(memory, np.ndarray):
            memory = memory.base
        elif type(memory) is memoryview:
            memory = memory.obj
        else:
            return isinstance(memory, RegionMapping)
    return False


def _copied(tensor: Tensor) -> Tensor:
    array = tensor.to_numpy()  # of BYTES it is a copy, as they were decoded
    if tensor.datatype != "BYTES":
        array = np.array(array, order="C")
    return Tensor(tensor.name, tensor.datatype, tensor.shape, array)


def _keep(tensor: Tensor) -> CachedTensor:
    if tensor.datatype == "BYTES":
        encoded = tensor.to_buffer()
        # No copy of what is bytes already, as nearly all of them are.
        return CachedTensor(tensor.name, "BYTES", tensor.shape, bytes(encoded))
    is_alone = _num_references(tensor) == _ALONE
    array = tensor.to_numpy()
    if not is_alone or not _owns_its_memory(array):
        array = np.array(array, order="C")
    array.flags.writeable = False
    return CachedTensor(tensor.name, tensor.datatype, tensor.shape, array)


def _num_references(tensor: Tensor) -> int:
    """Return how many references there are to the array of ``tensor``, those that the call itself takes included."""
    array = tensor.to_numpy()
    return sys.getrefcount(array)


_ALONE: Final = _num_references(Tensor("alone", "FP32", (1,), np.zeros(1, np.float32)))
"""For an array that only its tensor refers to."""


def _owns_its_memory(array: Array) -> bool:
    return array.base is None and bool(array.flags.owndata) and bool(array.flags.c_contiguous)


def _without_trace(parameters: dict[str, Parameter] | None) -> dict[str, Parameter] | None:
    if not parameters:
        return None
    return {name: value for name, value in parameters.items() if name != TRACE_PARAMETER} or None
