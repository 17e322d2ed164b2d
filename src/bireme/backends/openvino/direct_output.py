"""DirectOutput: runs a request whose large outputs go straight into memory that the caller provides.

Only outputs of fixed shapes: OpenVINO writes others to memory of its own and copies them from there, as the caller can, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

import numpy as np

from bireme.backends.openvino.instance import Output, Place, Runner
from bireme.backends.openvino.tensors import over
from bireme.types import Array, datatypes


class DirectOutput:
    """An `ExecuteInto`. One run at a time, as the request."""

    __slots__ = ("_outputs", "_runner")

    def __init__(self, runner: Runner, outputs: list[Output]) -> None:
        """``outputs`` are those to place: see `can_place`."""
        self._runner = runner
        self._outputs = outputs

    def __call__(self, inputs: dict[str, Array], targets: Mapping[str, memoryview]) -> dict[str, Array]:
        """Run the request; each output that fits into its target is a view of that."""
        places: dict[int, Place] = {}
        for output in self._outputs:
            target = targets.get(output.name)
            if target is not None and (place := _place(output, target)) is not None:
                places[output.index] = place
        return self._runner.execute(inputs, places)


def can_place(output: Output) -> bool:
    """Whether an output can be written to memory of the caller's."""
    return bool(output.shape) and output.datatype != "BYTES"


def _place(output: Output, target: memoryview) -> Place | None:
    """Return the start of ``target``; None: it is too small, or not aligned to the type."""
    shape = output.shape or ()
    dtype = datatypes.NUMPY_DTYPES[output.datatype]
    if not 0 < prod(shape) * dtype.itemsize <= len(target):
        return None
    array: Array = np.ndarray(shape, dtype, target)
    return Place(array, over(array, output.datatype)) if array.flags.aligned else None
