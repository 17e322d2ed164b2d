"""The ``Inference-Header-Content-Length`` header: where the JSON of an infer body ends.

Source: KServe v2 binary tensor data extension; Triton ``http_server.cc`` (``GetInferenceHeaderLength``).
"""

from __future__ import annotations

import re

from bireme.types import InvalidArgument

_INT32_MIN, _INT32_MAX = -(1 << 31), (1 << 31) - 1


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
