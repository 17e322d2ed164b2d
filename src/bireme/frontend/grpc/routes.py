"""Router: what a call's head says. Derived once per distinct head of a connection, and kept with it."""

from __future__ import annotations

from typing import Final

from bireme.frontend.grpc.api import GrpcApi
from bireme.frontend.grpc.call import DEADLINE_EXCEEDED, Call, Route
from bireme.frontend.grpc.connection import GrpcConnection
from bireme.frontend.grpc.control_calls import MethodRoute, StreamRoute
from bireme.frontend.grpc.errors import status_of
from bireme.frontend.grpc.infer import InferRoute
from bireme.frontend.grpc.methods import CATEGORIES, STREAM_METHODS, UNARY_METHODS
from bireme.frontend.grpc.stream_infer import StreamInferRoute
from bireme.frontend.options import Restriction
from bireme.types import BiremeError, InvalidArgument
from bireme.wire.grpc.compression import ACCEPT_ENCODING, choose_encoding, parse_encoding
from bireme.wire.grpc.metadata import forwarded_parameters
from bireme.wire.grpc.status import Refusal, Status, http_refusal, trailers_only
from bireme.wire.grpc.timeout import parse_timeout
from bireme.wire.http2 import Receiver, RequestHead, Stream

MODEL_INFER: Final = b"/inference.GRPCInferenceService/ModelInfer"
MODEL_STREAM_INFER: Final = b"/inference.GRPCInferenceService/ModelStreamInfer"

_HEADER_PREFIX: Final = "triton-grpc-protocol-"
_CONTENT_TYPE: Final = b"application/grpc"
_NS_PER_S: Final = 1_000_000_000


class RefusedRoute(Route):
    """Answers every call with the same block of headers."""

    __slots__ = ("_api", "_block", "_status", "_text")

    def __init__(self, api: GrpcApi, path: bytes, block: bytes, status: Status, text: str) -> None:
        super().__init__(path, 0)
        self._api = api
        self._block = block
        self._status = status
        self._text = text

    def open(self, connection: GrpcConnection, stream: Stream) -> Receiver:
        """Refuse a call."""
        call = Call(self._api, connection, stream, self)
        call.refuse_head(self._block, self._status, self._text)
        return call


class Router:
    """Finds the route of each head."""

    def __init__(self, api: GrpcApi) -> None:
        """Read the restrictions.

        Raises:
            InvalidArgument: a category is unknown, or named twice.
        """
        self._api = api
        self._restrictions = _restrictions_by_category(api.options.restricted_protocols)

    def resolve(self, head: RequestHead) -> Route:
        """Return the route of a call that begins with ``head``."""
        if head.method != b"POST":
            return self._refuse(head, Status.UNIMPLEMENTED, "not a POST request", http_refusal(405))
        fields = dict(head.headers)
        if not _is_grpc(fields.get(b"content-type", b"")):
            text = "the content type is not application/grpc"
            return self._refuse(head, Status.UNIMPLEMENTED, text, http_refusal(415))
        try:
            return self._resolve(head, fields)
        except Refusal as refusal:
            status, text = refusal.status, refusal.text
            block = b""
            if status is Status.UNIMPLEMENTED:
                block = trailers_only(status, text, ((b"grpc-accept-encoding", ACCEPT_ENCODING),))
            return self._refuse(head, status, text, block)
        except BiremeError as error:
            return self._refuse(head, status_of(error), error.message)

    def _refuse(self, head: RequestHead, status: Status, text: str, block: bytes = b"") -> RefusedRoute:
        return RefusedRoute(self._api, head.path, block or trailers_only(status, text), status, text)

    def _resolve(self, head: RequestHead, fields: dict[bytes, bytes]) -> Route:
        path = head.path
        found = self._find(head)
        if found is None:
            return self._refuse(head, Status.UNIMPLEMENTED, f"unknown method {path.decode('latin-1')}")
        category, route = found
        restriction = self._restrictions.get(category)
        if restriction is not None and restriction not in head.headers:
            name = restriction[0].decode("latin-1")
            text = f"This protocol is restricted, expecting header '{name}'"
            return self._refuse(head, Status.UNAVAILABLE, text)
        timeout = fields.get(b"grpc-timeout")
        if timeout is not None:
            route.timeout_s = parse_timeout(timeout) / _NS_PER_S
            if not route.timeout_s:
                return self._refuse(head, Status.DEADLINE_EXCEEDED, DEADLINE_EXCEEDED)
        route.encoding = parse_encoding(fields.get(b"grpc-encoding"))
        if category == "inference":
            level = self._api.options.response_compression_level
            route.accepted = choose_encoding(fields.get(b"grpc-accept-encoding"), level)  # type: ignore[arg-type]
            route.forwarded = forwarded_parameters(head.headers, self._api.header_pattern)
            route.caller = self._api.server.tracing.read_context(fields)
        return route

    def _find(self, head: RequestHead) -> tuple[str, Route] | None:
        """Return the category and the route of a path."""
        path, api = head.path, self._api
        if path == MODEL_INFER:
            return "inference", InferRoute(api, path)
        if path == MODEL_STREAM_INFER:
            return "inference", StreamInferRoute(api, head)
        if (method := UNARY_METHODS.get(path)) is not None:
            return method.category, MethodRoute(api, path, method)
        if (stream_method := STREAM_METHODS.get(path)) is not None:
            return stream_method.category, StreamRoute(api, path, stream_method)
        return None


def _is_grpc(content_type: bytes) -> bool:
    """Whether a content type is gRPC's, with or without a subtype or parameters. gRPC-Web is another protocol."""
    rest = content_type.removeprefix(_CONTENT_TYPE)
    return len(rest) < len(content_type) and rest[:1] in (b"", b"+", b";")


def _restrictions_by_category(
    groups: tuple[Restriction | tuple[tuple[str, ...], str, str], ...],
) -> dict[str, tuple[bytes, bytes]]:
    by_category: dict[str, tuple[bytes, bytes]] = {}
    for categories, header, value in groups:
        name = (_HEADER_PREFIX + header.removeprefix(_HEADER_PREFIX)).lower().encode("latin-1")
        for category in categories:
            if category not in CATEGORIES:
                known = ", ".join(sorted(CATEGORIES))
                raise InvalidArgument(f"restricted protocol '{category}' is unknown, expected one of {known}")
            if category in by_category:
                raise InvalidArgument(
                    f"restricted protocol '{category}' is named twice; it belongs to one group"
                )
            by_category[category] = (name, value.encode("latin-1"))
    return by_category
