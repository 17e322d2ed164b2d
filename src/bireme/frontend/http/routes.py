"""The routes of the inference front end: which path is which endpoint, and what is checked before it is asked.

A path is split at its slashes and looked up; there are no patterns to try one after the other. The result is one `Route`
per distinct request head, kept in the head cache, so none of this runs for a request whose head was seen before.

The order of checks is Triton's: path (404), restriction (403), verb (405).

Source: Triton ``http_server.cc`` (``HTTPAPIServer::Handle``, ``RespondIfRestricted``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple

from bireme.frontend.http import control, observe, shared_memory
from bireme.frontend.http.api import Api
from bireme.frontend.http.call import Call
from bireme.frontend.http.cors import CorsPolicy
from bireme.frontend.http.exchange import JSON, Exchange, Route
from bireme.frontend.http.generate import GenerateRoute, GenerateStreamRoute
from bireme.frontend.http.head import RefusedRequest, RequestHead
from bireme.frontend.http.infer import InferRoute
from bireme.frontend.http.target import Target, text_of
from bireme.frontend.options import Restriction
from bireme.types import InvalidArgument
from bireme.wire.http import error_body

Answer = Callable[[Call], None]


MAX_CALL_SIZE: Final = 64 << 10
"""Bytes of a body that is parsed on the loop by a route beside inference: all but a load have only a few settings."""


class Endpoint(NamedTuple):
    """One row of the route table: its verbs, the category by which it may be restricted, and who answers."""

    methods: tuple[bytes, ...]
    category: str
    answer: Answer | type[InferRoute | GenerateRoute]
    """A handler, or the route that takes requests as a whole: inference."""


_GET, _POST, _GET_POST = (b"GET",), (b"POST",), (b"GET", b"POST")

FIXED: Final[Mapping[bytes, Endpoint]] = {
    b"/v2": Endpoint(_GET, "metadata", observe.server_metadata),
    b"/v2/health/live": Endpoint(_GET, "health", observe.server_live),
    b"/v2/health/ready": Endpoint(_GET, "health", observe.server_ready),
    b"/v2/models/stats": Endpoint(_GET, "statistics", observe.all_statistics),
    b"/v2/logging": Endpoint(_GET_POST, "logging", control.logging),
    b"/v2/trace/setting": Endpoint(_GET_POST, "trace", control.trace_settings),
}
"""Paths without variable parts. They come first: a model named ``stats`` has no metadata route."""

OF_MODEL: Final[Mapping[tuple[bytes, ...], Endpoint]] = {
    (b"infer",): Endpoint(_POST, "inference", InferRoute),
    (): Endpoint(_GET, "metadata", observe.model_metadata),
    (b"ready",): Endpoint(_GET, "health", observe.model_ready),
    (b"config",): Endpoint(_GET, "model-config", observe.model_config),
    (b"stats",): Endpoint(_GET, "statistics", observe.model_statistics),
    (b"generate",): Endpoint(_POST, "inference", GenerateRoute),
    (b"generate_stream",): Endpoint(_POST, "inference", GenerateStreamRoute),
    (b"trace", b"setting"): Endpoint(_GET_POST, "trace", control.trace_settings),
}
"""What follows ``/v2/models/{M}[/versions/{V}]``; trace settings take no version."""

_INDEX = Endpoint(_POST, "model-repository", control.repository_index)
OF_REPOSITORY: Final[Mapping[bytes, Endpoint]] = {
    b"load": Endpoint(_POST, "model-repository", control.load),
    b"unload": Endpoint(_POST, "model-repository", control.unload),
}
"""What follows ``/v2/repository[/{R}]/models/{M}``."""

OF_SHARED_MEMORY: Final[Mapping[tuple[bytes, bytes], Endpoint]] = {
    (b"systemsharedmemory", b"status"): Endpoint(_GET, "shared-memory", shared_memory.system_status),
    (b"systemsharedmemory", b"register"): Endpoint(_POST, "shared-memory", shared_memory.system_register),
    (b"systemsharedmemory", b"unregister"): Endpoint(_POST, "shared-memory", shared_memory.system_unregister),
    (b"cudasharedmemory", b"status"): Endpoint(_GET, "shared-memory", shared_memory.cuda_status),
    (b"cudasharedmemory", b"register"): Endpoint(_POST, "shared-memory", shared_memory.cuda_register),
    (b"cudasharedmemory", b"unregister"): Endpoint(_POST, "shared-memory", shared_memory.cuda_unregister),
}
"""What stands in front of and behind the ``region/{N}`` in ``/v2/systemsharedmemory[/region/{N}]/status``."""

CATEGORIES: Final = frozenset(
    endpoint.category
    for table in (FIXED, OF_MODEL, OF_REPOSITORY, OF_SHARED_MEMORY)
    for endpoint in table.values()
)
"""The groups of routes that may be restricted."""


def find(path: bytes) -> tuple[Endpoint, Target] | None:
    """Return the endpoint that serves ``path`` and what the path names; None when there is none."""
    endpoint = FIXED.get(path)
    if endpoint is not None:
        return endpoint, Target()
    match path.split(b"/"):
        case [b"", b"v2", b"models", name, *rest] if name:
            return _find_of_model(name, rest)
        case [b"", b"v2", b"repository", *rest]:
            return _find_of_repository(rest)
        case [b"", b"v2", kind, action] if (kind, action) in OF_SHARED_MEMORY:
            return OF_SHARED_MEMORY[kind, action], Target()
        case [b"", b"v2", kind, b"region", name, action] if name and (kind, action) in OF_SHARED_MEMORY:
            return OF_SHARED_MEMORY[kind, action], Target(region=text_of(name))
    return None


def _find_of_model(name: bytes, rest: list[bytes]) -> tuple[Endpoint, Target] | None:
    version = b""
    if len(rest) >= 2 and rest[0] == b"versions" and rest[1].isdigit():
        _, version, *rest = rest
    endpoint = OF_MODEL.get(tuple(rest))
    if endpoint is None or (version and endpoint.category == "trace"):
        return None
    return endpoint, Target(text_of(name), version.decode())


def _find_of_repository(rest: list[bytes]) -> tuple[Endpoint, Target] | None:
    repository = b""
    if len(rest) in {2, 4}:
        repository, *rest = rest
        if not repository:
            return None
    match rest:
        case [b"index"]:
            return _INDEX, Target(repository=text_of(repository))
        case [b"models", name, action] if name and action in OF_REPOSITORY:
            return OF_REPOSITORY[action], Target(text_of(name), repository=text_of(repository))
    return None


class Router:
    """Makes the route of a request head."""

    def __init__(self, api: Api) -> None:
        """Prepare.

        Raises:
            InvalidArgument: the restricted APIs contradict themselves or the routes.
        """
        self._api = api
        self._cors = CorsPolicy(api.options.cors_origins)
        self._restrictions = _by_category(api.options.restricted_apis)

    def resolve(self, head: RequestHead) -> Route:
        """Return what answers requests with this head."""
        found = find(head.path)
        head.reply_end = self._cors.headers_for(head) + head.reply_end
        if found is None:
            return self._refusal(404, f"Not Found: there is no route '{text_of(head.path)}'")
        endpoint, target = found
        if self._cors.is_preflight(head):
            return FixedRoute(self._api.options.max_input_size, 200, b"", self._cors.preflight_headers(head))
        restriction = self._restrictions.get(endpoint.category)
        if restriction is not None and head.text(restriction.header.lower().encode()) != restriction.value:
            return self._refusal(403, f"This API is restricted, expecting header '{restriction.header}'")
        if head.method not in endpoint.methods:
            allowed = b", ".join(endpoint.methods)
            text = f"Method Not Allowed: {head.method.decode()}, expecting {allowed.decode()}"
            return self._refusal(405, text, b"Allow: %s\r\n" % allowed)
        if isinstance(endpoint.answer, type):
            route: Route = endpoint.answer(self._api, head, target)
            return route
        has_files = endpoint.answer is control.load
        max_body_size = self._api.options.max_input_size if has_files else MAX_CALL_SIZE
        return CallRoute(self._api, endpoint.answer, target, max_body_size)

    def _refusal(self, status: int, message: str, headers: bytes = b"") -> Route:
        return FixedRoute(self._api.options.max_input_size, status, error_body(message), JSON + headers)


def _by_category(groups: Iterable[tuple[tuple[str, ...], str, str]]) -> dict[str, Restriction]:
    """Return the restriction of every category that has one.

    Raises:
        InvalidArgument: a category is unknown, or is restricted twice.
    """
    restrictions: dict[str, Restriction] = {}
    for restriction in (Restriction(*group) for group in groups):
        for category in restriction.categories:
            if category not in CATEGORIES:
                known = ", ".join(sorted(CATEGORIES))
                raise InvalidArgument(f"unknown restricted api '{category}', expected one of {known}")
            if category in restrictions:
                raise InvalidArgument(f"restricted api '{category}' belongs to several groups, expected one")
            restrictions[category] = restriction
    return restrictions


class FixedRoute(Route):
    """Answers the same whatever the body."""

    __slots__ = ("_body", "_headers", "_status")

    is_final = True

    def __init__(self, max_body_size: int, status: int, body: bytes, headers: bytes) -> None:
        super().__init__(max_body_size)
        self._status = status
        self._body = body
        self._headers = headers

    def handle(self, exchange: Exchange) -> None:
        """Answer."""
        exchange.reply(self._status, self._body, self._headers)


class CallRoute(Route):
    """Answers through a handler function."""

    __slots__ = ("_answer", "_api", "_target")

    def __init__(self, api: Api, answer: Answer, target: Target, max_body_size: int) -> None:
        super().__init__(max_body_size)
        self._api = api
        self._answer = answer
        self._target = target

    def refuse_size(self, size: int) -> RefusedRequest:
        """Name the limit that a body of ``size`` bytes passes."""
        if self.max_body_size != MAX_CALL_SIZE:
            return super().refuse_size(size)
        return RefusedRequest(
            413, f"request body of {size} bytes exceeds the {MAX_CALL_SIZE} bytes that this route takes"
        )

    def handle(self, exchange: Exchange) -> None:
        """Call the handler."""
        self._answer(Call(self._api, exchange, self._target))
