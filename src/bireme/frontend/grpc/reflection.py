"""Server reflection, v1 and v1alpha, so that tools such as grpcurl need no .proto files.

An answer that holds a file holds all files that it imports, too: one question is enough to use the file.

Source: gRPC "GRPC Server Reflection Protocol" (``reflection.proto``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bireme.frontend.grpc.message_stream import MessageStream
from bireme.wire.grpc import SERVICES, message_class, pool, with_imports
from bireme.wire.grpc.status import Status

if TYPE_CHECKING:
    from google.protobuf.descriptor import FileDescriptor

    from bireme.frontend.grpc.api import GrpcApi


def open_v1(_: GrpcApi, stream: MessageStream) -> ReflectionStream:
    """Open a ``grpc.reflection.v1`` call."""
    return ReflectionStream("grpc.reflection.v1", stream)


def open_v1alpha(_: GrpcApi, stream: MessageStream) -> ReflectionStream:
    """Open a ``grpc.reflection.v1alpha`` call; only the package's name differs."""
    return ReflectionStream("grpc.reflection.v1alpha", stream)


class ReflectionStream:
    """One ``ServerReflectionInfo`` call: an answer to each question, in order."""

    __slots__ = ("_package", "_stream")

    def __init__(self, package: str, stream: MessageStream) -> None:
        self._package = package
        self._stream = stream

    def take(self, message: Any) -> None:
        """Answer one question."""
        self._stream.send(answer(self._package, message))

    def end(self) -> None:
        """Finish: every question has been answered."""
        self._stream.finish()

    def cancel(self) -> None:
        """Do nothing: nothing is held."""


def answer(package: str, request: Any) -> Any:
    """Return the answer to one ``ServerReflectionRequest`` of ``package``; one without an answer gets an error in it."""
    response = message_class(f"{package}.ServerReflectionResponse")(
        valid_host=request.host, original_request=request
    )
    kind = request.WhichOneof("message_request")
    try:
        _fill(response, kind, request)
    except KeyError:
        response.error_response.error_code = Status.NOT_FOUND
        response.error_response.error_message = f"not found: {kind} {str(getattr(request, kind)).strip()}"
    return response


def _fill(response: Any, kind: str | None, request: Any) -> None:
    """Put the answer into ``response``.

    Raises:
        KeyError: what was asked for does not exist.
    """
    match kind:
        case "list_services":
            for name in SERVICES:
                response.list_services_response.service.add(name=name)
        case "file_by_filename":
            _fill_files(response, pool().FindFileByName(request.file_by_filename))
        case "file_containing_symbol":
            _fill_files(response, _find_file_of_symbol(request.file_containing_symbol))
        case "file_containing_extension":
            wanted = request.file_containing_extension
            extended = pool().FindMessageTypeByName(wanted.containing_type)
            extension: Any = pool().FindExtensionByNumber(extended, wanted.extension_number)
            _fill_files(response, extension.file)
        case "all_extension_numbers_of_type":
            extended = pool().FindMessageTypeByName(request.all_extension_numbers_of_type)
            found = response.all_extension_numbers_response
            found.base_type_name = extended.full_name
            found.extension_number.extend(each.number for each in pool().FindAllExtensions(extended))
        case _:
            response.error_response.error_code = Status.INVALID_ARGUMENT
            response.error_response.error_message = (
                "expected one of the fields of 'message_request' to be set"
            )


def _fill_files(response: Any, file: FileDescriptor) -> None:
    """Put ``file`` and then what it imports into ``response``: some clients take the first for the one they asked for."""
    files = reversed(with_imports(file))
    response.file_descriptor_response.file_descriptor_proto.extend(each.serialized_pb for each in files)


def _find_file_of_symbol(symbol: str) -> FileDescriptor:
    """Return the file that declares a service, method, message, field, enum or enum value. Raises KeyError."""
    try:
        return pool().FindFileContainingSymbol(symbol)
    except KeyError:  # protobuf finds everything but methods
        service_name, _, method = symbol.rpartition(".")
        return pool().FindServiceByName(service_name).methods_by_name[method].containing_service.file
