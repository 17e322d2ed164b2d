"""gRPC messages of the v2 protocol: descriptors, infer codecs, message framing, compression, status, metadata."""

from bireme.wire.grpc.descriptors import SERVICES, message_class, pool, with_imports
from bireme.wire.grpc.errors import UnreadableMessage
from bireme.wire.grpc.infer_request import decode_infer_request, parse_version
from bireme.wire.grpc.infer_response import (
    EncodedMessage,
    encode_infer_response,
    encode_stream_error,
    encode_stream_final,
)
from bireme.wire.grpc.request_parts import head_size, peek_request_id, raw_offset
from bireme.wire.grpc.wanted_outputs import GrpcWanted

__all__ = [
    "SERVICES",
    "EncodedMessage",
    "GrpcWanted",
    "UnreadableMessage",
    "decode_infer_request",
    "encode_infer_response",
    "encode_stream_error",
    "encode_stream_final",
    "head_size",
    "message_class",
    "parse_version",
    "peek_request_id",
    "pool",
    "raw_offset",
    "with_imports",
]
