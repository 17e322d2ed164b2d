"""Parameters of requests and their tensors (``InferParameter``), and those of responses.

Source: Triton ``grpc/infer_handler.cc`` (``SetInferenceRequestMetadata``), ``infer_handler.h``
(``InferResponseCompleteCommon``), ``grpc_utils.h`` (``ParseSharedMemoryParams``).
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any

from bireme.types import InferenceRequest, InvalidArgument, Parameter, Unsupported
from bireme.wire.grpc.wire_fields import write_bytes, write_varint
from bireme.wire.regions import Place
from bireme.wire.reserved_parameters import RESERVED_PREFIX
from bireme.wire.shapes import INT64_MAX

EMPTY_FINAL = "triton_enable_empty_final_response"

_UINT64_MAX = (1 << 64) - 1
_CUSTOM_CHOICES = frozenset({"bool_param", "int64_param", "string_param", "double_param"})
_double = struct.Struct("<d")


def read_parameters(request: InferenceRequest, parameters: Any) -> bool:
    """Store the parameters in ``request``; return whether the end of a decoupled request is to be told always.

    Raises:
        InvalidArgument: a value is of the wrong type, or a key is reserved.
    """
    empty_final = False
    forwarded: dict[str, Parameter] = {}
    for key, value in parameters.items():
        if key == "sequence_id":
            sequence_id = _choice(key, value, "int64_param", "string_param")
            # As in C++: a negative number is the unsigned one with the same bits.
            request.sequence_id = sequence_id if type(sequence_id) is str else sequence_id & _UINT64_MAX
        elif key == "sequence_start":
            request.sequence_start = _choice(key, value, "bool_param")
        elif key == "sequence_end":
            request.sequence_end = _choice(key, value, "bool_param")
        elif key == "priority":
            request.priority = _not_negative(key, _choice(key, value, "int64_param", "uint64_param"))
        elif key == "timeout":
            request.timeout_us = _not_negative(key, _choice(key, value, "int64_param"))
        elif key == EMPTY_FINAL:
            empty_final = _choice(key, value, "bool_param")
        elif key.startswith(RESERVED_PREFIX):
            raise InvalidArgument(
                f"parameter keys starting with 'triton_' are reserved for Triton usage. Only the following keys "
                f"starting with 'triton_' are allowed: {EMPTY_FINAL}; found '{key}'"
            )
        else:
            forwarded[key] = _custom(key, value)
    request.parameters = forwarded or None
    return empty_final


def _choice(key: str, value: Any, *expected: str) -> Any:
    """Return what an ``InferParameter`` holds, which must be in one of the ``expected`` fields."""
    choice = value.WhichOneof("parameter_choice")
    if choice not in expected:
        raise InvalidArgument(f"invalid value type for '{key}' parameter, expected {' or '.join(expected)}.")
    return getattr(value, choice)


def _not_negative(key: str, value: int) -> int:
    if value < 0:
        raise InvalidArgument(f"invalid value for '{key}', expected value >= 0.")
    return value


def _custom(key: str, value: Any) -> Parameter:
    choice = value.WhichOneof("parameter_choice")
    if choice not in _CUSTOM_CHOICES:
        raise InvalidArgument(
            f"invalid value type for '{key}' parameter, expected int64_param, bool_param, or string_param."
        )
    parameter: Parameter = getattr(value, choice)
    return parameter


def read_region(name: str, parameters: Any) -> Place | None:
    """Return where in shared memory tensor ``name`` is to be; None: not there.

    Raises:
        InvalidArgument: one of the parameters is of the wrong type, or stands alone.
    """
    if "shared_memory_region" not in parameters:
        for key in ("shared_memory_offset", "shared_memory_byte_size"):
            if key in parameters:
                raise InvalidArgument(
                    f"'{key}' can not be specified without 'shared_memory_region' parameter for tensor '{name}'"
                )
        return None
    region = _tensor_parameter(name, parameters, "shared_memory_region", "string_param")
    offset = 0
    if "shared_memory_offset" in parameters:
        offset = _tensor_parameter(name, parameters, "shared_memory_offset", "int64_param")
    if "shared_memory_byte_size" not in parameters:
        raise InvalidArgument(
            "'shared_memory_byte_size' must be specified along with 'shared_memory_region' parameter for tensor "
            f"'{name}'"
        )
    byte_size = _tensor_parameter(name, parameters, "shared_memory_byte_size", "int64_param")
    return Place(region, offset, byte_size)


def _tensor_parameter(name: str, parameters: Any, key: str, expected: str) -> Any:
    value = parameters[key]
    if value.WhichOneof("parameter_choice") != expected:
        raise InvalidArgument(
            f"invalid value type for '{key}' parameter for tensor '{name}', expected {expected}."
        )
    return getattr(value, expected)


def write_parameters(parameters: Mapping[str, Parameter]) -> bytes:
    """Return the map field of a response (number 4) that holds ``parameters``.

    Raises:
        Unsupported: a value is none of bool, int64 or uint64, float and str.
    """
    return b"".join([write_parameter(key, value) for key, value in parameters.items()])


def write_parameter(key: str, value: Parameter) -> bytes:
    """Return one entry of the map field of a response (number 4)."""
    name = write_bytes(b"\x0a", key.encode(errors="replace"))
    return write_bytes(b"\x22", name + write_bytes(b"\x12", _write_choice(key, value)))


def _write_choice(key: str, value: Parameter) -> bytes:
    if isinstance(value, bool):
        return b"\x08\x01" if value else b"\x08\x00"
    if isinstance(value, int):
        if -INT64_MAX - 1 <= value <= INT64_MAX:
            return b"\x10" + write_varint(value & _UINT64_MAX)
        if 0 < value <= _UINT64_MAX:
            return b"\x28" + write_varint(value)
    elif isinstance(value, str):
        return write_bytes(b"\x1a", value.encode(errors="replace"))
    elif isinstance(value, float):
        return b"\x21" + _double.pack(value)
    raise Unsupported(
        f"Response parameter '{key}' of type '{type(value).__name__}' is not currently supported: {value!r:.40} is no "
        f"bool, 64-bit integer, float or string"
    )
