"""`InferenceResponse` → a serialised ``ModelInferResponse``, alone or inside a ``ModelStreamInferResponse``.

The head is put together from prepared fragments in protobuf's wire form: one per model version, one per output name, type
and shape. The outputs' data follows it as raw contents, behind a tag and a length each.

Source: KServe v2 gRPC "ModelInferResponse"; Triton ``grpc/infer_handler.h`` (``InferResponseCompleteCommon``),
``infer_handler.cc`` (``ResponseAllocatorHelper``), ``stream_infer_handler.cc`` (``StreamInferResponseComplete``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import prod
from typing import Final

from bireme.types import Buffer, InferenceResponse, InvalidArgument, Tensor, datatypes
from bireme.wire.encoded import (
    MAX_SLICE_ELEMENTS,
    SMALL_BYTES,
    Encoded,
    classify_in_steps,
    keep_fragment,
    slice_wire_form,
    takes_long,
    write_in_steps,
)
from bireme.wire.grpc.parameters import write_parameter, write_parameters
from bireme.wire.grpc.wire_fields import write_bytes, write_varint
from bireme.wire.wanted_outputs import AS_JSON, WantedOutputs

MAX_MESSAGE_BYTES: Final = (1 << 31) - 1
"""The most that protobuf and gRPC's own clients take."""

# Tags of length-delimited fields.
_MODEL_NAME, _MODEL_VERSION, _ID, _OUTPUT, _RAW_CONTENTS = b"\x0a", b"\x12", b"\x1a", b"\x2a", b"\x32"
_OUTPUT_NAME, _OUTPUT_DATATYPE, _OUTPUT_SHAPE = b"\x0a", b"\x12", b"\x1a"
_STREAM_ERROR, _STREAM_RESPONSE = b"\x0a", b"\x12"

_FINAL = {flag: write_parameter("triton_final_response", flag) for flag in (False, True)}

_FragmentKey = tuple[str, str, tuple[int, ...]]
_model_fragments: dict[tuple[str, int], bytes] = {}
_output_fragments: dict[_FragmentKey, tuple[bytes, bytes]] = {}
"""What describes an output, and the tag and length in front of its data (BYTES: nothing, as the length varies)."""


class EncodedMessage(Encoded):
    """A serialised response, without gRPC's five bytes in front of it."""

    __slots__ = ()


def encode_infer_response(
    response: InferenceResponse,
    wanted: WantedOutputs,
    labels: Mapping[str, Sequence[str]] | None = None,
    *,
    has_batch_dim: bool = False,
    final: bool | None = None,
    stream: bool = False,
) -> EncodedMessage:
    """Return a successful ``response`` as a message; complete at once unless something large is to be converted.

    ``labels`` (class names by output) and ``has_batch_dim`` (whether the model batches) matter to classification only.
    ``final`` becomes the parameter ``triton_final_response``; ``stream`` wraps the message for ``ModelStreamInfer``.

    Raises:
        InvalidArgument: an output cannot be classified as the request asked, or its region has lost memory; or the
            message would be larger than gRPC allows.
        Internal: an output does not fit into its region.
        Unsupported: a response parameter is of a type that the protocol doesn't have.
    """
    message = EncodedMessage()
    head = _response_head(response)
    if final is not None:
        head += _FINAL[final]
    if not _encode_at_once(message, head, response, wanted, stream=stream):
        message.is_heavy = takes_long(response, wanted.by_name)
        message.start(
            _encode_steps(
                message, head, response, wanted, labels or {}, has_batch_dim=has_batch_dim, stream=stream
            )
        )
    return message


def encode_stream_error(
    text: str,
    *,
    id: str = "",  # noqa: A002
    model_name: str = "",
    model_version: int = -1,
    final: bool | None = None,
) -> bytes:
    """Return the ``ModelStreamInferResponse`` that tells an error of the request ``id``.

    Model, version (as the request gave it; -1: it gave none) and ``final`` (as in `encode_infer_response`) are told when
    the failure came from inference.
    """
    inner = _identity(id, model_name, model_version)
    if final is not None:
        inner += _FINAL[final]
    return _text(_STREAM_ERROR, text) + write_bytes(_STREAM_RESPONSE, inner)


def encode_stream_final(*, id: str = "", model_name: str = "", model_version: int = -1) -> bytes:  # noqa: A002
    """Return the ``ModelStreamInferResponse`` without outputs that ends the request ``id``."""
    return write_bytes(_STREAM_RESPONSE, _identity(id, model_name, model_version) + _FINAL[True])


def _identity(request_id: str, model_name: str, model_version: int) -> bytes:
    version = "" if model_version < 0 else str(model_version)
    return _text(_MODEL_NAME, model_name) + _text(_MODEL_VERSION, version) + _text(_ID, request_id)


def _encode_at_once(
    message: EncodedMessage, head: bytes, response: InferenceResponse, wanted: WantedOutputs, *, stream: bool
) -> bool:
    """Fill in ``message`` if all outputs are sent as they are and none has to be encoded in slices; else return False."""
    by_name = wanted.by_name
    parts: list[Buffer] = [head]
    raw: list[Buffer] = []
    num_bytes = 0
    for tensor in response.outputs:
        name = tensor.name
        if by_name is not None:
            choice = by_name.get(name, AS_JSON)
            if choice.classification or choice.region is not None:
                return False
        key = (name, tensor.datatype, tensor.shape)
        fragment, raw_prefix = _output_fragments.get(key) or _make_output_fragment(key)
        parts.append(fragment)
        if raw_prefix:
            array = tensor.to_numpy()
            nbytes = array.nbytes
            raw.append(raw_prefix)
            raw.append(array.tobytes() if nbytes <= SMALL_BYTES else tensor.to_buffer())
        else:
            if not tensor.is_encoded and tensor.num_elements > MAX_SLICE_ELEMENTS:
                return False
            data = tensor.to_buffer()
            nbytes = len(data)
            raw.append(_RAW_CONTENTS + write_varint(nbytes))
            raw.append(data)
        num_bytes += nbytes
    parts += raw
    _complete(message, parts, is_small=num_bytes <= SMALL_BYTES, stream=stream)
    return True


def _complete(message: EncodedMessage, parts: list[Buffer], *, is_small: bool, stream: bool) -> None:
    """Make ``parts`` the pieces of ``message``, the small ones joined."""
    size = sum(map(len, parts))
    if stream:
        prefix = _STREAM_RESPONSE + write_varint(size)
        parts.insert(0, prefix)
        size += len(prefix)
    if size > MAX_MESSAGE_BYTES:
        raise InvalidArgument(
            f"Response has byte size {size} which exceeds gRPC's byte size limit {MAX_MESSAGE_BYTES}."
        )
    message.nbytes = size
    message.pieces = [b"".join(parts)] if is_small else _join_small(parts)


def _join_small(parts: list[Buffer]) -> list[Buffer]:
    pieces: list[Buffer] = []
    small: list[Buffer] = []
    for part in parts:
        if len(part) <= SMALL_BYTES:
            small.append(part)
        else:
            pieces.append(b"".join(small))  # never empty: a tag and a length precede what is large
            pieces.append(part)
            small = []
    if small:
        pieces.append(b"".join(small))
    return pieces


def _encode_steps(
    message: EncodedMessage,
    head: bytes,
    response: InferenceResponse,
    wanted: WantedOutputs,
    labels: Mapping[str, Sequence[str]],
    *,
    has_batch_dim: bool,
    stream: bool,
) -> Iterator[None]:
    """Fill in ``message``; yield between bounded pieces of work."""
    by_name = wanted.by_name or {}
    parts: list[Buffer] = [head]
    raw: list[Buffer] = []
    for output in response.outputs:
        choice = by_name.get(output.name, AS_JSON)
        tensor = yield from classify_in_steps(output, choice, labels, has_batch_dim=has_batch_dim)
        parts.append(_output_fragment(tensor)[0])
        blobs: list[Buffer] = []
        if choice.region is not None:
            yield from write_in_steps(choice.region, tensor)
        else:
            for blob in slice_wire_form(tensor):
                if blobs:
                    yield
                blobs.append(blob)
        raw.append(_RAW_CONTENTS + write_varint(sum(map(len, blobs))))
        raw += blobs
    _complete(message, parts + raw, is_small=False, stream=stream)


def _response_head(response: InferenceResponse) -> bytes:
    """Return the fields in front of the outputs."""
    key = (response.model_name, response.model_version)
    head = _model_fragments.get(key)
    if head is None:
        made = _text(_MODEL_NAME, response.model_name) + _text(_MODEL_VERSION, str(response.model_version))
        head = keep_fragment(_model_fragments, key, made)
    if response.id:
        head += _text(_ID, response.id)
    if response.parameters:
        head += write_parameters(response.parameters)
    return head


def _output_fragment(tensor: Tensor) -> tuple[bytes, bytes]:
    key = (tensor.name, tensor.datatype, tensor.shape)
    return _output_fragments.get(key) or _make_output_fragment(key)


def _make_output_fragment(key: _FragmentKey) -> tuple[bytes, bytes]:
    name, datatype, shape = key
    content = _text(_OUTPUT_NAME, name) + _text(_OUTPUT_DATATYPE, datatype)
    if shape:
        content += write_bytes(_OUTPUT_SHAPE, b"".join(map(write_varint, shape)))
    raw_prefix = b""
    if datatype != "BYTES":
        raw_prefix = _RAW_CONTENTS + write_varint(prod(shape) * datatypes.ITEM_SIZES[datatype])
    return keep_fragment(_output_fragments, key, (write_bytes(_OUTPUT, content), raw_prefix))


def _text(tag: bytes, text: str) -> bytes:
    """Return a string field; nothing for the empty string, which is the default. What is no Unicode becomes ``?``."""
    return write_bytes(tag, text.encode(errors="replace")) if text else b""
