"""Instances: an infer request each, over the compiled model that they share.

A run costs 15 to 25 µs for one add of small tensors; with OpenVINO's own ``InferRequest.infer``, which looks at each input in
Python, half as much again. The GIL is released while the model runs.

Inputs are borrowed, not copied. Outputs are in memory of the request, which the next run would write to: they are copied,
or else the caller gets that memory and the instance a new request (10 µs, and the page faults of new memory). One add of
two tensors of that size, the best of 60 runs on two cores that others used, too:

=========  ==========  ===========  =========
output     no copy     new request  copy
=========  ==========  ===========  =========
256 KiB    25 µs       39 µs        30 µs
4 MiB      0.22 ms     0.36 ms      0.5 ms
16 MiB     1.4 ms      1.5 ms       3.0 ms
64 MiB     7 ms        40 ms        18 ms
=========  ==========  ===========  =========

Memory of ours in place of the request's own is no way out: OpenVINO copies to it whatever has a dynamic shape.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np

from bireme.backends.errors import refuse_run
from bireme.backends.interface import Execute, ExecuteInto
from bireme.backends.openvino.errors import reason_of
from bireme.backends.openvino.states import SequenceStart
from bireme.backends.openvino.tensors import borrow, borrow_bf16, contiguous, from_bytes, to_bytes
from bireme.types import Array, BackendFailed

MIN_GIVEN_NBYTES: Final = 1 << 20
MAX_GIVEN_NBYTES: Final = 32 << 20
"""Between these sizes a caller gets the memory of the request itself."""


class Place(NamedTuple):
    """Memory of the caller's for an output."""

    array: Array
    tensor: Any
    """An ``openvino.Tensor`` over it."""


_NOWHERE: Final[Mapping[int, Place]] = {}


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
    shape: tuple[int, ...] | None
    """None: it is dynamic."""
    num_dims: int
    """How many dimensions the config gives it; a scalar is given them, too."""


class Runner:
    """Runs infer requests of one compiled model. One run at a time."""

    __slots__ = (
        "_can_renew",
        "_has_states",
        "_inputs",
        "_make_request",
        "_outputs",
        "_request",
        "_returns_text",
        "_start",
    )

    def __init__(
        self,
        make_request: Callable[[], Any],
        inputs: list[Input],
        outputs: list[Output],
        *,
        returns_text: bool,
        start: SequenceStart | None,
    ) -> None:
        """``make_request`` returns an ``openvino._pyopenvino.InferRequest``.

        ``returns_text``: any output of the model, listed or not, is a tensor of strings.

        ``start``: what begins the request's states anew; None: every run.
        """
        self._make_request = make_request
        self._inputs = inputs
        self._outputs = outputs
        self._returns_text = returns_text
        self._start = start
        self._request = make_request()
        self._has_states = bool(self._request.query_state())
        self._can_renew = not self._has_states or start is None  # a new request has no memory of a sequence

    def execute(self, arrays: dict[str, Array], places: Mapping[int, Place] = _NOWHERE) -> dict[str, Array]:
        """As `bireme.backends.interface.Instance.execute`.

        ``places`` are what outputs are written to, by their index; those results are these very arrays. Only for a model
        without states.

        Raises:
            BackendFailed: with what OpenVINO says.
        """
        is_given = bool(places)
        borrowed = [contiguous(arrays[each.name]) for each in self._inputs]
        try:
            for index, place in places.items():
                self._request.set_output_tensor(index, place.tensor)
            results: dict[str, Array] = {}
            for output, array in zip(self._outputs, self._run(arrays, borrowed), strict=True):
                if output.index in places:
                    owned = places[output.index].array
                elif output.datatype == "BYTES":
                    owned = array
                elif self._can_give(array, borrowed):
                    owned = array
                    is_given = True
                else:
                    owned = array.copy()
                results[output.name] = _shaped(owned, output)
            return results
        except RuntimeError as error:
            raise BackendFailed(reason_of(error)) from error
        finally:
            if is_given:
                self._request = self._make_request()

    def _run(self, arrays: Mapping[str, Array], borrowed: list[Array]) -> list[Array]:
        """Run the model and return the listed outputs, which are the request's memory unless they are strings.

        ``borrowed`` are the inputs in order; ``arrays`` may hold a control for the instance besides.
        """
        tensors = {
            each.index: _to_tensor(each, array) for each, array in zip(self._inputs, borrowed, strict=True)
        }
        request = self._request
        if self._has_states and (self._start is None or self._start.is_set(arrays)):
            request.reset_state()
        if not self._returns_text:
            found = request.infer(tensors, True, False)  # outputs are shared, strings not decoded
            values: list[Array] = list(found.values())
            return [values[output.index] for output in self._outputs]
        # The way above would warn of outputs of strings, which it copies, each time.
        request.start_async(tensors, None)
        request.wait()
        return [self._read(request.get_output_tensor(output.index), output) for output in self._outputs]

    def _can_give(self, array: Array, borrowed: list[Array]) -> bool:
        """Whether an output may leave with the request's memory.

        The one of a tensor that is an input, too, lies where that does.
        """
        return (
            self._can_renew
            and MIN_GIVEN_NBYTES <= array.nbytes <= MAX_GIVEN_NBYTES
            and not any(np.may_share_memory(array, each) for each in borrowed)
        )

    @staticmethod
    def _read(tensor: Any, output: Output) -> Array:
        array: Array = to_bytes(tensor) if output.datatype == "BYTES" else tensor.data
        return array


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
        self.execute = refuse_run
        self.execute_into = None


def _shaped(array: Array, output: Output) -> Array:
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
