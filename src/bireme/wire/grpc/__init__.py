"""gRPC messages of the v2 protocol: descriptors, infer codecs, message framing, compression, status, metadata."""

from bireme.wire.grpc.compression import (
    ACCEPT_ENCODING,
    choose_encoding,
    compress,
    decompress,
    parse_encoding,
)
from bireme.wire.grpc.descriptors import SERVICES, message_class, pool, with_imports
from bireme.wire.grpc.errors import UnreadableMessage
from bireme.wire.grpc.infer_request import decode_infer_request
from bireme.wire.grpc.infer_response import (
    EncodedMessage,
    encode_infer_response,
    encode_stream_error,
    encode_stream_final,
)
from bireme.wire.grpc.message_reader import MessageReader, message_prefix
from bireme.wire.grpc.metadata import forwarded_parameters
from bireme.wire.grpc.request_parts import head_size, peek_request_id, raw_offset
from bireme.wire.grpc.status import (
    OK_TRAILERS,
    RESPONSE_HEADERS,
    Refusal,
    Status,
    http_refusal,
    response_headers,
    trailers,
    trailers_only,
)
from bireme.wire.grpc.timeout import parse_timeout
from bireme.wire.grpc.wanted_outputs import GrpcWanted

__all__ = [
    "ACCEPT_ENCODING",
    "OK_TRAILERS",
    "RESPONSE_HEADERS",
    "SERVICES",
    "EncodedMessage",
    "GrpcWanted",
    "MessageReader",
    "Refusal",
    "Status",
    "UnreadableMessage",
    "choose_encoding",
    "compress",
    "decode_infer_request",
    "decompress",
    "encode_infer_response",
    "encode_stream_error",
    "encode_stream_final",
    "forwarded_parameters",
    "head_size",
    "http_refusal",
    "message_class",
    "message_prefix",
    "parse_encoding",
    "parse_timeout",
    "peek_request_id",
    "pool",
    "raw_offset",
    "response_headers",
    "trailers",
    "trailers_only",
    "with_imports",
]
