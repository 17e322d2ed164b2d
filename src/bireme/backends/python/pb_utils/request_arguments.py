"""What a model may hand to the constructor of a request, beyond the plain case that the constructor checks itself."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import index
from typing import Any, Final

from bireme.backends.python.pb_utils.datatypes import MemoryType
from bireme.backends.python.pb_utils.errors import TritonModelException
from bireme.backends.python.pb_utils.tensor import Tensor
from bireme.backends.python.pb_utils.text import to_text

REQUIRED: Final[Any] = object()
"""Stands for an argument that was not given: Triton's positional order has optional ones before required ones."""
UINT64_END: Final = 1 << 64


class PreferredMemory:
    """Where outputs of another model should be put. All tensors are on the CPU here, so it changes nothing."""

    __slots__ = ("preferred_device_id", "preferred_memory_type")

    def __init__(self, preferred_memory_type: MemoryType, preferred_device_id: int = 0) -> None:
        if not isinstance(preferred_memory_type, MemoryType):
            raise TypeError(
                f"PreferredMemory: expected TRITONSERVER_MEMORY_CPU or TRITONSERVER_MEMORY_GPU, found "
                f"{preferred_memory_type!r}"
            )
        self.preferred_memory_type = preferred_memory_type
        self.preferred_device_id = preferred_device_id


class InferenceTrace:
    """The trace of a request, to be handed on to the requests that it leads to."""

    __slots__ = ("_context",)

    def __init__(self, context: str | None = None) -> None:
        self._context = context

    def get_context(self) -> str | None:
        """Return the OpenTelemetry context as JSON text; None: not traced, or to a file."""
        context = self._context
        return context if context is not None and context.startswith("{") else None


def convert_arguments(
    request_id: Any,
    correlation_id: Any,
    inputs: Any,
    requested_output_names: Any,
    model_name: Any,
    model_version: Any,
    flags: Any,
    timeout: Any,
) -> tuple[str, int | str, list[Tensor], list[str], str, int, int, int]:
    """Return the arguments as the plain types that they are meant to be.

    Raises:
        TypeError: one is missing or of the wrong type.
        ValueError: the timeout is out of range.
        TritonModelException: so is the correlation id, or it is neither int nor str.
    """
    missing = [
        name
        for name, value in (
            ("inputs", inputs),
            ("requested_output_names", requested_output_names),
            ("model_name", model_name),
        )
        if value is REQUIRED
    ]
    if missing:
        raise TypeError(f"InferenceRequest: missing {', '.join(missing)}")
    return (
        to_text("InferenceRequest: request_id", request_id),
        _to_correlation_id(correlation_id),
        _to_list("inputs", inputs),
        _to_list("requested_output_names", requested_output_names),
        to_text("InferenceRequest: model_name", model_name),
        _to_int("model_version", model_version),
        _to_int("flags", flags),
        _to_timeout(timeout),
    )


def check_extras(preferred_memory: Any, trace: Any) -> None:
    """Raise `TypeError` unless both are None or what they should be."""
    if preferred_memory is not None and not isinstance(preferred_memory, PreferredMemory):
        raise _wrong_type("preferred_memory", "a PreferredMemory", preferred_memory)
    if trace is not None and not isinstance(trace, InferenceTrace):
        raise _wrong_type("trace", "an InferenceTrace", trace)


def unique_names(names: list[str], request_id: str, model_name: str) -> list[str]:
    """Return the names of wanted outputs, each once.

    Raises:
        TypeError: one is no str.
        TritonModelException: one is empty.
    """
    texts = [to_text("InferenceRequest: each of requested_output_names", name) for name in names]
    for name in texts:
        if not name:
            raise TritonModelException(
                f"Requested output name for request with id '{request_id}' and model name '{model_name}' should not "
                f"be empty."
            )
    return list(dict.fromkeys(texts)) if len(texts) > 1 else texts


def wrong_inputs(inputs: Sequence[Any], request_id: str, model_name: str) -> Exception:
    """Return the error that says what is wrong with ``inputs``."""
    for tensor in inputs:
        if tensor is None:
            return TritonModelException(
                f"Input tensor for request with id '{request_id}' and model name '{model_name}' should not be empty."
            )
        if not isinstance(tensor, Tensor):
            return TypeError(f"InferenceRequest: inputs must hold Tensors, found {type(tensor).__name__}")
    return TritonModelException(
        f"Inputs for request with id '{request_id}' and model name '{model_name}' should have different names, "
        f"found {[tensor.name() for tensor in inputs]}"
    )


def _to_int(name: str, value: Any) -> int:
    try:
        return index(value)
    except TypeError:
        raise _wrong_type(name, "an int", value) from None


def _to_list(name: str, value: Any) -> list[Any]:
    if isinstance(value, (str, bytes)) or not isinstance(value, Iterable):
        raise _wrong_type(name, "a list", value)
    return list(value)


def _to_timeout(value: Any) -> int:
    timeout = _to_int("timeout", value)
    if not 0 <= timeout < UINT64_END:
        raise ValueError(f"InferenceRequest: timeout must be microseconds from 0 to 2^64-1, found {timeout}")
    return timeout


def _to_correlation_id(value: Any) -> int | str:
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int) and 0 <= value < UINT64_END:
        return int(value)
    raise TritonModelException("Correlation ID must be integer or string")


def _wrong_type(name: str, expected: str, found: Any) -> TypeError:
    return TypeError(f"InferenceRequest: {name} must be {expected}, found {type(found).__name__}")
