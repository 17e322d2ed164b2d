"""HTTP bodies of the v2 protocol: JSON, the binary tensor extension, classification, compression, model control."""

from bireme.wire.http.errors import error_body
from bireme.wire.http.infer_request import (
    CLIENT_SHARED_MEMORY_DISABLED,
    WantedOutput,
    WantedOutputs,
    decode_infer_request,
    parse_header_length,
)
from bireme.wire.http.infer_response import EncodedBody, encode_infer_response
from bireme.wire.http.json_text import parse_json, write_json
from bireme.wire.http.limits import Limits

__all__ = [
    "CLIENT_SHARED_MEMORY_DISABLED",
    "EncodedBody",
    "Limits",
    "WantedOutput",
    "WantedOutputs",
    "decode_infer_request",
    "encode_infer_response",
    "error_body",
    "parse_header_length",
    "parse_json",
    "write_json",
]
