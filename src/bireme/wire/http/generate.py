"""The generate extension: a flat JSON object → `InferenceRequest`, and `InferenceResponse` → a flat JSON object.

A member that is named like an input of the model is that tensor, any other is a request parameter. Those of the member
``parameters`` count as if they stood beside it. No parameter has a meaning of its own here, ``priority`` as little as
``sequence_id``: all go to the model.

Source: Triton ``http_server.cc`` (``GenerateRequestClass``), ``http_server.h`` (``ConfigureGenerateMappingSchema``).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, Protocol

import numpy as np
import orjson

from bireme.types import (
    Buffer,
    InferenceRequest,
    InferenceResponse,
    InvalidArgument,
    Parameter,
    Respond,
    Tensor,
)
from bireme.wire import bfloat16
from bireme.wire.encoded import Encoded
from bireme.wire.http.errors import error_body
from bireme.wire.http.infer_request import parse_document, request_from_document
from bireme.wire.http.json_input import decode_json_data
from bireme.wire.http.json_output import MAX_SLICE_BYTES, encode_json_array, encode_json_slices
from bireme.wire.http.json_text import describe, parse_json, write_json
from bireme.wire.http.limits import Limits
from bireme.wire.http.request_parameters import forwarded_parameter
from bireme.wire.http.rewrite import join_binary
from bireme.wire.shapes import check_shape

_NESTED = "parameters"
PEEK_OVERLAP = 128
"""Bytes that two pieces of a text must share, so that `peek_number` finds what lies between them."""
_FEW_ELEMENTS = 64


class GenerateInput(Protocol):
    """What must be known of a model's input (the engine's ``TensorSpec`` is one)."""

    @property
    def datatype(self) -> str:
        """As in the protocol."""

    @property
    def shape(self) -> tuple[int, ...]:
        """With the batch dimension in front when the model batches; -1 is variable."""


class _InputShape(NamedTuple):
    datatype: str
    shape: tuple[int, ...]


# Requests


def peek_number(text: Buffer, name: str) -> int | None:
    """Return the whole number that the parameter ``name`` has in (a piece of) a body; None: none is seen.

    What a member means depends on the model's inputs. This one is read without them, for who has to wait for the model.
    """
    found = re.search(rb'"%b"\s{0,32}:\s{0,32}"?(\d{1,20})' % re.escape(name).encode(), text)
    return int(found[1]) if found is not None else None


def decode_generate_request(
    body: Buffer,
    inputs: Mapping[str, GenerateInput],
    *,
    model_name: str,
    model_version: int = -1,
    respond: Respond,
    limits: Limits,
) -> InferenceRequest:
    """Return the request that ``body`` describes to a model with such ``inputs``; an empty one has no members.

    Raises:
        InvalidArgument: the body is malformed; names the member, what was expected and what was found.
    """
    document: Any = {}
    if len(body):
        document, _ = parse_document(memoryview(body), None, limits)
    if type(document) is not dict:
        raise InvalidArgument(f"the request must be a JSON object, found {describe(document)}")
    request_id = document.get("id", "")
    if type(request_id) is not str:
        raise InvalidArgument(f"Unable to parse 'id': expected a string, found {describe(request_id)}")
    request = InferenceRequest(model_name, {}, respond, model_version=model_version, id=request_id)
    _check_repetition(request, body, document, inputs)
    members = _Members(request, inputs, limits)
    for key, value in document.items():
        if key == _NESTED:
            members.take_nested(value)
        else:
            members.take(key, value)
    request.parameters = members.parameters or None
    return request


class _Members:
    """Gives each member of a request its place."""

    __slots__ = ("_inputs", "_limits", "_num_bytes", "_request", "parameters")

    def __init__(
        self, request: InferenceRequest, inputs: Mapping[str, GenerateInput], limits: Limits
    ) -> None:
        self._request = request
        self._inputs = inputs
        self._limits = limits
        self._num_bytes = 0
        self.parameters: dict[str, Parameter] = {}

    def take_nested(self, value: Any) -> None:
        """Take the members of ``parameters``."""
        if _NESTED in self._inputs:
            raise InvalidArgument(f"Keyword '{_NESTED}' for nested schema also given as input tensor name")
        if value is None:
            return
        if type(value) is not dict:
            raise InvalidArgument(f"Expected JSON object for keyword: '{_NESTED}', found {describe(value)}")
        try:
            for key, member in value.items():
                self.take(key, member)
        except InvalidArgument as error:
            raise InvalidArgument(f"Converting keyword: '{_NESTED}': {error.message}") from None

    def take(self, key: str, value: Any) -> None:
        """Take one member."""
        spec = self._inputs.get(key)
        if spec is None:
            self._take_parameter(key, value)
            return
        request = self._request
        if key in request.inputs:
            raise _repeated(request, key)
        elements = value if type(value) is list else [value]
        shape = _fit(key, spec.shape, len(elements))
        if not elements:
            check_shape(key, shape)
        try:
            tensor = decode_json_data(key, spec.datatype, shape, elements, self._limits)
        except InvalidArgument as error:
            if elements and type(elements[0]) is list:
                raise InvalidArgument(
                    f"{error.message}; generate takes flat lists, infer any shape"
                ) from None
            raise
        self._count(tensor)
        request.inputs[key] = tensor

    def _take_parameter(self, key: str, value: Any) -> None:
        try:
            self.parameters[key] = forwarded_parameter(key, value)
        except InvalidArgument as error:
            raise InvalidArgument(
                f"{error.message}; model '{self._request.model_name}' has no input of that name, it has "
                f"[{','.join(map(repr, self._inputs))}]"
            ) from None

    def _count(self, tensor: Tensor) -> None:
        """Refuse inputs that are too large together: short text can stand for eight bytes an element."""
        array = tensor.to_numpy()
        if tensor.datatype == "BYTES":
            nbytes = sum(map(len, array.flat)) + 4 * array.size
        else:
            nbytes = array.nbytes
        limit = self._limits.max_input_size
        if self._num_bytes + nbytes > limit:
            raise InvalidArgument(
                f"request size of {self._num_bytes} bytes with input '{tensor.name}' of size {nbytes} bytes exceeds the "
                f"maximum allowed input size of {limit}. Use --http-max-input-size to increase the limit."
            )
        self._num_bytes += nbytes


def _fit(name: str, shape: tuple[int, ...], num_elements: int) -> tuple[int, ...]:
    """Return the shape of ``num_elements`` for an input of such a ``shape``.

    The innermost variable dimension (of a batching model, that may be the batch) takes what the fixed ones leave, the
    other variable ones become 1.

    Raises:
        InvalidArgument: the fixed dimensions do not divide the number.
    """
    rest = num_elements
    for dim in shape:
        if dim != -1:
            rest, remainder = divmod(rest, dim) if dim else (1, rest)
            if remainder:
                raise _not_fitting(name, shape, num_elements)
    fitted: list[int] = []
    for dim in reversed(shape):
        if dim == -1:
            dim, rest = rest, 1  # noqa: PLW2901 (the variable dimension gets its size)
        fitted.append(dim)
    if rest != 1:
        raise _not_fitting(name, shape, num_elements)
    return tuple(reversed(fitted))


def _not_fitting(name: str, shape: tuple[int, ...], num_elements: int) -> InvalidArgument:
    dims = ",".join(map(str, shape))
    return InvalidArgument(
        f"The schema can not convert input '{name}' to tensor with proper shape: expected [{dims}], got {num_elements} "
        f"elements"
    )


def _check_repetition(
    request: InferenceRequest, body: Buffer, document: dict[str, Any], inputs: Mapping[str, GenerateInput]
) -> None:
    """Refuse an object that has an input twice, of which the parser keeps the last only.

    Looking for the quoted names is all that it costs as a rule (1 µs for 10 KB). A name that is also a value, or that is
    written with escapes, is looked at more closely, or overlooked.
    """
    names = [key.encode() for key in document if key in inputs]
    if not names:
        return
    text = bytes(body)
    if all(text.count(b'"%b"' % name) < 2 for name in names):
        return
    pairs: list[tuple[str, Any]] = []

    def keep(members: list[tuple[str, Any]]) -> None:
        pairs[:] = members

    try:
        json.loads(text, object_pairs_hook=keep)  # the outermost object comes last
    except (ValueError, RecursionError):  # tokens that only our own parser takes
        return
    seen: set[str] = set()
    for key, _ in pairs:
        if key in seen and key in inputs:
            raise _repeated(request, key)
        seen.add(key)


def _repeated(request: InferenceRequest, name: str) -> InvalidArgument:
    return InvalidArgument(f"{request.id_prefix}input '{name}' already exists in request")


# Requests by way of another process


def describe_inputs(inputs: Mapping[str, GenerateInput]) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Return what `rewrite_generate` must know of a model, in values that JSON has."""
    return {name: (spec.datatype, spec.shape) for name, spec in inputs.items()}


def rewrite_generate(
    body: Buffer, inputs: Mapping[str, Any], limits: Limits, *, model_name: str = ""
) -> tuple[bytes, int]:
    """Return a body for `decode_rewritten` with the meaning of ``body``, and the length of its JSON part.

    ``inputs`` comes from `describe_inputs`. This is for a worker process, as `rewrite_as_binary` is.

    Raises:
        InvalidArgument: what `decode_generate_request` raises.
    """
    shapes = {name: _InputShape(datatype, tuple(shape)) for name, (datatype, shape) in inputs.items()}
    request = decode_generate_request(body, shapes, model_name=model_name, respond=_ignore, limits=limits)
    head = {"id": request.id, "parameters": request.parameters}
    return join_binary(head, [], request.inputs.values(), limits)


def decode_rewritten(
    body: memoryview,
    json_length: int,
    *,
    model_name: str,
    model_version: int,
    respond: Respond,
    limits: Limits,
) -> InferenceRequest:
    """Return the request that `rewrite_generate` has made of a generate body; its tensors are views into ``body``."""
    document = parse_json(body[:json_length])
    parameters = document.pop("parameters")
    request = request_from_document(document, body, json_length, model_name, model_version, respond, limits)
    request.context = None
    request.parameters = parameters
    return request


def _ignore(request: InferenceRequest, response: InferenceResponse) -> None:
    """Respond to nobody: the request is made only to be rewritten."""


# Responses


def encode_generate_response(response: InferenceResponse, *, is_event: bool = False) -> Encoded:
    """Return the JSON object of a successful ``response``, as one server-sent event if ``is_event``.

    Its keys are sorted; of equal ones the metadata come before parameters, and parameters before outputs. A tensor of
    one element is a scalar, any other a flat list.
    """
    encoded = Encoded()
    encoded.start(_encode_steps(encoded, response, is_event=is_event))
    return encoded


def encode_error_event(message: str) -> bytes:
    """Return the event that tells of an error."""
    return b"data: %b\n\n" % error_body(message)


def _encode_steps(encoded: Encoded, response: InferenceResponse, *, is_event: bool) -> Iterator[None]:
    """Fill in ``encoded``; yield between bounded pieces of work."""
    members = _members_of(response)
    whole = _write_at_once(members)
    if whole is not None:
        encoded.pieces = [b"data: %b\n\n" % whole if is_event else whole]
        encoded.nbytes = len(encoded.pieces[0])
        return
    text: list[Buffer] = []
    num_unpaused_bytes = 0
    before = b"data: {" if is_event else b"{"
    for key in sorted(members):
        value = members[key]
        text.append(b"%b%b:" % (before, write_json(key)))
        before = b","
        if not isinstance(value, Tensor):
            text.append(write_json(value))
        elif value.num_elements == 1:
            text.append(encode_json_array(value.datatype, value.to_numpy().reshape(-1))[1:-1])
        else:
            for piece in encode_json_slices(value):
                text.append(piece)
                num_unpaused_bytes += len(piece)
                if num_unpaused_bytes >= MAX_SLICE_BYTES:
                    num_unpaused_bytes = 0
                    yield
    text.append(b"}\n\n" if is_event else b"}")
    encoded.nbytes = sum(map(len, text))
    encoded.pieces = [b"".join(text)] if encoded.nbytes <= MAX_SLICE_BYTES else text


def _write_at_once(members: Mapping[str, Tensor | Parameter]) -> bytes | None:
    """Return the object of small ``members``, in half of the time; None: they are to be written one by one."""
    plain: dict[str, Any] = {}
    for key, value in members.items():
        if not isinstance(value, Tensor):
            plain[key] = value
        elif value.num_elements <= _FEW_ELEMENTS:
            plain[key] = _plain(value)
        else:
            return None
    try:
        text = orjson.dumps(plain, option=orjson.OPT_SORT_KEYS | orjson.OPT_SERIALIZE_NUMPY)
    except TypeError:  # what only the standard library writes
        return None
    return None if b"null" in text else text  # maybe a non-finite number


def _plain(tensor: Tensor) -> Any:
    """Return a tensor as orjson writes it: its one element, or all of them in a row."""
    flat = tensor.to_numpy().reshape(-1)
    if tensor.datatype == "BYTES":
        strings = [element.decode(errors="replace") for element in flat.tolist()]
        return strings[0] if len(strings) == 1 else strings
    if tensor.datatype == "BF16":
        flat = bfloat16.to_float32(flat)
    return flat[0] if len(flat) == 1 else np.array(flat)  # copy: orjson reads contiguous, aligned memory


def _members_of(response: InferenceResponse) -> dict[str, Tensor | Parameter]:
    members: dict[str, Tensor | Parameter] = {}
    for tensor in response.outputs:
        members.setdefault(tensor.name, tensor)
    if response.parameters:
        members.update(response.parameters)
    if response.id:
        members["id"] = response.id
    members["model_name"] = response.model_name
    members["model_version"] = str(response.model_version)
    return members
