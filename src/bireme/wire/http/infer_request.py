"""The body of ``POST …/infer`` → `InferenceRequest`: JSON, then the binary tensors in the order of their inputs.

This is the hot path: it's written flat, and its error branches call out so that they cost nothing when not taken.
Everything wrong with a body is `InvalidArgument` (or `Unsupported`), never another exception. Whether the tensors suit
the model is the engine's to say.

Source: KServe v2 "Inference Request JSON Object", binary tensor data extension; Triton ``http_server.cc``
(``EVBufferToInput``, ``ParseJsonTritonIO``, ``ParseJsonTritonParams``).
"""

from __future__ import annotations

import re
from typing import Any, NoReturn

import numpy as np

from bireme.types import (
    Buffer,
    InferenceRequest,
    InvalidArgument,
    Parameter,
    Respond,
    Tensor,
    Unsupported,
    datatypes,
)
from bireme.wire.http.json_input import decode_json_data
from bireme.wire.http.json_text import describe, parse_json
from bireme.wire.http.limits import Limits
from bireme.wire.http.shapes import INT64_MAX, MAX_NUM_DIMS, check_shape

CLIENT_SHARED_MEMORY_DISABLED = (
    "Client shared memory is disabled. Start the server with '--allow-client-shm=true' to enable."
)

_DTYPES = dict(datatypes.NUMPY_DTYPES)  # a plain dict is faster to look up than the read-only view
_ITEM_SIZES = dict(datatypes.ITEM_SIZES)
_ABSENT: Any = object()
_INT32_MIN, _INT32_MAX = -(1 << 31), (1 << 31) - 1


class WantedOutput:
    """How one listed output is to be sent."""

    __slots__ = ("binary", "classification")

    def __init__(self, *, binary: bool = False, classification: int = 0) -> None:
        self.binary = binary
        self.classification = classification
        """Number of classes to send instead of the tensor; 0: send the tensor."""


class WantedOutputs:
    """How the outputs of a request are to be sent: the request's ``context``."""

    __slots__ = ("by_name", "default_binary")

    def __init__(
        self, *, default_binary: bool = False, by_name: dict[str, WantedOutput] | None = None
    ) -> None:
        self.default_binary = default_binary
        """For outputs that were not listed."""
        self.by_name = by_name
        """The listed outputs in their order; None: none was listed, all are wanted."""


# Shared by all requests that ask for nothing special; nobody changes them.
_JSON, _BINARY = WantedOutput(), WantedOutput(binary=True)
_ALL_JSON, _ALL_BINARY = WantedOutputs(), WantedOutputs(default_binary=True)


def parse_header_length(value: bytes | None, content_length: int) -> int | None:
    """Return the number in an ``Inference-Header-Content-Length`` header; None when there is no such header.

    ``content_length`` is the size of the body after decompression. 0 announces a raw request (`decode_raw_request`).

    Raises:
        InvalidArgument: not a number, or outside of the body.
    """
    if value is None:
        return None
    shown = value.decode("latin-1").strip()
    if not re.fullmatch(r"[+-]?[0-9]+", shown):
        raise InvalidArgument(f"Unable to parse Inference-Header-Content-Length, got: {shown[:100]}")
    length = int(shown) if len(shown) < 20 else _INT32_MAX + 1
    if not _INT32_MIN <= length <= max(_INT32_MAX, content_length):
        raise InvalidArgument(
            f"Unable to parse Inference-Header-Content-Length, value is out of range [ {_INT32_MIN}, {_INT32_MAX} ], "
            f"got: {shown[:100]}"
        )
    if not 0 <= length <= content_length:
        raise InvalidArgument(f"inference header size should be in range (0, {content_length}), got: {shown}")
    return length


def decode_infer_request(
    body: memoryview,
    json_length: int | None,
    *,
    model_name: str,
    model_version: int = -1,
    respond: Respond,
    limits: Limits,
) -> InferenceRequest:
    """Return the request that ``body`` describes. Its ``context`` is a `WantedOutputs`.

    Binary tensors are views into ``body``, aligned as they lie there; BYTES among them stay encoded. ``json_length``
    comes from `parse_header_length`; None: all of the body is JSON.

    Raises:
        InvalidArgument: the body is malformed; names the tensor, what was expected and what was found.
        Unsupported: a tensor is said to be in shared memory.
    """
    size = len(body)
    if json_length is None:
        json_length = size
    if json_length > limits.max_input_size:
        raise InvalidArgument(
            f"request JSON size of {json_length} bytes exceeds the maximum allowed input size of "
            f"{limits.max_input_size} bytes. Use --http-max-input-size to increase the limit."
        )
    document = parse_json(body if json_length == size else body[:json_length])
    return request_from_document(document, body, json_length, model_name, model_version, respond, limits)


def request_from_document(
    document: Any,
    body: Buffer,
    json_length: int,
    model_name: str,
    model_version: int,
    respond: Respond,
    limits: Limits,
) -> InferenceRequest:
    """Return the request of a parsed JSON ``document``; its binary tensors begin in ``body`` at ``json_length``.

    Raises:
        InvalidArgument, Unsupported: as `decode_infer_request`.
    """
    if type(document) is not dict:
        raise InvalidArgument(f"the request must be a JSON object, found {describe(document)}")
    request_id = document.get("id", "")
    if type(request_id) is not str:
        raise InvalidArgument(f"Unable to parse 'id': expected a string, found {describe(request_id)}")
    request = InferenceRequest(model_name, _ABSENT, respond, model_version=model_version, id=request_id)
    parameters = document.get("parameters")
    default_binary = False if parameters is None else _read_parameters(request, parameters)
    request.inputs = _read_inputs(document.get("inputs", _ABSENT), body, json_length, request, limits)
    outputs = document.get("outputs", _ABSENT)
    if outputs is _ABSENT or outputs == []:
        request.context = _ALL_BINARY if default_binary else _ALL_JSON
    else:
        by_name = _read_outputs(outputs, request)
        request.outputs = list(by_name)
        request.context = WantedOutputs(default_binary=default_binary, by_name=by_name)
    return request


def _read_inputs(  # noqa: C901, PLR0912, PLR0915 (as its docstring says)
    items: Any, body: Buffer, offset: int, request: InferenceRequest, limits: Limits
) -> dict[str, Tensor]:
    """Return the inputs in their order. One function, though long: a call per step would cost a third more."""
    if type(items) is not list:
        raise _bad_member("inputs", "the request", "an array", items)
    inputs: dict[str, Tensor] = {}
    end = len(body)
    for item in items:
        if type(item) is not dict:
            raise InvalidArgument(f"Unable to parse 'inputs': expected objects, found {describe(item)}")
        name = item.get("name", _ABSENT)
        parameters = item.get("parameters")
        if type(parameters) is dict:
            nbytes = parameters.get("binary_data_size", _ABSENT)
            has_region = "shared_memory_region" in parameters
        else:
            nbytes, has_region = _ABSENT, False
        if ("data" in item) + (nbytes is not _ABSENT) + has_region != 1:
            raise _not_one_source(name, item)
        if type(name) is not str:
            raise _bad_member("name", f"input {len(inputs)}", "a string", name)
        datatype = item.get("datatype", _ABSENT)
        if type(datatype) is not str:
            raise _bad_member("datatype", f"input '{name}'", "a string", datatype)
        dtype = _DTYPES.get(datatype)
        if dtype is None:
            raise InvalidArgument(
                f"invalid datatype for input {name}: found '{datatype}', expected one of {', '.join(_DTYPES)}"
            )
        dims = item.get("shape", _ABSENT)
        if type(dims) is not list:
            raise _bad_member("shape", f"input '{name}'", "an array", dims)
        count = 1
        for dim in dims:
            if type(dim) is not int or dim < 0:
                raise InvalidArgument(
                    f"Unable to parse 'shape': input '{name}' expects unsigned integers, found {describe(dim)}"
                )
            count *= dim
        shape = tuple(dims)
        if count == 0 or count > INT64_MAX or len(shape) > MAX_NUM_DIMS:
            check_shape(name, shape)
        if name in inputs:
            raise InvalidArgument(f"{request.id_prefix}input '{name}' already exists in request")

        if nbytes is _ABSENT:
            if has_region:
                raise Unsupported(CLIENT_SHARED_MEMORY_DISABLED)
            inputs[name] = decode_json_data(name, datatype, shape, item["data"], limits)
            continue
        if type(nbytes) is not int or nbytes < 0:
            raise _bad_member("binary_data_size", f"input '{name}'", "an unsigned integer", nbytes)
        if offset + nbytes > end:
            raise InvalidArgument(
                f"unexpected size for input '{name}', expecting {offset + nbytes - end} additional bytes for model "
                f"'{request.model_name}'"
            )
        if datatype == "BYTES":
            encoded = memoryview(body)[offset : offset + nbytes]
            inputs[name] = Tensor(name, datatype, shape, None, encoded)
        else:
            if count * _ITEM_SIZES[datatype] != nbytes:
                raise InvalidArgument(
                    f"{request.id_prefix}input byte size mismatch for input '{name}' for model '{request.model_name}'. "
                    f"Expected {count * _ITEM_SIZES[datatype]}, got {nbytes}"
                )
            inputs[name] = Tensor(name, datatype, shape, np.ndarray(shape, dtype, body, offset))
        offset += nbytes
    if offset != end:
        raise InvalidArgument(f"unexpected additional input data for model '{request.model_name}'")
    return inputs


def _read_parameters(request: InferenceRequest, parameters: Any) -> bool:  # noqa: C901, PLR0912 (one branch a key)
    """Store the request parameters in ``request``; return whether unlisted outputs are binary by default."""
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
        elif key.startswith("triton_"):
            raise InvalidArgument(
                f"parameter keys starting with 'triton_' are reserved for Triton usage and should not be specified: "
                f"found '{key}'"
            )
        elif type(value) is int and value > INT64_MAX:
            forwarded[key] = float(value)
        elif isinstance(value, (str, int, float)):
            forwarded[key] = value
        else:
            raise InvalidArgument(
                f"parameter '{key}' has invalid type: found {describe(value)}, expected a string, an integer, a boolean "
                f"or a number"
            )
    request.parameters = forwarded or None
    return default_binary


def _read_outputs(items: Any, request: InferenceRequest) -> dict[str, WantedOutput]:
    """Return the listed outputs in their order."""
    if type(items) is not list:
        raise _bad_member("outputs", "the request", "an array", items)
    outputs: dict[str, WantedOutput] = {}
    for item in items:
        if type(item) is not dict:
            raise InvalidArgument(f"Unable to parse 'outputs': expected objects, found {describe(item)}")
        name = item.get("name", _ABSENT)
        parameters = item.get("parameters")
        wanted = _read_output_parameters(name, parameters) if type(parameters) is dict else _JSON
        if type(name) is not str:
            raise _bad_member("name", f"output {len(outputs)}", "a string", name)
        if name in outputs:
            raise InvalidArgument(f"{request.id_prefix}output '{name}' already exists in request")
        outputs[name] = wanted
    return outputs


def _read_output_parameters(name: Any, parameters: dict[str, Any]) -> WantedOutput:
    binary = parameters.get("binary_data", False)
    if type(binary) is not bool:
        raise _bad_member("binary_data", f"output '{name}'", "a boolean", binary)
    if "shared_memory_region" in parameters:
        _refuse_region(name, parameters)
    classification = parameters.get("classification", 0)
    if classification == 0 and type(classification) is int:
        return _BINARY if binary else _JSON
    if type(classification) is not int or classification < 0:
        raise InvalidArgument(
            f"Unable to set 'classification': output '{name}' expects an unsigned integer, found "
            f"{describe(classification)}"
        )
    return WantedOutput(binary=binary, classification=classification)


def _refuse_region(name: Any, parameters: dict[str, Any]) -> NoReturn:
    for other in ("classification", "binary_data"):
        if parameters.get(other, False) is not False:
            raise InvalidArgument(
                f"Output can't set both 'shared_memory_region' and '{other}': output '{name}' does"
            )
    raise Unsupported(CLIENT_SHARED_MEMORY_DISABLED)


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


def _bad_member(key: str, owner: str, expected: str, value: Any) -> InvalidArgument:
    if value is _ABSENT:
        return InvalidArgument(f"Unable to parse '{key}': {owner} has no such member, expected {expected}")
    return InvalidArgument(f"Unable to parse '{key}': {owner} expects {expected}, found {describe(value)}")


def _not_one_source(name: Any, item: dict[str, Any]) -> InvalidArgument:
    parameters = item.get("parameters")
    places = {**item, **(parameters if type(parameters) is dict else {})}
    found = [f"'{key}'" for key in ("data", "binary_data_size", "shared_memory_region") if key in places]
    who = f" input '{name}'" if type(name) is str else ""
    return InvalidArgument(
        "Input must set only one of the following fields: 'data', 'binary_data_size' in 'parameters', "
        f"'shared_memory_region' in 'parameters'. But{who} set {' '.join(found) or 'no field'}"
    )
