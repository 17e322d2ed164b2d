"""Bodies of infer calls for tests: how to make one, and how to read it or a reply to it."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import strategies as st

from bireme.types import InferenceRequest, InferenceResponse, datatypes
from bireme.wire import http as wire_http

LIMITS = wire_http.Limits()

DATATYPES = sorted(datatypes.NUMPY_DTYPES)
FIXED_SIZE_DATATYPES = sorted(datatypes.ITEM_SIZES)


def respond(request: InferenceRequest, response: InferenceResponse) -> None:
    """Be the callback of a request that nobody runs."""


def make_body(document: Any, *blobs: bytes) -> tuple[memoryview, int]:
    """Return a body and the length of its JSON; ``document`` may be JSON text."""
    text = document if isinstance(document, bytes) else json.dumps(document).encode()
    return memoryview(bytearray(b"".join((text, *blobs)))), len(text)


def make_input(name: str = "X", datatype: str = "FP32", shape: Any = (2,), **members: Any) -> dict[str, Any]:
    """Return an input of an infer request; ``size`` stands for its ``binary_data_size``."""
    size = members.pop("size", None)
    if size is not None:
        members["parameters"] = {"binary_data_size": size}
    return {"name": name, "datatype": datatype, "shape": list(shape), **members}


def decode(document: Any, *blobs: bytes, limits: wire_http.Limits = LIMITS) -> InferenceRequest:
    """Decode a body made of ``document`` and ``blobs``, for model ``m``."""
    body, json_length = make_body(document, *blobs)
    return wire_http.decode_infer_request(
        body, json_length, model_name="m", model_version=3, respond=respond, limits=limits
    )


def joined(body: wire_http.EncodedBody) -> bytes:
    """Return the whole of an encoded body, finishing it first."""
    while not body.advance():
        pass
    return b"".join(body.pieces)


def read_reply(body: wire_http.EncodedBody) -> tuple[dict[str, Any], bytes]:
    """Return the parsed JSON (bare tokens allowed) and the binary section of a reply."""
    data = joined(body)
    length = len(data) if body.json_length is None else body.json_length
    assert body.nbytes == len(data)
    return json.loads(data[:length]), data[length:]


json_scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**65), 2**65)
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from([*DATATYPES, "X", "binary_data_size", 2**63, -1, 0])
)
"""Hypothesis: any scalar of JSON, liberties included."""
