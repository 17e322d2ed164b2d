"""Instances: they all run one session, which is safe from several threads at once.

====================================  =========================================================================  ======
how                                                                                                              one add
====================================  =========================================================================  ======
a callable made of the session        arrays in and out, nothing looked up per run                               17 µs
``Session.run``                       where a TensorFlow has no such thing                                       128 µs
====================================  =========================================================================  ======

Inputs whose memory is contiguous and begins at a multiple of 64 are not copied; TensorFlow copies others, and strings. Outputs
are TensorFlow's own memory, which lives as long as its array, and which may be that of a weight: they are read-only. An output
that is an input passed on is copied, since inputs are only borrowed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Final

import numpy as np

from bireme.backends.errors import refuse_run
from bireme.backends.interface import Execute
from bireme.backends.signature import Signature
from bireme.backends.tensorflow.runtime import describe_error, tf
from bireme.backends.tensorflow.session import OpenGraph
from bireme.backends.tensorflow.signature import GraphSignature
from bireme.config import ModelConfig
from bireme.types import Array, BackendFailed

_BFLOAT16: Final = np.dtype(tf.bfloat16.as_numpy_dtype)


class TensorFlowInstance:
    """Runs the shared session."""

    __slots__ = ("execute",)

    may_run_inline: Final = False
    """A run waits for threads of TensorFlow's."""

    def __init__(self, execute: Execute) -> None:
        self.execute = execute

    def close(self) -> None:
        """Let go of the session."""
        self.execute = refuse_run


class GraphRun:
    """Runs a graph for the outputs that a config lists. Any number of threads may at one time."""

    def __init__(
        self, opened: OpenGraph, found: GraphSignature, signature: Signature, config: ModelConfig
    ) -> None:
        """Prepare; ``signature`` is that of ``found``, with all ranks known."""
        self._opened = opened
        self._tensors = found.tensors
        self._order = tuple(found.tensors)
        specs = {**signature.inputs, **signature.initializers}
        self._conversions = {
            name: _conversion(specs[name].datatype, specs[name].shape) for name in self._order
        }
        self._ranks = {output.name: len(output.dims) for output in config.output}
        fed = {tensor: name for name, tensor in found.tensors.items()}
        results = {name: found.results[name] for name in self._ranks}
        # A session computes nothing that it is given.
        self._passed_on = {name: fed[tensor] for name, tensor in results.items() if tensor in fed}
        self._fetched = {name: tensor for name, tensor in results.items() if tensor not in fed}
        self._defaults = {name: tf.make_ndarray(proto) for name, proto in found.defaults.items()}
        self._calls: dict[tuple[str, ...], Callable[..., list[Any]]] = {}
        self._lock = threading.Lock()

    def __call__(self, inputs: dict[str, Array]) -> dict[str, Array]:
        """Run over one batch; see `bireme.backends.interface.Instance.execute`."""
        names = self._order
        if len(inputs) < len(names):
            inputs = {**self._defaults, **inputs}
            names = tuple(name for name in names if name in inputs)
        call = self._calls.get(names) or self._prepare(names)
        arrays = [self._conversions[name](inputs[name]) for name in names]
        try:
            results = call(*arrays)
        except tf.errors.OpError as error:
            raise BackendFailed(describe_error(error)) from error
        outputs = dict(zip(self._fetched, results, strict=True))
        for name, given in self._passed_on.items():
            outputs[name] = inputs[given]
        return {name: _owned(outputs[name], arrays, rank) for name, rank in self._ranks.items()}

    def _prepare(self, names: tuple[str, ...]) -> Callable[..., list[Any]]:
        """Return what runs the graph with values for ``names``; it is made once, as a run with others is another graph."""
        with self._lock:
            call = self._calls.get(names)
            if call is None:
                call = self._calls[names] = _make_call(
                    self._opened.session,
                    [self._tensors[name] for name in names],
                    list(self._fetched.values()),
                )
        return call


def make_execute(
    opened: OpenGraph, found: GraphSignature, signature: Signature, config: ModelConfig
) -> Execute:
    """Return the function that runs the graph for the outputs that ``config`` lists."""
    return GraphRun(opened, found, signature, config)


def _make_call(session: Any, feeds: list[str], fetches: list[str]) -> Callable[..., list[Any]]:
    distinct = list(dict.fromkeys(fetches))
    if not distinct:
        return lambda *_values: []
    call = _make_session_call(session, feeds, distinct)
    if len(distinct) == len(fetches):
        return call
    indices = [distinct.index(fetch) for fetch in fetches]

    def call_and_repeat(*values: Array) -> list[Any]:
        results = call(*values)
        return [results[index] for index in indices]

    return call_and_repeat


def _make_session_call(session: Any, feeds: list[str], fetches: list[str]) -> Callable[..., list[Any]]:
    # Private, but there since 2018: the public one, `make_callable`, goes through `run`.
    make = getattr(session, "_make_callable_from_options", None)
    if make is None:
        return lambda *values: session.run(fetches, dict(zip(feeds, values, strict=True)))
    from tensorflow.core.protobuf import config_pb2

    call: Callable[..., list[Any]] = make(config_pb2.CallableOptions(feed=feeds, fetch=fetches))
    return call


def _conversion(datatype: str | None, shape: tuple[int, ...]) -> Callable[[Array], Array]:
    """Return what turns an input into what a session takes."""
    if datatype == "BF16":
        as_is: Callable[[Array], Array] = _as_bfloat16
    else:
        as_is = _as_is
    # The protocol has no scalars: the config says dims [1], the model file [].
    return as_is if shape else lambda array: as_is(array).reshape(())


def _as_is(array: Array) -> Array:
    return array


def _as_bfloat16(array: Array) -> Array:
    return array.view(_BFLOAT16)


def _owned(result: Any, arrays: list[Array], rank: int) -> Array:
    """Return a result as the caller's own."""
    array: Array = np.asarray(result)  # scalars are numpy's
    if array.dtype == _BFLOAT16:
        array = array.view(np.uint16)
    if array.ndim == 0:
        array = array.reshape((1,) * rank)
    if any(np.may_share_memory(array, each) for each in arrays):
        return array.copy()
    array.flags.writeable = False
    return array
