"""JaxPredictor: an exported function as the server sees it, compiled once for each shape of its inputs.

Large inputs are lent to XLA where they are, if they lie on a boundary of 64 bytes; outputs are views of XLA's memory.
A call of a tiny function takes 13 µs.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, Final

import ml_dtypes
import numpy as np

from bireme.backends.interface import Execute
from bireme.backends.jax.artifact import Artifact
from bireme.backends.jax.runtime import jax, log
from bireme.backends.jax.settings import JaxSettings, batch_sizes
from bireme.backends.padding import pad_rows
from bireme.backends.signature import Signature, TensorSpec
from bireme.config import ModelConfig
from bireme.types import Array, InvalidArgument, datatypes

_LARGE: Final = 65536
"""Bytes from which lending an input is faster than its copy."""
_SHAPE_FAULT: Final = "Input shapes do not match the polymorphic shapes"

Prepare = Callable[[Array], Any]


class JaxPredictor:
    """See `bireme.backends.predictor.Predictor`."""

    may_run_inline = False
    """Compiling takes long, so only a function that is compiled for all that may come runs on the loop thread."""

    def __init__(self, artifact: Artifact, settings: JaxSettings) -> None:
        self._artifact = artifact
        self._settings = settings

    def describe(self, config: ModelConfig) -> Signature:
        """See `bireme.backends.predictor.Predictor`.

        Raises:
            InvalidArgument: the config batches, and the function's tensors do not have one batch dimension.
        """
        artifact = self._artifact
        if config.max_batch_size > 0 and not artifact.can_batch:
            firsts = {tensor.name: list(tensor.shape[:1]) for tensor in (*artifact.inputs, *artifact.outputs)}
            raise InvalidArgument(
                f"model '{config.name}': max_batch_size is {config.max_batch_size}, but the first dimensions of the exported "
                f"function's tensors are not the same symbol: {firsts}; set max_batch_size: 0, or export it with one"
            )
        return artifact.signature

    def can_batch(self) -> bool:
        """See `bireme.backends.predictor.Predictor`."""
        return self._artifact.can_batch

    def default_outputs(self) -> tuple[str, ...]:
        """Return all of them."""
        return tuple(tensor.name for tensor in self._artifact.outputs)

    def prepare(self, config: ModelConfig) -> Execute:
        """See `bireme.backends.predictor.Predictor`; compiles what can be foreseen."""
        run = _make_run(self._artifact, config)
        max_batch_size = config.max_batch_size
        if max_batch_size and self._settings.pads_batches:
            sizes = batch_sizes(max_batch_size)
            if self._settings.compiles_at_load and _is_known(self._artifact, skipped=1):
                log.debug("model '%s': compiling for batches of %s", config.name, sizes)
                for size in sizes:
                    run(_zeros(self._artifact, size))
                self.may_run_inline = True
            return _with_padding(run, sizes)
        if not max_batch_size and self._settings.compiles_at_load and _is_known(self._artifact, skipped=0):
            run(_zeros(self._artifact, 1))
            self.may_run_inline = True
        return run


def _make_run(artifact: Artifact, config: ModelConfig) -> Execute:
    """Return the function that runs ``artifact`` for the outputs of ``config``, compiled when it meets new shapes."""
    wanted = {output.name: tuple(output.dims) for output in config.output}
    chosen = [index for index, tensor in enumerate(artifact.outputs) if tensor.name in wanted]
    exported, tree = artifact.exported, jax.tree_util

    def call(leaves: list[Any]) -> list[Any]:
        arguments, keywords = tree.tree_unflatten(exported.in_tree, leaves)
        results = tree.tree_leaves(exported.call(*arguments, **keywords))
        return [results[index] for index in chosen]  # XLA leaves out what only the others need

    compiled = jax.jit(call)
    sources = [(tensor.name, _input_way(tensor)) for tensor in artifact.inputs]
    targets = [(artifact.outputs[index], wanted[artifact.outputs[index].name]) for index in chosen]
    in_64_bits = _64_bits if _has_64_bits(artifact) else nullcontext

    def run(inputs: dict[str, Array]) -> dict[str, Array]:
        with in_64_bits():
            try:
                results = compiled([way(inputs[name]) for name, way in sources])
            except ValueError as error:
                if _SHAPE_FAULT in str(error):
                    raise InvalidArgument(_shape_fault(error)) from error
                raise
        return {
            tensor.name: _as_output(tensor, dims, result)
            for (tensor, dims), result in zip(targets, results, strict=True)
        }

    return run


def _with_padding(run: Execute, sizes: tuple[int, ...]) -> Execute:
    """Return ``run`` for batches of any size up to the last of ``sizes``, which it is to see alone."""

    def run_padded(inputs: dict[str, Array]) -> dict[str, Array]:
        num_rows = len(next(iter(inputs.values())))
        size = sizes[min(bisect_left(sizes, num_rows), len(sizes) - 1)]
        if num_rows >= size:
            return run(inputs)
        results = run({name: pad_rows(array, size) for name, array in inputs.items()})
        return {name: result[:num_rows] for name, result in results.items()}

    return run_padded


def _input_way(tensor: TensorSpec) -> Prepare:
    """Return how an input's array is handed to XLA."""
    if tensor.datatype == "BF16":
        return lambda array: _lent(array.view(ml_dtypes.bfloat16))
    if not tensor.shape:
        return lambda array: array.reshape(())
    return _lent


def _lent(array: Array) -> Any:
    return jax.device_put(array, may_alias=True) if array.nbytes >= _LARGE else array


def _as_output(tensor: TensorSpec, dims: tuple[int, ...], result: Any) -> Array:
    array: Array = np.asarray(result)
    if tensor.datatype == "BF16":
        array = array.view(np.uint16)
    return array if tensor.shape else array.reshape((1,) * len(dims))


def _is_known(artifact: Artifact, skipped: int) -> bool:
    """Whether every dimension of every input but the first ``skipped`` is known."""
    return all(-1 not in tensor.shape[skipped:] for tensor in artifact.inputs)


def _zeros(artifact: Artifact, num_rows: int) -> dict[str, Array]:
    """Return inputs to compile for; only the first dimension may be unknown."""
    zeros: dict[str, Array] = {}
    for tensor in artifact.inputs:
        shape = tuple(num_rows if dim < 0 else dim for dim in tensor.shape)
        zeros[tensor.name] = np.zeros(shape, datatypes.NUMPY_DTYPES[tensor.datatype or "FP32"])
    return zeros


def _has_64_bits(artifact: Artifact) -> bool:
    return any(
        aval.dtype.itemsize == 8 for aval in (*artifact.exported.in_avals, *artifact.exported.out_avals)
    )


def _64_bits() -> Any:
    """Return a context in which JAX does not make 32 bits of 64, as it does by default."""
    if hasattr(jax, "enable_x64"):
        return jax.enable_x64(True)
    from jax import experimental  # JAX before 0.8

    return experimental.enable_x64(True)


def _shape_fault(error: Exception) -> str:
    text = " ".join(str(error).split())
    return f"the inputs' shapes do not go together: {text.partition('Using the following')[0].partition('Found ')[2]}"
