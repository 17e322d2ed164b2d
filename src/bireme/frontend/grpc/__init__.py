"""The gRPC front end: connections, calls and the methods that they reach."""

from bireme.frontend.grpc.frontend import GrpcFrontend
from bireme.frontend.grpc.options import GrpcOptions

__all__ = ["GrpcFrontend", "GrpcOptions"]
