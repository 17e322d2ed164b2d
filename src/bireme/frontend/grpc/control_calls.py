"""Calls beside inference: parse the one message or each, run the method's handler, serialise what it returns.

Source: the methods themselves are in `methods`.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

from google.protobuf.message import DecodeError

from bireme.frontend.grpc.api import GrpcApi
from bireme.frontend.grpc.call import Call, Route, UnaryCall
from bireme.frontend.grpc.connection import GrpcConnection
from bireme.frontend.grpc.methods import StreamHandler, StreamMethod, UnaryMethod
from bireme.types import Buffer
from bireme.wire.grpc import UnreadableMessage, message_class
from bireme.wire.grpc.status import Refusal, Status
from bireme.wire.http2 import Receiver, Stream

_MAX_UNSENT_BYTES = 1 << 20
"""Bytes of answers that a client leaves unread on a stream beside inference before the stream ends."""


class MethodRoute(Route):
    """A method with one answer."""

    __slots__ = ("api", "method")

    def __init__(self, api: GrpcApi, path: bytes, method: UnaryMethod) -> None:
        super().__init__(path, method.max_message_size or api.options.max_message_size)
        self.api = api
        self.method = method

    def open(self, connection: GrpcConnection, stream: Stream) -> Receiver:
        """Begin a call."""
        return MethodCall(self.api, connection, stream, self)


class MethodCall(UnaryCall):
    """One call of a method with one answer."""

    __slots__ = ("_method",)

    def __init__(self, api: GrpcApi, connection: GrpcConnection, stream: Stream, route: MethodRoute) -> None:
        super().__init__(api, connection, stream, route)
        self._method = route.method

    def begin(self, message: Buffer) -> None:
        """Run the handler."""
        result = self._method.handle(self.api, parse(self._method.request, message))
        if isinstance(result, Coroutine):
            # Not `work`: a load goes on when its client leaves.
            self.api.spawn(self, self._await(result))
        else:
            self._reply(result)

    async def _await(self, result: Coroutine[Any, Any, Any]) -> None:
        self._reply(await result)

    def _reply(self, result: Any) -> None:
        data: bytes = result.SerializeToString()
        self.answer((data,), len(data))


class StreamRoute(Route):
    """A method with any number of answers."""

    __slots__ = ("api", "method")

    def __init__(self, api: GrpcApi, path: bytes, method: StreamMethod) -> None:
        super().__init__(path, method.max_message_size)
        self.api = api
        self.method = method

    def open(self, connection: GrpcConnection, stream: Stream) -> Receiver:
        """Begin a call."""
        return StreamCall(self.api, connection, stream, self)


class StreamCall(Call):
    """One call of a method with any number of answers: the `MessageStream` of its handler."""

    __slots__ = ("_handler", "_request")

    def __init__(self, api: GrpcApi, connection: GrpcConnection, stream: Stream, route: StreamRoute) -> None:
        super().__init__(api, connection, stream, route)
        self._request = route.method.request
        self._handler: StreamHandler | None = None
        self._handler = route.method.open(api, _Messages(self))

    def take_message(self, message: Buffer, is_compressed: bool) -> None:  # noqa: FBT001
        """Hand a message to the handler. They are small, so a compressed one is inflated at once."""
        self.bytes_in += len(message)
        try:
            plain = self.inflate(message) if is_compressed else message
            assert self._handler is not None
            self._handler.take(parse(self._request, plain))
        except Exception as error:  # noqa: BLE001 (answered, and logged if it was not foreseen)
            self.take_error(error)

    def take_end(self) -> None:
        """Tell the handler."""
        try:
            assert self._handler is not None
            self._handler.end()
        except Exception as error:  # noqa: BLE001 (answered, and logged if it was not foreseen)
            self.take_error(error)

    def give_up(self) -> None:
        """Tell the handler that nobody listens any more."""
        super().give_up()
        if self._handler is not None:
            self._handler.cancel()

    def _settle(self) -> None:
        super()._settle()
        self._handler = None  # breaks the cycle of the two

    def drain(self) -> None:
        """End the call: such streams have no end of their own."""
        self.take_error(Refusal(Status.UNAVAILABLE, "Server exiting"))

    def send_message(self, message: Any) -> None:
        """Send a message; a client that reads none of many is cut off."""
        if self.is_done:
            return
        if self.stream.unsent_size > _MAX_UNSENT_BYTES:
            self.take_error(Refusal(Status.RESOURCE_EXHAUSTED, "the client reads no answers"))
            return
        data: bytes = message.SerializeToString()
        self.send((data,), len(data))


class _Messages:
    """What a handler sees of its call."""

    __slots__ = ("_call",)

    def __init__(self, call: StreamCall) -> None:
        self._call = call

    def send(self, message: Any) -> None:
        """Send one message."""
        self._call.send_message(message)

    def finish(self) -> None:
        """End the call well."""
        self._call.succeed()

    def fail(self, status: Status, text: str) -> None:
        """End the call with an error."""
        self._call.fail(status, text)


def parse(name: str, message: Buffer) -> Any:
    """Return the protobuf message ``name`` in ``message``.

    Raises:
        UnreadableMessage: there is none.
    """
    try:
        return message_class(name).FromString(bytes(message))
    except DecodeError as error:
        raise UnreadableMessage(str(error)) from None
