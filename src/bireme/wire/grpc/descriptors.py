"""Descriptors and message classes of the gRPC services, in the private pool of `bireme.config.descriptors`.

Files bear the names under which clients know them (``grpc_service.proto``, ``grpc/health/v1/health.proto``), since
reflection lets clients ask by file name. Protobuf is imported on first use.
"""

from __future__ import annotations

import base64
import zlib
from functools import cache
from typing import TYPE_CHECKING, Any

from bireme.config import descriptors

if TYPE_CHECKING:
    from google.protobuf.descriptor import FileDescriptor
    from google.protobuf.descriptor_pool import DescriptorPool


@cache
def pool() -> DescriptorPool:
    """Return the private pool, with the files of all services in it."""
    from bireme.wire.grpc import (
        _grpc_service_descriptor,
        _health_descriptor,
        _reflection_v1_descriptor,
        _reflection_v1alpha_descriptor,
    )

    private = descriptors.pool()
    for module in (
        _grpc_service_descriptor,
        _health_descriptor,
        _reflection_v1_descriptor,
        _reflection_v1alpha_descriptor,
    ):
        private.AddSerializedFile(zlib.decompress(base64.b64decode(module.COMPRESSED)))
    return private


SERVICES = (
    "inference.GRPCInferenceService",
    "grpc.health.v1.Health",
    "grpc.reflection.v1.ServerReflection",
    "grpc.reflection.v1alpha.ServerReflection",
)
"""The full names of the services that are served."""


@cache
def message_class(full_name: str) -> Any:
    """Return the class of a message such as ``inference.ModelInferRequest``; made once.

    Raises:
        KeyError: there is no such message.
    """
    from google.protobuf.message_factory import GetMessageClass

    return GetMessageClass(pool().FindMessageTypeByName(full_name))


def with_imports(file: FileDescriptor) -> list[FileDescriptor]:
    """Return ``file`` and before it all that it imports, each once: what a client needs to load it."""
    found: dict[str, FileDescriptor] = {}
    for dependency in file.dependencies:
        found.update((each.name, each) for each in with_imports(dependency))
    found[file.name] = file
    return list(found.values())
