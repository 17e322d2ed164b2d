"""Instances: the ways to run a session, the shortest one that the model's data types allow.

All instances of a model run the same session, which is safe from several threads at once.

=============================  ===========================================================================  ========
model                          how                                                                          one add
=============================  ===========================================================================  ========
numbers                        the session's C binding, arrays in and out                                   4.2 µs
                               (the public ``InferenceSession.run`` checks names first: 6.0 µs)
strings or scalars             the same, with the inputs converted first
BF16                           ``OrtValue``s, since numpy has no such type                                  12 µs
=============================  ===========================================================================  ========

Inputs are not copied (unless they are strided); outputs are onnxruntime's own memory, which lives as long as its array.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from math import prod
from typing import Any, Final

import numpy as np

from bireme.backends.errors import refuse_run
from bireme.backends.interface import Execute, ExecuteInto
from bireme.backends.onnxruntime.direct_output import DirectOutput
from bireme.backends.onnxruntime.runtime import ort
from bireme.backends.onnxruntime.settings import ARENA_SHRINKAGE, ModelSettings
from bireme.backends.signature import Signature
from bireme.config import ModelConfig
from bireme.config.model_config import ModelOutput
from bireme.types import Array, BackendFailed, InvalidArgument, datatypes

_ONNX_BF16: Final = 16  # TensorProto.BFLOAT16
_FATAL: Final = 4


class OnnxInstance:
    """Runs the shared session. ``execute`` is chosen when the instance is made, see the module."""

    __slots__ = ("execute", "execute_into", "may_run_inline")

    def __init__(
        self, execute: Execute, execute_into: ExecuteInto | None = None, *, may_run_inline: bool = True
    ) -> None:
        self.may_run_inline = may_run_inline
        """On the CPU it is native code that waits for nothing: a fast model may run on the loop thread."""
        self.execute = execute
        self.execute_into = execute_into
        """None: the model's data types do not allow it."""

    def close(self) -> None:
        """Let go of the session."""
        self.execute = refuse_run
        self.execute_into = None


def make_execute(session: Any, config: ModelConfig, signature: Signature, settings: ModelSettings) -> Execute:
    """Return the function that runs ``session`` for the outputs that ``config`` lists."""
    names = [output.name for output in config.output]
    options = _run_options(settings)
    scalars = _scalar_shapes(config, signature)
    if _uses(config, signature, "BF16"):
        return _with_scalars(_execute_ort_values(session, signature, names, options), *scalars)
    # Private, but stable since the first release: `run` is a thin Python method around it.
    run = session._sess.run if hasattr(session, "_sess") else session.run  # noqa: SLF001
    execute = _execute_arrays(run, names, options)
    if _uses(config, signature, "BYTES"):
        execute = _with_texts(execute)
    return _with_scalars(execute, *scalars)


def make_execute_into(
    session: Any, config: ModelConfig, signature: Signature, settings: ModelSettings, execute: Execute
) -> ExecuteInto | None:
    """Return the function that runs ``session`` with outputs in given memory; None: the model can't be run so.

    ``execute`` does what it cannot.
    """
    has_scalars = any(_scalar_shapes(config, signature))
    if has_scalars or _uses(config, signature, "BYTES") or _uses(config, signature, "BF16"):
        return None
    outputs = [(output.name, _dtype_of(output)) for output in config.output]
    return DirectOutput(session, outputs, _run_options(settings), execute)


def _dtype_of(output: ModelOutput) -> np.dtype[Any]:
    return datatypes.NUMPY_DTYPES[datatypes.from_config_name(output.data_type)]


def check_mix(config: ModelConfig, signature: Signature) -> None:
    """Refuse the one combination of data types that onnxruntime's Python interface cannot run.

    Raises:
        InvalidArgument: the model takes strings and also takes or returns BF16.
    """
    texts = [tensor.name for tensor in signature.inputs.values() if tensor.datatype == "BYTES"]
    if texts and _uses(config, signature, "BF16"):
        raise InvalidArgument(
            f"model '{config.name}': the model file takes strings (input '{texts[0]}') and has BF16 inputs or outputs too; "
            f"onnxruntime's Python interface cannot run such a model: export it with FP16 or FP32 instead of BF16"
        )


def _run_options(settings: ModelSettings) -> Any:
    """Return the options of every run. Passing the same object each time saves 0.8 µs; onnxruntime only reads it."""
    options = ort.RunOptions()
    # What goes wrong in a run is raised; onnxruntime would log it as well, and warn about shapes on each single run.
    options.log_severity_level = _FATAL
    if settings.arena_shrinkage:
        options.add_run_config_entry(ARENA_SHRINKAGE, settings.arena_shrinkage)
    return options


def _uses(config: ModelConfig, signature: Signature, datatype: str) -> bool:
    """Whether any input, or any output that the config lists, is of ``datatype``."""
    outputs = (signature.outputs.get(output.name) for output in config.output)
    return any(
        tensor is not None and tensor.datatype == datatype
        for tensor in (*signature.inputs.values(), *outputs)
    )


def _execute_arrays(run: Callable[..., list[Array]], names: list[str], options: Any) -> Execute:
    if len(names) == 1:
        (name,) = names

        def execute_for_one(inputs: dict[str, Array]) -> dict[str, Array]:
            return {name: run(names, inputs, options)[0]}

        return execute_for_one

    def execute(inputs: dict[str, Array]) -> dict[str, Array]:
        return dict(zip(names, run(names, inputs, options), strict=True))

    return execute


# Strings. onnxruntime's Python interface takes text (str) from object arrays, and calls str() on anything else: bytes
# would arrive as "b'...'". Bytes that are no UTF-8 text can only go in as fixed-width items that end at a NUL.


def _with_texts(execute: Execute) -> Execute:
    def execute_texts(inputs: dict[str, Array]) -> dict[str, Array]:
        converted = {
            name: _as_text(name, array) if array.dtype.hasobject else array for name, array in inputs.items()
        }
        try:
            return execute(converted)
        except UnicodeDecodeError as error:
            raise BackendFailed(
                f"a string output is not UTF-8 text ({error.reason}: {error.object!r:.80}); onnxruntime's Python interface "
                f"returns strings as text only"
            ) from error

    return execute_texts


def _as_text(name: str, array: Array) -> Array:
    """Return the BYTES elements of ``array`` in a form that onnxruntime takes over unchanged."""
    elements: list[bytes] = array.reshape(-1).tolist()
    texts: Array = np.empty(len(elements), dtype=np.object_)
    try:
        texts[:] = [element.decode() for element in elements]
    except UnicodeDecodeError:
        texts = _as_fixed_width(name, elements)
    return texts.reshape(array.shape)


def _as_fixed_width(name: str, elements: list[bytes]) -> Array:
    for index, element in enumerate(elements):
        if b"\0" in element:
            raise InvalidArgument(
                f"input '{name}': element {index} holds a NUL byte, and not every element is UTF-8 text; onnxruntime's "
                f"Python interface takes either UTF-8 text or bytes without NUL"
            )
    return np.array(elements, dtype=f"S{max(map(len, elements)) + 1}")


# Scalars. The protocol has none: the config says dims [1], the model file [].


def _scalar_shapes(
    config: ModelConfig, signature: Signature
) -> tuple[frozenset[str], dict[str, tuple[int, ...]]]:
    """Return the names of scalar inputs, and of outputs that may be scalars the shape that the config gives them."""
    known = {**signature.initializers, **signature.inputs}
    inputs = frozenset(
        tensor.name for tensor in config.input if tensor.name in known and not known[tensor.name].shape
    )
    outputs = {
        tensor.name: tuple(tensor.dims)
        for tensor in config.output
        if tensor.name in signature.outputs and not signature.outputs[tensor.name].shape
    }
    return inputs, outputs


def _with_scalars(
    execute: Execute, inputs: frozenset[str], output_shapes: Mapping[str, tuple[int, ...]]
) -> Execute:
    if not inputs and not output_shapes:
        return execute

    def execute_scalars(arrays: dict[str, Array]) -> dict[str, Array]:
        results = execute(
            {name: array.reshape(()) if name in inputs else array for name, array in arrays.items()}
        )
        for name, shape in output_shapes.items():
            if results[name].ndim == 0:
                results[name] = results[name].reshape((1,) * len(shape))
        return results

    return execute_scalars


# BF16. An OrtValue made from uint16 bits shares their memory; one that comes back is read through its address.


def _execute_ort_values(session: Any, signature: Signature, names: list[str], options: Any) -> Execute:
    run = session._sess.run_with_ort_values  # noqa: SLF001 - the public one wraps each value twice
    bf16_inputs = frozenset(t.name for t in signature.inputs.values() if t.datatype == "BF16")

    def execute(inputs: dict[str, Array]) -> dict[str, Array]:
        # Kept until the run is over: an OrtValue borrows its array's memory.
        arrays = {name: np.ascontiguousarray(array).reshape(array.shape) for name, array in inputs.items()}
        values = {name: _to_ort_value(array, is_bf16=name in bf16_inputs) for name, array in arrays.items()}
        results = run(values, names, options)
        # By index: iterating over this C++ vector costs 30 µs.
        return {name: _to_array(results[index]) for index, name in enumerate(names)}

    return execute


def _to_ort_value(array: Array, *, is_bf16: bool) -> Any:
    make = ort.OrtValue
    value = (
        make.ortvalue_from_numpy_with_onnx_type(array, _ONNX_BF16)
        if is_bf16
        else make.ortvalue_from_numpy(array)
    )
    return value._ortvalue  # noqa: SLF001 - the C object that the C run takes


def _to_array(value: Any) -> Array:
    if value.data_type() != "tensor(bfloat16)":
        array: Array = value.numpy()
        return array
    shape = tuple(value.shape())
    num_elements = prod(shape)
    if not num_elements:
        return np.empty(shape, np.uint16)
    memory = (ctypes.c_uint16 * num_elements).from_address(value.data_ptr())
    memory.owner = value  # the array holds its buffer, and the buffer the value that the memory belongs to
    return np.frombuffer(memory, np.uint16).reshape(shape)
