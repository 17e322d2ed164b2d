"""JSON tensors → binary tensors, for a worker process.

A JSON parser holds the GIL, so a large JSON body would stop the server's loop. Another process parses it, and sends back
an equivalent body that the loop decodes in microseconds. This module imports no more than decoding needs.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from bireme.types import Buffer, InferenceRequest, InferenceResponse, InvalidArgument, Tensor
from bireme.wire.http.infer_request import parse_document, request_from_document
from bireme.wire.http.json_text import write_json
from bireme.wire.http.limits import Limits
from bireme.wire.regions import Place

_ALIGNMENT = 64
"""The first tensor starts at a multiple of it, for the sake of vector instructions."""


def rewrite_as_binary(
    body: Buffer, json_length: int | None, limits: Limits, *, model_name: str = ""
) -> tuple[bytes, int]:
    """Return a body with the same meaning in which every tensor is binary, and the length of its JSON part.

    Inputs in shared memory stay there: what is said of them is copied, and checked where the regions are known.
    ``model_name`` is for error messages. Members that have no meaning are dropped.

    Raises:
        InvalidArgument: what `decode_infer_request` raises for ``body``.
    """
    view = memoryview(body)
    document, offset = parse_document(view, json_length, limits)
    inputs, rest = _without_regions(document)
    request = request_from_document(rest, view, offset, model_name, -1, _ignore, limits, _ANY_REGION)
    head = {key: document[key] for key in ("id", "parameters", "outputs") if key in document}
    return join_binary(head, inputs, request.inputs.values(), limits)


def join_binary(
    head: dict[str, Any], inputs: list[dict[str, Any]], tensors: Iterable[Tensor], limits: Limits
) -> tuple[bytes, int]:
    """Return an infer body of ``head``, ``inputs`` and the binary ``tensors``, and the length of its JSON part.

    Raises:
        InvalidArgument: the JSON part is too large for a server's loop.
    """
    blobs: list[Buffer] = []
    for tensor in tensors:
        blob = tensor.to_buffer()
        blobs.append(blob)
        inputs.append(
            {
                "name": tensor.name,
                "datatype": tensor.datatype,
                "shape": tensor.shape,
                "parameters": {"binary_data_size": len(blob)},
            }
        )
    text = write_json(head | {"inputs": inputs})
    if len(text) > limits.max_head_size:
        raise InvalidArgument(
            f"the request's JSON has {len(text)} bytes beside the tensors' data, expected at most "
            f"{limits.max_head_size}: the id, the parameters, and names and shapes of {len(inputs)} inputs"
        )
    text = text.ljust(-(-len(text) // _ALIGNMENT) * _ALIGNMENT)
    return b"".join((text, *blobs)), len(text)


class _AnyRegion:
    """Takes every place in shared memory for granted."""

    def __len__(self) -> int:
        return 1

    def slice(self, region: str, offset: int, byte_size: int) -> memoryview:  # noqa: ARG002
        return memoryview(b"")

    def overlap(self, first: Place, second: Place) -> bool:  # noqa: ARG002
        return True


_ANY_REGION = _AnyRegion()


def _without_regions(document: Any) -> tuple[list[dict[str, Any]], Any]:
    """Return the inputs that lie in shared memory alone, and a document of the others."""
    items = document.get("inputs") if type(document) is dict else None
    if type(items) is not list:
        return [], document
    elsewhere: list[dict[str, Any]] = []
    others: list[Any] = []
    for item in items:
        (elsewhere if _is_in_region(item) else others).append(item)
    return elsewhere, document | {"inputs": others}


def _is_in_region(item: Any) -> bool:
    parameters = item.get("parameters") if type(item) is dict else None
    return (
        type(parameters) is dict
        and "shared_memory_region" in parameters
        and "binary_data_size" not in parameters
        and "data" not in item
    )


def _ignore(request: InferenceRequest, response: InferenceResponse) -> None:
    """Respond to nobody: the request is made only to be checked."""
