"""`InferenceResponse` → the body of an infer reply: JSON, then the binary outputs in their order.

The JSON is put together from prepared fragments: one per model version, one per output name, type and shape. What is
large goes through `EncodedBody.advance` in bounded steps, so that the caller's loop can do other things in between.

Source: KServe v2 "Inference Response JSON Object", binary tensor data extension; Triton ``http_server.cc``
(``FinalizeResponse``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import prod

import orjson

from bireme.types import Buffer, InferenceResponse, datatypes
from bireme.wire.encoded import (
    MAX_COPY_BYTES,
    SMALL_BYTES,
    Encoded,
    classify_in_steps,
    keep_fragment,
    slice_wire_form,
    takes_long,
    write_in_steps,
)
from bireme.wire.http.json_output import MAX_SLICE_BYTES, encode_json_slices
from bireme.wire.http.json_text import write_json
from bireme.wire.wanted_outputs import AS_BINARY, AS_JSON, WantedOutputs

_FragmentKey = tuple[str, str, tuple[int, ...]]
_model_fragments: dict[tuple[str, int], bytes] = {}
_output_fragments: dict[_FragmentKey, bytes] = {}
_binary_fragments: dict[_FragmentKey, bytes] = {}


class EncodedBody(Encoded):
    """A reply's body."""

    __slots__ = ("json_length",)

    def __init__(self) -> None:
        super().__init__()
        self.json_length: int | None = None
        """For ``Inference-Header-Content-Length``; None: the body is all JSON, and there's no such header."""


def encode_infer_response(
    response: InferenceResponse,
    wanted: WantedOutputs,
    labels: Mapping[str, Sequence[str]] | None = None,
    *,
    has_batch_dim: bool = False,
) -> EncodedBody:
    """Return the body of a successful ``response``; complete at once unless something large is to be converted.

    ``labels`` (class names by output) and ``has_batch_dim`` (whether the model batches) matter to classification only.

    Raises:
        InvalidArgument: an output cannot be classified as the request asked, or its region has lost memory.
        Internal: an output does not fit into its region.
    """
    body = EncodedBody()
    if not _encode_binary(body, response, wanted):
        body.is_heavy = takes_long(response, wanted.by_name)
        body.start(_encode_steps(body, response, wanted, labels or {}, has_batch_dim=has_batch_dim))
    return body


def _encode_binary(body: EncodedBody, response: InferenceResponse, wanted: WantedOutputs) -> bool:
    """Fill in ``body`` if all outputs are of fixed-size types and are binary or go into regions; else return False."""
    by_name = wanted.by_name
    fragments: list[bytes] = []
    blobs: list[Buffer] = []
    num_bytes = num_copied = 0
    for tensor in response.outputs:
        name = tensor.name
        datatype = tensor.datatype
        if datatype == "BYTES":
            return False
        key = (name, datatype, tensor.shape)
        if by_name is not None and (choice := by_name.get(name)) is not None:
            if not choice.binary or choice.classification:
                region = choice.region
                if region is None:
                    return False
                if not region.has(tensor):
                    num_copied += tensor.nbytes
                    if num_copied > MAX_COPY_BYTES:
                        return False
                    region.write(tensor)
                fragments.append(_output_fragment(key)[:-1] + b"}")
                continue
        elif not wanted.default_binary:
            return False
        fragments.append(_binary_fragments.get(key) or _make_binary_fragment(key))
        array = tensor.to_numpy()
        nbytes = array.nbytes
        num_bytes += nbytes
        blobs.append(array.tobytes() if nbytes <= SMALL_BYTES else tensor.to_buffer())
    head = b"%b%b]}" % (_response_head(response), b",".join(fragments))
    if num_bytes:
        body.json_length = len(head)
    body.nbytes = len(head) + num_bytes
    body.pieces = [b"".join((head, *blobs))] if num_bytes <= SMALL_BYTES else [head, *blobs]
    return True


def _encode_steps(
    body: EncodedBody,
    response: InferenceResponse,
    wanted: WantedOutputs,
    labels: Mapping[str, Sequence[str]],
    *,
    has_batch_dim: bool,
) -> Iterator[None]:
    """Fill in ``body``; yield between bounded pieces of work."""
    by_name = wanted.by_name or {}
    default = AS_BINARY if wanted.default_binary else AS_JSON
    text: list[Buffer] = [_response_head(response)]
    blobs: list[Buffer] = []
    num_unpaused_bytes = 0
    for index, output in enumerate(response.outputs):
        choice = by_name.get(output.name, default)
        tensor = yield from classify_in_steps(output, choice, labels, has_batch_dim=has_batch_dim)
        text.append(b"," if index else b"")
        fragment = _output_fragment((tensor.name, tensor.datatype, tensor.shape))
        if choice.region is not None:
            yield from write_in_steps(choice.region, tensor)
            text.append(fragment[:-1] + b"}")
            continue
        text.append(fragment)
        if choice.binary:
            nbytes = 0
            for blob in slice_wire_form(tensor):
                if nbytes:
                    yield
                nbytes += len(blob)
                blobs.append(blob)
            text.append(b'"parameters":{"binary_data_size":%d}}' % nbytes)
        else:
            text.append(b'"data":')
            for piece in encode_json_slices(tensor):
                text.append(piece)
                num_unpaused_bytes += len(piece)
                if num_unpaused_bytes >= MAX_SLICE_BYTES:
                    num_unpaused_bytes = 0
                    yield
            text.append(b"}")
    text.append(b"]}")
    _complete(body, text, [blob for blob in blobs if blob])


def _complete(body: EncodedBody, text: list[Buffer], blobs: list[Buffer]) -> None:
    num_text_bytes = sum(map(len, text))
    num_bytes = sum(map(len, blobs))
    if num_text_bytes <= MAX_SLICE_BYTES:
        text = [b"".join(text)]
    body.json_length = num_text_bytes if num_bytes else None
    body.nbytes = num_text_bytes + num_bytes
    body.pieces = text + blobs


def _response_head(response: InferenceResponse) -> bytes:
    """Return the JSON up to and including the bracket that opens the outputs."""
    key = (response.model_name, response.model_version)
    model = _model_fragments.get(key)
    if model is None:
        name, version = write_json(response.model_name), write_json(str(response.model_version))
        model = keep_fragment(_model_fragments, key, b'"model_name":%b,"model_version":%b' % (name, version))
    if response.parameters:
        model = b'%b,"parameters":%b' % (model, write_json(response.parameters))
    if response.id:
        return b'{"id":%b,%b,"outputs":[' % (orjson.dumps(response.id), model)
    return b'{%b,"outputs":[' % model


def _output_fragment(key: _FragmentKey) -> bytes:
    """Return an output's JSON object up to its data."""
    found = _output_fragments.get(key)
    if found is None:
        name, datatype, shape = key
        dims = ",".join(map(str, shape)).encode()
        made = b'{"name":%b,"datatype":"%b","shape":[%b],' % (write_json(name), datatype.encode(), dims)
        found = keep_fragment(_output_fragments, key, made)
    return found


def _make_binary_fragment(key: _FragmentKey) -> bytes:
    """Return the whole JSON object of a binary output of a fixed-size type."""
    _, datatype, shape = key
    size = prod(shape) * datatypes.ITEM_SIZES[datatype]
    made = b'%b"parameters":{"binary_data_size":%d}}' % (_output_fragment(key), size)
    return keep_fragment(_binary_fragments, key, made)
