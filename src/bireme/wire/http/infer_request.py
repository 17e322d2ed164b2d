"""The body of ``POST …/infer`` → `InferenceRequest`: JSON, then the binary tensors in the order of their inputs.

This is the hot path: it's written flat, and its error branches call out so that they cost nothing when not taken.
Everything wrong with a body is `InvalidArgument` (or `Unsupported`), never another exception. Whether the tensors suit
the model is the engine's to say.

Source: KServe v2 "Inference Request JSON Object", binary tensor data extension; Triton ``http_server.cc``
(``EVBufferToInput``, ``ParseJsonTritonIO``, ``ParseJsonTritonParams``).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from bireme.types import Buffer, InferenceRequest, InvalidArgument, Respond, Tensor, datatypes
from bireme.wire.http import known_heads
from bireme.wire.http.json_input import decode_json_data
from bireme.wire.http.json_text import ABSENT, describe, parse_json, wrong_member
from bireme.wire.http.limits import Limits
from bireme.wire.http.region_place import input_places, read_place
from bireme.wire.http.request_parameters import read_parameters
from bireme.wire.http.wanted_outputs import read_outputs
from bireme.wire.regions import NO_REGIONS, Regions
from bireme.wire.shapes import INT64_MAX, MAX_NUM_DIMS, check_shape, too_many_dims
from bireme.wire.wanted_outputs import ALL_AS_BINARY, ALL_AS_JSON, WantedOutputs, find_targets

_DTYPES = dict(datatypes.NUMPY_DTYPES)  # a plain dict is faster to look up than the read-only view
_ITEM_SIZES = dict(datatypes.ITEM_SIZES)


def decode_infer_request(
    body: memoryview,
    json_length: int | None,
    *,
    model_name: str,
    model_version: int = -1,
    respond: Respond,
    limits: Limits,
    regions: Regions = NO_REGIONS,
) -> InferenceRequest:
    """Return the request that ``body`` describes. Its ``context`` is a `WantedOutputs`.

    Binary tensors are views into ``body``, aligned as they lie there; tensors in shared memory are views into that.
    BYTES among them stay encoded. ``json_length`` comes from `parse_header_length`; None: all of the body is JSON.

    Raises:
        InvalidArgument: the body is malformed; names the tensor, what was expected and what was found.
        NotFound: there's no such shared memory region.
        Unavailable: the system has no memory for what a region is said to hold.
    """
    if json_length is None and len(regions):
        json_length = len(body)  # a head without tensors behind it, if all of them are in shared memory
    if json_length is None or json_length > min(known_heads.MAX_HEAD_BYTES, limits.max_input_size):
        document, offset = parse_document(body, json_length, limits)
        return request_from_document(
            document, body, offset, model_name, model_version, respond, limits, regions
        )
    head = body[:json_length].tobytes()
    layout = known_heads.find(head)
    if layout is not None and len(body) == json_length + layout.nbytes:
        return layout.make_request(body, json_length, model_name, model_version, respond, regions)
    document, offset = parse_document(body, json_length, limits)
    request = request_from_document(
        document, body, offset, model_name, model_version, respond, limits, regions
    )
    known_heads.remember(head, document, request)
    return request


def parse_document(body: memoryview, json_length: int | None, limits: Limits) -> tuple[Any, int]:
    """Return the parsed JSON part of ``body``, and where it ends.

    Raises:
        InvalidArgument: it's too large, or not JSON.
    """
    size = len(body)
    if json_length is None:
        json_length = size
    if json_length > limits.max_input_size:
        raise InvalidArgument(
            f"request JSON size of {json_length} bytes exceeds the maximum allowed input size of "
            f"{limits.max_input_size} bytes. Use --http-max-input-size to increase the limit."
        )
    return parse_json(body if json_length == size else body[:json_length]), json_length


def request_from_document(
    document: Any,
    body: Buffer,
    json_length: int,
    model_name: str,
    model_version: int,
    respond: Respond,
    limits: Limits,
    regions: Regions = NO_REGIONS,
) -> InferenceRequest:
    """Return the request of a parsed JSON ``document``; its binary tensors begin in ``body`` at ``json_length``.

    Raises:
        InvalidArgument, NotFound, Unavailable: as `decode_infer_request`.
    """
    if type(document) is not dict:
        raise InvalidArgument(f"the request must be a JSON object, found {describe(document)}")
    request_id = document.get("id", "")
    if type(request_id) is not str:
        raise InvalidArgument(f"Unable to parse 'id': expected a string, found {describe(request_id)}")
    request = InferenceRequest(model_name, ABSENT, respond, model_version=model_version, id=request_id)
    parameters = document.get("parameters")
    default_binary = False if parameters is None else read_parameters(request, parameters)
    request.inputs = _read_inputs(document.get("inputs", ABSENT), body, json_length, request, limits, regions)
    outputs = document.get("outputs", ABSENT)
    if outputs is ABSENT or outputs == []:
        request.context = ALL_AS_BINARY if default_binary else ALL_AS_JSON
    else:
        by_name = read_outputs(outputs, regions)
        request.outputs = list(by_name)
        request.context = WantedOutputs(default_binary=default_binary, by_name=by_name)
        if len(regions):
            request.targets = find_targets(regions, input_places(document["inputs"]), by_name)
    return request


def _read_inputs(  # noqa: C901, PLR0912, PLR0915 (as its docstring says)
    items: Any, body: Buffer, offset: int, request: InferenceRequest, limits: Limits, regions: Regions
) -> dict[str, Tensor]:
    """Return the inputs in their order. One function, though long: a call per step would cost a third more."""
    if type(items) is not list:
        raise wrong_member("inputs", "the request", "an array", items)
    inputs: dict[str, Tensor] = {}
    end = len(body)
    for item in items:
        if type(item) is not dict:
            raise InvalidArgument(f"Unable to parse 'inputs': expected objects, found {describe(item)}")
        name = item.get("name", ABSENT)
        parameters = item.get("parameters")
        if type(parameters) is dict:
            nbytes = parameters.get("binary_data_size", ABSENT)
            has_region = "shared_memory_region" in parameters
        else:
            nbytes, has_region = ABSENT, False
        if ("data" in item) + (nbytes is not ABSENT) + has_region != 1:
            raise _not_one_source(name, item)
        if type(name) is not str:
            raise wrong_member("name", f"input {len(inputs)}", "a string", name)
        datatype = item.get("datatype", ABSENT)
        if type(datatype) is not str:
            raise wrong_member("datatype", f"input '{name}'", "a string", datatype)
        dtype = _DTYPES.get(datatype)
        if dtype is None:
            raise InvalidArgument(
                f"invalid datatype for input {name}: found '{datatype}', expected one of {', '.join(_DTYPES)}"
            )
        dims = item.get("shape", ABSENT)
        if type(dims) is not list:
            raise wrong_member("shape", f"input '{name}'", "an array", dims)
        if len(dims) > MAX_NUM_DIMS:  # before their product, which would take for ever
            raise too_many_dims(name, len(dims))
        count = 1
        for dim in dims:
            if type(dim) is not int or dim < 0:
                raise InvalidArgument(
                    f"Unable to parse 'shape': input '{name}' expects unsigned integers, found {describe(dim)}"
                )
            count *= dim
        shape = tuple(dims)
        if count == 0 or count > INT64_MAX:
            check_shape(name, shape)
        if name in inputs:
            raise InvalidArgument(f"{request.id_prefix}input '{name}' already exists in request")

        if nbytes is ABSENT:
            if has_region:
                place = read_place(f"input '{name}'", parameters)
                memory = regions.slice(*place)
                if datatype == "BYTES":
                    inputs[name] = Tensor(name, datatype, shape, None, memory)
                else:
                    if count * _ITEM_SIZES[datatype] != place.byte_size:
                        raise _size_mismatch(request, name, count * _ITEM_SIZES[datatype], place.byte_size)
                    inputs[name] = Tensor(name, datatype, shape, np.ndarray(shape, dtype, memory))
            else:
                inputs[name] = decode_json_data(name, datatype, shape, item["data"], limits)
            continue
        if type(nbytes) is not int or nbytes < 0:
            raise wrong_member("binary_data_size", f"input '{name}'", "an unsigned integer", nbytes)
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
                raise _size_mismatch(request, name, count * _ITEM_SIZES[datatype], nbytes)
            inputs[name] = Tensor(name, datatype, shape, np.ndarray(shape, dtype, body, offset))
        offset += nbytes
    if offset != end:
        raise InvalidArgument(f"unexpected additional input data for model '{request.model_name}'")
    return inputs


def _size_mismatch(request: InferenceRequest, name: str, expected: int, found: int) -> InvalidArgument:
    return InvalidArgument(
        f"{request.id_prefix}input byte size mismatch for input '{name}' for model '{request.model_name}'. "
        f"Expected {expected}, got {found}"
    )


def _not_one_source(name: Any, item: dict[str, Any]) -> InvalidArgument:
    parameters = item.get("parameters")
    places = parameters if type(parameters) is dict else {}
    found = [f"'{key}'" for key in ("binary_data_size", "shared_memory_region") if key in places]
    if "data" in item:
        found.insert(0, "'data'")
    who = f"input '{name}'" if type(name) is str else "an input"
    return InvalidArgument(
        "Input must set only one of the following fields: 'data', 'binary_data_size' in 'parameters', "
        f"'shared_memory_region' in 'parameters'. But {who} set {' '.join(found) or 'no field'}"
    )
