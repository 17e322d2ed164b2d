"""What the tests of the gRPC handlers share: calls by name, with the messages that the .proto file says."""

from __future__ import annotations

import asyncio
import inspect
from typing import Any

from bireme.frontend.grpc.health import HealthWatch
from bireme.frontend.grpc.methods import STREAM_METHODS, UNARY_METHODS
from bireme.wire.grpc import message_class, pool


class FakeApi:
    """As much of a GrpcApi as the handlers look at."""

    def __init__(self, server: Any) -> None:
        self.server = server
        self.health_watch = HealthWatch(server)


class FakeStream:
    """A streaming call that remembers what its handler does to it."""

    def __init__(self) -> None:
        self.sent: list[Any] = []
        self.ending: Any = None
        """None while the call is open; "finished", or the status and text of its error."""

    def send(self, message):
        assert self.ending is None
        self.sent.append(message)

    def finish(self):
        assert self.ending is None
        self.ending = "finished"

    def fail(self, status, text):
        assert self.ending is None
        self.ending = (status, text)


def ask(server: Any, path: str, /, **fields: Any) -> Any:
    """Call a unary method (``ServerLive``, ``/service/Method``) that answers at once.

    Its messages have the types of the .proto file.
    """
    answer = _handle(server, path, fields)
    assert not inspect.isawaitable(answer)
    return _received(answer, path)


async def ask_later(server: Any, path: str, /, **fields: Any) -> Any:
    """Call a unary method that takes its time."""
    return _received(await _handle(server, path, fields), path)


def ask_blocking(server: Any, path: str, /, **fields: Any) -> Any:
    """`ask_later`, on a loop of its own."""
    return asyncio.run(ask_later(server, path, **fields))


def open_stream(api: Any, path: str) -> tuple[Any, FakeStream]:
    """Open a streaming call; return its handler, and its stream."""
    stream = FakeStream()
    return STREAM_METHODS[path.encode()].open(api, stream), stream


def make_message(full_name: str, **fields: Any) -> Any:
    """Make a message; a map's values are the fields of its messages, which not every protobuf makes itself."""
    maps = {key: value for key, value in fields.items() if isinstance(value, dict)}
    message = message_class(full_name)(**{key: value for key, value in fields.items() if key not in maps})
    for key, entries in maps.items():
        held = getattr(message, key)
        for name, values in entries.items():
            held[name].MergeFrom(type(held[name])(**values))
    return message


def declaration(path: str) -> Any:
    """The descriptor of a method."""
    _, service, method = path.split("/")
    return pool().FindServiceByName(service).methods_by_name[method]


def _handle(server: Any, path: str, fields: dict[str, Any]) -> Any:
    method = UNARY_METHODS[_full(path).encode()]
    request = make_message(method.request, **fields)
    return method.handle(FakeApi(server), type(request).FromString(request.SerializeToString()))


def _received(answer: Any, path: str) -> Any:
    assert answer.DESCRIPTOR.full_name == declaration(_full(path)).output_type.full_name
    return type(answer).FromString(answer.SerializeToString())


def _full(path: str) -> str:
    return path if path.startswith("/") else f"/inference.GRPCInferenceService/{path}"
