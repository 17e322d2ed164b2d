"""``ModelStreamInfer``: any number of requests and responses on one call.

Requests begin in the order of their messages. Responses of models with one response each leave in that order, too, across
models; those of decoupled models leave as they come. What is wrong with one request is a message, and the stream goes on;
in strict mode (metadata ``triton_grpc_error: true``) an inference that fails ends the call with its status.

Source: Triton ``stream_infer_handler.cc``, ``infer_handler.h`` (``GrpcErrorTracker``).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Coroutine
from typing import Any, Final

from bireme.engine.model import Model
from bireme.frontend import on_demand
from bireme.frontend.grpc.api import GrpcApi
from bireme.frontend.grpc.call import Call, Route
from bireme.frontend.grpc.connection import GrpcConnection
from bireme.frontend.grpc.infer import (
    SHUTTING_DOWN,
    check_accepting,
    decode,
    is_heavy_to_decode,
    pack,
)
from bireme.frontend.inference import INLINE_INFLATE_SIZE, check_bytes, complete, has_large_bytes
from bireme.frontend.pace import Pace
from bireme.frontend.work import INTERNAL_ERROR
from bireme.telemetry.log import get_logger
from bireme.telemetry.tracing import GRPC
from bireme.types import BiremeError, Buffer, InferenceRequest, InferenceResponse
from bireme.wire.grpc import (
    EncodedMessage,
    UnreadableMessage,
    encode_infer_response,
    encode_stream_error,
    encode_stream_final,
    peek_request_id,
)
from bireme.wire.grpc.status import Refusal, Status
from bireme.wire.http2 import Receiver, RequestHead, Stream

log = get_logger(__name__)

_STRICT: Final = (b"triton_grpc_error", b"true")
_MESSAGE_OVERHEAD: Final = 512
"""Bytes that a message costs beside its own, as long as it waits or is in the engine."""


class StreamInferRoute(Route):
    """``ModelStreamInfer``."""

    __slots__ = ("_api", "is_strict")

    def __init__(self, api: GrpcApi, head: RequestHead) -> None:
        super().__init__(head.path, api.options.max_message_size)
        self._api = api
        self.is_strict = _STRICT in head.headers

    def open(self, connection: GrpcConnection, stream: Stream) -> Receiver:
        """Begin a call."""
        return StreamInferCall(self._api, connection, stream, self)


class _Item:
    """One request of a stream, and those of its responses that wait for their turn."""

    __slots__ = (
        "call",
        "expected",
        "is_complete",
        "is_decoupled",
        "is_encoding",
        "model",
        "num_held",
        "num_ready_bytes",
        "pace",
        "ready",
        "request",
    )

    def __init__(self, call: StreamInferCall, num_held: int) -> None:
        self.call = call
        self.num_held = num_held
        """Bytes of its message that count as received memory."""
        self.expected = 0
        """Bytes of the response that the connection expects of it."""
        self.request: InferenceRequest | None = None
        self.model: Model | None = None
        self.is_decoupled = False
        self.is_complete = False
        """Whether its last response has come."""
        self.is_encoding = False
        """Whether a response is being completed, so that later ones must wait."""
        self.ready: deque[EncodedMessage | bytes] = deque()
        self.num_ready_bytes = 0
        self.pace = Pace(call.api.options.max_unsent_bytes)

    def respond(self, request: InferenceRequest, response: InferenceResponse) -> None:
        """Take a response of the engine; never raises."""
        self.call.take_response(self, request, response)


def _size_of(encoded: EncodedMessage | bytes) -> int:
    return len(encoded) if isinstance(encoded, bytes) else encoded.nbytes


class StreamInferCall(Call):
    """One ``ModelStreamInfer``."""

    __slots__ = (
        "_decoded",
        "_has_ended",
        "_inbox",
        "_is_beginning",
        "_is_draining",
        "_is_strict",
        "_items",
        "_max_items",
        "_order",
    )

    def __init__(
        self, api: GrpcApi, connection: GrpcConnection, stream: Stream, route: StreamInferRoute
    ) -> None:
        super().__init__(api, connection, stream, route)
        self._is_strict = route.is_strict
        self._max_items = api.options.max_held_requests
        self._inbox: deque[tuple[Buffer, bool, int]] = deque()
        """Messages that have not begun: whether they are compressed, and the memory that they count for."""
        self._is_beginning = False
        """Whether a request is on its way to the engine; those behind it wait, to keep their order."""
        self._is_draining = False
        self._items: dict[_Item, None] = {}
        """Requests that are not over."""
        self._order: deque[_Item] = deque()
        """Those of them with one response, in the order in which the responses leave."""
        self._has_ended = False
        """Whether the client has sent its last message."""
        self._decoded: tuple[_Item, InferenceRequest, Buffer] | None = None
        """A request that waits for the client to take earlier responses, and its message."""

    # Requests in

    def take_message(self, message: Buffer, is_compressed: bool) -> None:  # noqa: FBT001
        """Begin a request, or keep it until its turn."""
        size = len(message)
        if not self.hold(
            size + _MESSAGE_OVERHEAD - self._num_held
        ):  # what was received in place has been counted
            return
        self.bytes_in += size
        num_held, self._num_held = self._num_held, 0
        self._inbox.append((message, is_compressed, num_held))
        self._begin_waiting()

    def take_end(self) -> None:
        """Take the end of the requests; the call goes on until all of them are answered."""
        self._has_ended = True
        self._end_if_over()

    def resume(self) -> None:
        """Begin one request, or go on with it, whether others wait or not; then what may follow."""
        if self._decoded is None:
            self._begin_next()
        else:
            (item, request, message), self._decoded = self._decoded, None
            try:
                self._submit(item, request, message, is_admitted=True)
            except Exception as error:  # noqa: BLE001 (answered, and logged if it was not foreseen)
                self._refuse_item(item, message, error)
        self._begin_waiting()

    def _begin_waiting(self) -> None:
        """Begin the requests whose turn it is. End the call if nothing is left of it."""
        inbox = self._inbox
        while inbox and not self._must_wait and len(self._items) < self._max_items:
            if not self.connection.may_begin():
                self.connection.wait(self, 0)
                return
            self._begin_next()
        self._end_if_over()

    def _begin_next(self) -> None:
        message, is_compressed, num_held = self._inbox.popleft()
        item = _Item(self, num_held)
        self._items[item] = None
        # Responses may come within the call: they must find that what is behind waits, or each would begin the next.
        self._is_beginning = True
        self._begin(message, item, is_compressed=is_compressed)

    @property
    def _must_wait(self) -> bool:
        """Whether a request in front of those that have not begun holds them up."""
        return self._is_beginning or self.is_waiting or self.is_done

    def _begin(self, message: Buffer, item: _Item, *, is_compressed: bool) -> None:
        try:
            check_accepting(self.api)
            if is_compressed and len(message) > INLINE_INFLATE_SIZE:
                self._prepare(self._decode(item, message, is_compressed=True))
                return
            if is_compressed:
                message = self._hold_plain(item, self.inflate(message))
            if is_heavy_to_decode(message):
                self._prepare(self._decode(item, message, is_compressed=False))
                return
            self._submit(item, decode(self.api, self.route, message, item.respond), message)
        except Exception as error:  # noqa: BLE001 (answered, and logged if it was not foreseen)
            self._refuse_item(item, message, error)

    def _prepare(self, work: Coroutine[Any, Any, None]) -> None:
        self.work = self.api.spawn_preparation(self, work)

    def _hold_plain(self, item: _Item, message: Buffer) -> Buffer:
        """Count an inflated message, too.

        Raises:
            Refusal: there is no room for it.
        """
        self.connection.memory.take(len(message))
        item.num_held += len(message)
        return message

    async def _decode(self, item: _Item, message: Buffer, *, is_compressed: bool) -> None:
        """Do in a thread what would hold up the loop, then go on as usual."""
        try:
            if is_compressed:
                message = self._hold_plain(item, await self.api.in_thread(self.inflate, message))
            request = await self.api.in_thread(decode, self.api, self.route, message, item.respond)
            self._submit(item, request, message)
        except Exception as error:  # noqa: BLE001 (answered, and logged if it was not foreseen)
            self._refuse_item(item, message, error)
        self._begin_waiting()

    def _submit(
        self, item: _Item, request: InferenceRequest, message: Buffer, *, is_admitted: bool = False
    ) -> None:
        server = self.api.server
        if server.on_demand is not None and on_demand.must_wait(server, request.model_name):
            self._prepare(self._load_first(item, request, message))
            return
        model = server.model(request.model_name, request.model_version)
        expected = self.api.expected_size(self.connection.answer_sizes, request.model_name)
        if not is_admitted and not self.connection.admits(expected):
            self._decoded = (item, request, message)
            self.connection.wait(self, expected)
            return
        self.connection.expect(expected)
        item.expected = expected
        item.request = request
        item.model = model
        item.is_decoupled = model.is_decoupled
        if not item.is_decoupled:
            self._order.append(item)
        if has_large_bytes(self.api.server, request, message):
            self._prepare(self._submit_bytes(item, request))
            return
        self._give(request)

    async def _load_first(self, item: _Item, request: InferenceRequest, message: Buffer) -> None:
        try:
            await on_demand.wait(self.api.server, request)
            self._submit(item, request, message)
        except Exception as error:  # noqa: BLE001 (answered, and logged if it was not foreseen)
            self._refuse_item(item, message, error)
        self._begin_waiting()

    async def _submit_bytes(self, item: _Item, request: InferenceRequest) -> None:
        try:
            item.model = await check_bytes(self.api, self.api.server, request)
            self._give(request)
        except Exception as error:  # noqa: BLE001 (answered, and logged if it was not foreseen)
            self._refuse_item(item, b"", error)
        self._begin_waiting()

    def _give(self, request: InferenceRequest) -> None:
        server = self.api.server
        if server.tracing.is_on:
            server.tracing.offer(request, GRPC, self.route.caller)
        server.submit(request)
        self._is_beginning = False

    def _refuse_item(self, item: _Item, message: Buffer, error: Exception) -> None:
        """Tell what is wrong with a request that did not reach its model."""
        if self.is_done or isinstance(error, (Refusal, UnreadableMessage)):
            self.take_error(error)  # what follows such a message cannot be trusted
            return
        if item.request is not None:
            request_id = item.request.id
        else:
            request_id = peek_request_id(message)
            self._order.append(item)
        item.is_complete = True
        told = encode_stream_error(self._text_of(error), id=request_id)
        item.ready.append(told)
        item.num_ready_bytes += len(told)
        self._send_ready(item)
        self._is_beginning = False

    def _text_of(self, error: Exception) -> str:
        if isinstance(error, BiremeError):
            return error.message
        log.error("%r failed", self, exc_info=error)
        return INTERNAL_ERROR

    # Responses out

    def take_response(self, item: _Item, request: InferenceRequest, response: InferenceResponse) -> None:
        """Send a response, now or when its turn has come; never raises."""
        item.is_complete = response.final
        if self.is_done:
            return
        encoded: EncodedMessage | bytes | None
        try:
            if response.error is not None:
                encoded = self._tell(response.error, request, is_final=response.final)
            else:
                encoded = self._encode(item, request, response)
        except Exception as error:  # noqa: BLE001 (the engine must not be told of it: the client is)
            encoded = self._tell(error, request, is_final=response.final)
        if encoded is not None:
            item.ready.append(encoded)
            item.num_ready_bytes += _size_of(encoded)
        self._send_ready(item)

    def _tell(self, error: Exception, request: InferenceRequest, *, is_final: bool) -> bytes | None:
        """Return the message that tells of an inference's error; None: the error has ended the call."""
        if self._is_strict:
            self.take_error(error)
            return None
        return encode_stream_error(
            self._text_of(error),
            id=request.id,
            model_name=request.model_name,
            model_version=request.model_version,
            final=is_final,
        )

    def _encode(
        self, item: _Item, request: InferenceRequest, response: InferenceResponse
    ) -> EncodedMessage | bytes | None:
        """Return what to send for ``response``; None: nothing."""
        if response.flag_only and not response.parameters:
            if not request.context.empty_final:
                return None
            return encode_stream_final(
                id=request.id, model_name=request.model_name, model_version=request.model_version
            )
        model = item.model
        assert model is not None
        encoded = encode_infer_response(
            response,
            request.context,
            model.labels,
            has_batch_dim=model.max_batch_size > 0,
            final=response.final,
            stream=True,
        )
        self.api.note_answer(self.connection.answer_sizes, request.model_name, encoded.nbytes)
        return encoded

    def _send_ready(self, item: _Item) -> None:
        """Send the responses whose turn has come, those of ``item`` and of what stood behind it; begin what may begin then."""
        if item.is_decoupled:
            self._send_item(item)
            self._keep_pace(item)
        else:
            order = self._order
            while order and self._send_item(order[0]):
                order.popleft()
        self._begin_waiting()

    def _send_item(self, item: _Item) -> bool:
        """Send what is ready of ``item``; return whether it is over, and the call is not."""
        ready = item.ready
        while ready and not item.is_encoding and not self.is_done:
            encoded = ready.popleft()
            item.num_ready_bytes -= _size_of(encoded)
            if self.stream.unsent_size > self.api.options.max_unsent_bytes and item.is_decoupled:
                # The others were begun with room for their response; such a model goes on and on.
                self.take_error(Refusal(Status.RESOURCE_EXHAUSTED, "the client reads no answers"))
            elif isinstance(encoded, bytes):
                self.send((encoded,), len(encoded))
            elif encoded.is_complete and self.route.accepted is None:
                self.send(encoded.pieces, encoded.nbytes)
            else:
                item.is_encoding = True
                self.api.spawn(self, self._finish(item, encoded))
        if self.is_done or item.is_encoding or not item.is_complete:
            return False
        self._close(item)
        return True

    def _keep_pace(self, item: _Item) -> None:
        """Have a decoupled model wait for a client that is far behind."""
        if item.request is not None and not self.is_done:
            item.pace.look(item.request, self.stream.unsent_size + item.num_ready_bytes)

    def note_taken(self) -> None:
        """Let models go on that wait for the client. Not at once: the connection is busy with its streams."""
        if any(item.pace.is_held for item in self._items):
            self.connection.loop.call_soon(self._catch_up)

    def _catch_up(self) -> None:
        for item in tuple(self._items):
            if item.pace.is_held:
                self._keep_pace(item)

    async def _finish(self, item: _Item, encoded: EncodedMessage) -> None:
        """Complete a response that takes its time, and then what waits behind it."""
        try:
            await complete(self.api, encoded)
            encoding = self.route.accepted
            packed = None if encoding is None else await pack(self.api, encoded, encoding)
            if packed is None:
                self.send(encoded.pieces, encoded.nbytes)
            else:
                self.send((packed,), len(packed), is_compressed=True)
        except BiremeError as error:
            if item.request is None:  # the call is over
                return
            told = self._tell(error, item.request, is_final=item.is_complete and not item.ready)
            if told is not None:
                self.send((told,), len(told))
        item.is_encoding = False
        self._send_ready(item)

    # The end

    def _close(self, item: _Item) -> None:
        self._items.pop(item, None)
        if item.num_held:
            self.connection.memory.give_back(item.num_held)
            item.num_held = 0
        if item.expected:
            self.connection.release(item.expected)
            item.expected = 0
        item.request = None  # breaks the cycle of item and request

    def _end_if_over(self) -> None:
        if self._items or self._inbox:
            return
        if self._has_ended:
            self.succeed()
        elif self._is_draining:
            self.fail(Status.UNAVAILABLE, SHUTTING_DOWN)

    def give_up(self) -> None:
        """Take back every request that is not over."""
        super().give_up()
        for item in tuple(self._items):
            if item.request is not None and not item.is_complete:
                self.api.server.cancel(item.request)

    def drain(self) -> None:
        """End the call as soon as no request of it is under way."""
        self._is_draining = True
        self._end_if_over()

    def _settle(self) -> None:
        memory = self.connection.memory
        for item in tuple(self._items):
            self._close(item)
        for _, _, num_held in self._inbox:
            memory.give_back(num_held)
        self._inbox.clear()
        self._order.clear()
        self._decoded = None
        super()._settle()
