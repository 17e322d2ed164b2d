"""The server's side of HTTP/2 for gRPC: frames, header blocks, streams, flow control, limits. No sockets, no clock."""

from bireme.wire.http2.connection import Http2Connection
from bireme.wire.http2.errors import ErrorCode
from bireme.wire.http2.headers import RequestHead, encode_block
from bireme.wire.http2.limits import Http2Limits
from bireme.wire.http2.stream import Handler, Receiver, Stream

__all__ = [
    "ErrorCode",
    "Handler",
    "Http2Connection",
    "Http2Limits",
    "Receiver",
    "RequestHead",
    "Stream",
    "encode_block",
]
