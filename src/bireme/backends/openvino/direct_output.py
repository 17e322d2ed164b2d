"""DirectOutput: runs a request whose large outputs go straight into memory that the caller provides.

OpenVINO takes a tensor that is larger than a dynamic output and gives it the output's shape. So the whole memory becomes a
tensor, and no shape has to be known before. An output that does not fit fails the run; the ordinary run that follows then
says how much it needs, and with inputs of the same shapes its memory is tried again only if it is as large as that.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any, Final

import numpy as np

from bireme.backends.openvino.errors import reason_of
from bireme.backends.openvino.instance import Output, Runner
from bireme.backends.openvino.runtime import log, ov
from bireme.types import Array

_MAX_KNOWN: Final = 1024
"""Combinations of input shapes that are remembered."""

_Key = tuple[tuple[str, tuple[int, ...]], ...]


class DirectOutput:
    """An `ExecuteInto` for outputs of numbers. One run at a time, as the request."""

    __slots__ = ("_needed", "_outputs", "_runner")

    def __init__(self, runner: Runner, outputs: list[Output]) -> None:
        self._runner = runner
        self._outputs = outputs
        self._needed: dict[_Key, dict[str, int]] = {}
        """Bytes of the outputs that did not fit once."""

    def __call__(self, inputs: dict[str, Array], targets: Mapping[str, memoryview]) -> dict[str, Array]:
        """Run the request; each output that fits into its target is a view of that."""
        needed = self._needed.get(_key(inputs), {}) if self._needed else {}
        places = {
            output.name: tensor
            for output in self._outputs
            if (target := targets.get(output.name)) is not None
            and needed.get(output.name, 0) <= len(target)
            and (tensor := _place(output, target)) is not None
        }
        if not places:
            return self._runner.execute(inputs)
        try:
            return self._runner.execute(inputs, places)
        except Exception as error:  # noqa: BLE001 - the ordinary run says what is wrong, if it's not the room
            results = self._runner.execute(inputs)
            log.debug("outputs %s did not fit into given memory: %s", ", ".join(places), reason_of(error))
            if len(self._needed) >= _MAX_KNOWN:  # shapes come from clients; learning them anew is cheap
                self._needed.clear()
            self._needed[_key(inputs)] = {name: results[name].nbytes for name in places}
            return results


def _key(inputs: Mapping[str, Array]) -> _Key:
    return tuple((name, array.shape) for name, array in inputs.items())


def _place(output: Output, target: memoryview) -> Any:
    """Return a tensor over the whole of ``target``, or what a fixed shape needs of it; None: it is too small or unaligned."""
    fixed = prod(dim for dim in output.shape if dim >= 0) * output.dtype.itemsize
    if not 0 < fixed <= len(target):
        return None
    shape = [1 if dim < 0 else dim for dim in output.shape]
    if -1 in output.shape:
        shape[output.shape.index(-1)] = len(target) // fixed
    array: Array = np.ndarray(shape, output.dtype, target)
    return ov.Tensor(array, shape, output.element_type) if array.flags.aligned else None
