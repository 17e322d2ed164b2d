"""Request parameters: those with a meaning of their own, and those that are forwarded to the model.

Source: Triton ``http_server.cc`` (``ParseJsonTritonParams``, ``SetTritonParameterFromJsonParameter``).
"""

from __future__ import annotations

from typing import Any

from bireme.types import InferenceRequest, InvalidArgument, Parameter
from bireme.wire.http.json_text import describe
from bireme.wire.reserved_parameters import RESERVED_PREFIX
from bireme.wire.shapes import INT64_MAX


def read_parameters(request: InferenceRequest, parameters: Any) -> bool:
    """Store the parameters in ``request``; return whether outputs that are not listed are binary.

    Raises:
        InvalidArgument: a value has the wrong type, or a key is reserved.
    """
    if type(parameters) is not dict:
        raise InvalidArgument(
            f"failed to get request params.: expected an object, found {describe(parameters)}"
        )
    default_binary = False
    forwarded: dict[str, Parameter] = {}
    for key, value in parameters.items():
        if key == "binary_data_output":
            default_binary = _boolean(key, value)
        elif key == "sequence_id":
            if type(value) is not str and (type(value) is not int or value < 0):
                raise _bad_parameter(key, "an unsigned integer or a string", value)
            request.sequence_id = value
        elif key == "sequence_start":
            request.sequence_start = _boolean(key, value)
        elif key == "sequence_end":
            request.sequence_end = _boolean(key, value)
        elif key == "priority":
            request.priority = _unsigned(key, value)
        elif key == "timeout":
            request.timeout_us = _unsigned(key, value)
        elif key.startswith(RESERVED_PREFIX):
            raise InvalidArgument(
                f"parameter keys starting with 'triton_' are reserved for Triton usage and should not be specified: "
                f"found '{key}'"
            )
        else:
            forwarded[key] = forwarded_parameter(key, value)
    request.parameters = forwarded or None
    return default_binary


def forwarded_parameter(key: str, value: Any) -> Parameter:
    """Return ``value`` as the model gets it: an integer above int64 is a float.

    Raises:
        InvalidArgument: no parameter has such a value.
    """
    if type(value) is int and value > INT64_MAX:
        return float(value)
    if isinstance(value, (str, int, float)):
        return value
    raise InvalidArgument(
        f"parameter '{key}' has invalid type: found {describe(value)}, expected a string, an integer, a boolean "
        f"or a number"
    )


def _boolean(key: str, value: Any) -> bool:
    if type(value) is not bool:
        raise _bad_parameter(key, "a boolean", value)
    return value


def _unsigned(key: str, value: Any) -> int:
    if type(value) is not int or value < 0:
        raise _bad_parameter(key, "an unsigned integer", value)
    return value


def _bad_parameter(key: str, expected: str, value: Any) -> InvalidArgument:
    return InvalidArgument(
        f"Unable to parse '{key}': request parameter expects {expected}, found {describe(value)}"
    )
