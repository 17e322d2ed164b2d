"""gRPC messages of the v2 protocol: descriptors, infer codecs, message framing, compression, status, metadata."""

from bireme.wire.grpc.descriptors import SERVICES, message_class, pool, with_imports

__all__ = ["SERVICES", "message_class", "pool", "with_imports"]
