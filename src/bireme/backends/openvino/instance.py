"""Instances: an infer request each, over the compiled model that they share.

A run costs 15 to 25 µs for one add of small tensors; with OpenVINO's own ``InferRequest.infer``, which looks at each input in
Python, half as much again. The GIL is released while the model runs.

Inputs are borrowed, not copied. A large output is the memory that the model has written to, which the request then gives up
for new memory; a small one is copied, which is cheaper (the exchange costs 3 µs).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from bireme.backends.interface import ExecuteInto
from bireme.backends.openvino.errors import reason_of
from bireme.backends.openvino.runtime import ov
from bireme.backends.openvino.states import SequenceStart
from bireme.backends.openvino.tensors import borrow, borrow_bf16, contiguous, from_bytes, to_bytes
from bireme.types import Array, BackendFailed, datatypes

Execute = Callable[[dict[str, Array]], dict[str, Array]]

SMALL_NBYTES: Final = 16 * 1024
"""Up to this size an output is copied: that costs less than new memory for the request."""

_NOWHERE: Final[Mapping[str, Any]] = {}


@dataclass(frozen=True, slots=True)
class Input:
    """One input of the compiled model."""

    name: str
    index: int
    datatype: str
    is_scalar: bool = False


@dataclass(frozen=True, slots=True)
class Output:
    """One output that the config lists."""

    name: str
    index: int
    datatype: str
    shape: tuple[int, ...]
    """-1 for a dynamic dimension; (0,) for an unknown rank."""
    element_type: Any
    num_dims: int
    """How many dimensions the config gives it; a scalar is given them, too."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """Numpy's type of the elements."""
        return datatypes.NUMPY_DTYPES[self.datatype]

    def make(self) -> Any:
        """Return a tensor for the request to write to; it grows to what a dynamic output needs."""
        return ov.Tensor(self.element_type, [max(dim, 0) for dim in self.shape])


class Runner:
    """Runs one infer request. One run at a time."""

    __slots__ = ("_inputs", "_outputs", "_request", "_returns_text", "_start", "_states", "_tensors")

    def __init__(
        self,
        request: Any,
        inputs: list[Input],
        outputs: list[Output],
        *,
        returns_text: bool,
        start: SequenceStart | None,
    ) -> None:
        """``returns_text``: any output of the model, listed or not, is a tensor of strings.

        ``start``: what begins the request's states anew; None: every run.
        """
        self._request = request
        self._inputs = inputs
        self._outputs = outputs
        self._returns_text = returns_text
        self._start = start
        self._states: list[Any] = request.query_state()
        self._tensors: dict[int, Any] = {}
        for output in outputs:
            self._bind(output, output.make())

    def execute(self, arrays: dict[str, Array], places: Mapping[str, Any] = _NOWHERE) -> dict[str, Array]:
        """As `bireme.backends.interface.Instance.execute`.

        ``places`` are tensors that the outputs of their names are written to; those results are views of them.

        Raises:
            BackendFailed: with what OpenVINO says.
        """
        for output in self._outputs if places else ():
            if output.name in places:
                self._bind(output, places[output.name])
        try:
            self._run(arrays)
            return {output.name: self._take(output, places) for output in self._outputs}
        except RuntimeError as error:
            raise BackendFailed(reason_of(error)) from error
        finally:
            for output in self._outputs if places else ():
                if self._tensors[output.index] is places.get(output.name):
                    self._bind(output, output.make())

    def _run(self, arrays: Mapping[str, Array]) -> None:
        kept = {
            each.name: contiguous(arrays[each.name]) for each in self._inputs
        }  # borrowed until it is over
        tensors = {each.index: _to_tensor(each, kept[each.name]) for each in self._inputs}
        if self._states and (self._start is None or self._start.is_set(arrays)):
            self._request.reset_state()
        if self._returns_text:
            # The shorter way would make arrays of all outputs, and warn of those of strings each time.
            self._request.start_async(tensors, None)
            self._request.wait()
        else:
            self._request.infer(tensors, True, False)  # outputs are shared, strings not decoded

    def _take(self, output: Output, places: Mapping[str, Any]) -> Array:
        tensor = self._tensors[output.index]
        if output.datatype == "BYTES":
            array = to_bytes(tensor)
        elif output.name in places:
            array = tensor.data
        elif tensor.byte_size <= SMALL_NBYTES:
            array = tensor.data.copy()
        else:
            array = tensor.data  # holds its tensor
            self._bind(output, output.make())
        return shaped(array, output)

    def _bind(self, output: Output, tensor: Any) -> None:
        """Have the request write an output to ``tensor``."""
        self._request.set_output_tensor(output.index, tensor)
        self._tensors[output.index] = tensor


class OpenVinoInstance:
    """Runs one infer request; ``execute`` is chosen when it is made."""

    __slots__ = ("execute", "execute_into", "may_run_inline")

    def __init__(self, execute: Execute, execute_into: ExecuteInto | None, *, may_run_inline: bool) -> None:
        self.execute = execute
        self.execute_into = execute_into
        """None: the model's outputs do not allow it."""
        self.may_run_inline = may_run_inline
        """On the CPU it is native code that waits for nothing."""

    def close(self) -> None:
        """Let go of the request."""
        self.execute = _closed
        self.execute_into = None


def shaped(array: Array, output: Output) -> Array:
    """Return an output as the protocol has it: BF16 as bits, a scalar with the dimensions of the config."""
    if output.datatype == "BF16":
        array = array.view(np.uint16)
    return array.reshape((1,) * output.num_dims) if array.ndim == 0 else array


def _to_tensor(each: Input, array: Array) -> Any:
    if each.is_scalar:
        array = array.reshape(())
    if each.datatype == "BYTES":
        return from_bytes(array)
    return borrow_bf16(array) if each.datatype == "BF16" else borrow(array)


def _closed(_inputs: dict[str, Array]) -> dict[str, Array]:
    raise BackendFailed("the instance is closed")
