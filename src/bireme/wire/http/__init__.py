"""HTTP bodies of the v2 protocol: JSON, the binary tensor extension, classification, compression, model control."""

from bireme.wire.http.compression import (
    ACCEPTED_ENCODINGS,
    Encoding,
    choose_encoding,
    compress,
    decompress,
    parse_content_encoding,
)
from bireme.wire.http.control import (
    CudaRegistration,
    LoadParameters,
    SystemRegistration,
    decode_cuda_registration,
    decode_index_request,
    decode_load_request,
    decode_logging_request,
    decode_system_registration,
    decode_trace_request,
    decode_unload_request,
)
from bireme.wire.http.errors import error_body
from bireme.wire.http.generate import (
    PEEK_OVERLAP,
    decode_generate_request,
    decode_rewritten,
    describe_inputs,
    encode_error_event,
    encode_generate_response,
    peek_number,
    rewrite_generate,
)
from bireme.wire.http.header_length import parse_header_length
from bireme.wire.http.infer_request import decode_infer_request
from bireme.wire.http.infer_response import EncodedBody, encode_infer_response
from bireme.wire.http.json_text import parse_json, write_json
from bireme.wire.http.limits import Limits
from bireme.wire.http.raw_request import InputSpec, decode_raw_request
from bireme.wire.http.rewrite import rewrite_as_binary
from bireme.wire.wanted_outputs import WantedOutput, WantedOutputs

__all__ = [
    "ACCEPTED_ENCODINGS",
    "PEEK_OVERLAP",
    "CudaRegistration",
    "EncodedBody",
    "Encoding",
    "InputSpec",
    "Limits",
    "LoadParameters",
    "SystemRegistration",
    "WantedOutput",
    "WantedOutputs",
    "choose_encoding",
    "compress",
    "decode_cuda_registration",
    "decode_generate_request",
    "decode_index_request",
    "decode_infer_request",
    "decode_load_request",
    "decode_logging_request",
    "decode_raw_request",
    "decode_rewritten",
    "decode_system_registration",
    "decode_trace_request",
    "decode_unload_request",
    "decompress",
    "describe_inputs",
    "encode_error_event",
    "encode_generate_response",
    "encode_infer_response",
    "error_body",
    "parse_content_encoding",
    "parse_header_length",
    "parse_json",
    "peek_number",
    "rewrite_as_binary",
    "rewrite_generate",
    "write_json",
]
