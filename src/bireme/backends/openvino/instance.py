"""Instances: an infer request each, over the compiled model that they share.

A run costs 15 to 20 µs for one add of small tensors; with OpenVINO's own ``InferRequest.infer``, which looks at each input in
Python, 30 µs. The GIL is released while the model runs.

Inputs are borrowed, not copied. A large output is the memory that the model has written to, which the request then gives up
for new memory; a small one is copied, which is cheaper (the exchange costs 3 µs).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from bireme.backends.interface import ExecuteInto
from bireme.backends.openvino.runtime import ov, reason_of
from bireme.backends.openvino.signature import has_known_rank, shape_of
from bireme.backends.openvino.tensors import borrow, borrow_bf16, contiguous, from_bytes, to_bytes
from bireme.backends.signature import Signature
from bireme.config import ModelConfig
from bireme.config.state_tensors import with_state_tensors
from bireme.types import Array, BackendFailed

Execute = Callable[[dict[str, Array]], dict[str, Array]]

SMALL_NBYTES: Final = 16 * 1024
"""Up to this size an output is copied: that costs less than new memory for the request."""


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
    """-1 for a dynamic dimension."""
    element_type: Any
    num_dims: int
    """How many dimensions the config gives it; a scalar is given them, too."""

    def make(self) -> Any:
        """Return a tensor for the request to write to; it grows to what a dynamic output needs."""
        return ov.Tensor(self.element_type, [max(dim, 0) for dim in self.shape])


class Runner:
    """Runs one infer request. One run at a time."""

    def __init__(
        self,
        request: Any,
        inputs: list[Input],
        outputs: list[Output],
        *,
        returns_text: bool,
        has_states: bool,
    ) -> None:
        """``returns_text``: any output of the model, listed or not, is a tensor of strings."""
        self._request = request
        self._inputs = inputs
        self._outputs = outputs
        self._returns_text = returns_text
        self._has_states = has_states
        self._tensors = {output.index: output.make() for output in outputs}
        for index, tensor in self._tensors.items():
            request.set_output_tensor(index, tensor)

    def run(self, arrays: Mapping[str, Array]) -> None:
        """Run the model; its outputs are in the tensors of the request then."""
        kept = {name: contiguous(array) for name, array in arrays.items()}  # borrowed until the run is over
        tensors = {each.index: _to_tensor(each, kept[each.name]) for each in self._inputs}
        if self._has_states:
            self._request.reset_state()
        if self._returns_text:
            # The shorter way would make arrays of all outputs, and warn of those of strings each time.
            self._request.start_async(tensors, None)
            self._request.wait()
        else:
            self._request.infer(tensors, True, False)  # outputs are shared, strings not decoded

    def execute(self, arrays: dict[str, Array]) -> dict[str, Array]:
        """As `bireme.backends.interface.Instance.execute`."""
        try:
            self.run(arrays)
        except RuntimeError as error:
            raise BackendFailed(reason_of(error)) from error
        return {output.name: self._take(output) for output in self._outputs}

    def _take(self, output: Output) -> Array:
        tensor = self._tensors[output.index]
        if output.datatype == "BYTES":
            array = to_bytes(tensor)
        elif tensor.byte_size <= SMALL_NBYTES:
            array = tensor.data.copy()
        else:
            array = tensor.data  # holds its tensor
            self.renew(output)
        return shaped(array, output)

    def renew(self, output: Output) -> None:
        """Have the request write an output to memory that nobody else has."""
        tensor = self._tensors[output.index] = output.make()
        self._request.set_output_tensor(output.index, tensor)

    def bind(self, output: Output, tensor: Any) -> None:
        """Have the request write an output to the memory of ``tensor``, until it is renewed."""
        self._tensors[output.index] = tensor
        self._request.set_output_tensor(output.index, tensor)

    def tensor(self, output: Output) -> Any:
        """Return the tensor that the output is written to."""
        return self._tensors[output.index]


class OpenVinoInstance:
    """One infer request. See `make_instance`."""

    __slots__ = ("execute", "execute_into", "may_run_inline")

    def __init__(self, runner: Runner, execute_into: ExecuteInto | None, *, may_run_inline: bool) -> None:
        self.execute: Execute = runner.execute
        self.execute_into = execute_into
        """None: the model's outputs do not allow it."""
        self.may_run_inline = may_run_inline
        """On the CPU it is native code that waits for nothing."""

    def close(self) -> None:
        """Let go of the request."""
        self.execute = _closed
        self.execute_into = None


def make_runner(compiled: Any, config: ModelConfig, signature: Signature) -> Runner:
    """Return what runs a new request for the inputs of ``signature`` and the outputs that ``config`` lists."""
    config = with_state_tensors(config)
    dims = {tensor.name: len(tensor.dims) for tensor in config.output}
    inputs = [
        Input(spec.name, index, spec.datatype or "", is_scalar=not spec.shape)
        for index, spec in enumerate(signature.inputs.values())
    ]
    ports = compiled.outputs
    outputs = [
        Output(
            spec.name,
            index,
            spec.datatype or "",
            shape_of(ports[index]) if has_known_rank(ports[index]) else (0,),
            ports[index].get_element_type(),
            dims[spec.name],
        )
        for index, spec in enumerate(signature.outputs.values())
        if spec.name in dims
    ]
    # The method of the base class: the one of `openvino.CompiledModel` wraps the request.
    request = super(ov.CompiledModel, compiled).create_infer_request()
    return Runner(
        request,
        inputs,
        outputs,
        returns_text=any(spec.datatype == "BYTES" for spec in signature.outputs.values()),
        has_states=bool(request.query_state()),
    )


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
