"""The methods beside inference: which path takes which message, by which category it may be restricted, who answers.

Source: Triton ``grpc_server.cc`` (``CommonHandler``).
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from bireme.frontend.grpc import control, health, observe, reflection, shared_memory
from bireme.frontend.grpc.message_stream import MessageStream, StreamHandler

if TYPE_CHECKING:
    from bireme.frontend.grpc.api import GrpcApi

__all__ = [
    "CATEGORIES",
    "STREAM_METHODS",
    "UNARY_METHODS",
    "MessageStream",
    "StreamHandler",
    "StreamMethod",
    "UnaryMethod",
]

Handle = Callable[["GrpcApi", Any], Any | Coroutine[Any, Any, Any]]
"""Takes the request message and returns the response message or a coroutine of it. Raises `BiremeError`."""
Open = Callable[["GrpcApi", MessageStream], StreamHandler]

MAX_CALL_SIZE: Final = 64 << 10
"""Bytes of a message that is parsed on the loop by a method beside inference: all but a load have only a few settings."""


class UnaryMethod(NamedTuple):
    """A method with one request and one response."""

    category: str
    """By which it may be restricted; empty: it may not."""
    request: str
    """The full name of the request message."""
    handle: Handle
    max_message_size: int = MAX_CALL_SIZE
    """Bytes of a request; 0: as many as the front end's options allow."""


class StreamMethod(NamedTuple):
    """A method with any number of responses."""

    category: str
    request: str
    open: Open
    max_message_size: int = MAX_CALL_SIZE


def _inference(category: str, name: str, handle: Handle, **settings: int) -> tuple[bytes, UnaryMethod]:
    method = UnaryMethod(category, f"inference.{name}Request", handle, **settings)
    return b"/inference.GRPCInferenceService/%s" % name.encode(), method


UNARY_METHODS: Final[Mapping[bytes, UnaryMethod]] = dict(
    (
        _inference("health", "ServerLive", observe.server_live),
        _inference("health", "ServerReady", observe.server_ready),
        _inference("health", "ModelReady", observe.model_ready),
        _inference("metadata", "ServerMetadata", observe.server_metadata),
        _inference("metadata", "ModelMetadata", observe.model_metadata),
        _inference("model-config", "ModelConfig", observe.model_config),
        _inference("statistics", "ModelStatistics", observe.model_statistics),
        _inference("model-repository", "RepositoryIndex", control.repository_index),
        _inference("model-repository", "RepositoryModelLoad", control.load, max_message_size=0),
        _inference("model-repository", "RepositoryModelUnload", control.unload),
        _inference("shared-memory", "SystemSharedMemoryStatus", shared_memory.system_status),
        _inference("shared-memory", "SystemSharedMemoryRegister", shared_memory.system_register),
        _inference("shared-memory", "SystemSharedMemoryUnregister", shared_memory.system_unregister),
        _inference("shared-memory", "CudaSharedMemoryStatus", shared_memory.cuda_status),
        _inference("shared-memory", "CudaSharedMemoryRegister", shared_memory.cuda_register),
        _inference("shared-memory", "CudaSharedMemoryUnregister", shared_memory.cuda_unregister),
        _inference("trace", "TraceSetting", control.trace_setting),
        _inference("logging", "LogSettings", control.log_settings),
        (
            b"/grpc.health.v1.Health/Check",
            UnaryMethod("health", "grpc.health.v1.HealthCheckRequest", health.check),
        ),
    )
)
"""By path; all but ``ModelInfer``."""


def _reflection(version: str, open_stream: Open) -> tuple[bytes, StreamMethod]:
    package = f"grpc.reflection.{version}"
    method = StreamMethod("", f"{package}.ServerReflectionRequest", open_stream)
    return f"/{package}.ServerReflection/ServerReflectionInfo".encode(), method


STREAM_METHODS: Final[Mapping[bytes, StreamMethod]] = dict(
    (
        (
            b"/grpc.health.v1.Health/Watch",
            StreamMethod("health", "grpc.health.v1.HealthCheckRequest", health.watch),
        ),
        _reflection("v1", reflection.open_v1),
        _reflection("v1alpha", reflection.open_v1alpha),
    )
)
"""By path; all but ``ModelStreamInfer``."""

CATEGORIES: Final = frozenset(
    {"inference"}
    | {method.category for method in UNARY_METHODS.values()}
    | {method.category for method in STREAM_METHODS.values() if method.category}
)
"""The groups of methods that may be restricted."""
