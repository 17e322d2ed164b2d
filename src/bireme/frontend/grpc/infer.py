"""``ModelInfer``, and what it shares with ``ModelStreamInfer``.

For the usual request `InferCall.begin` is all there is between the connection and the engine, and `InferCall.respond` all
there is on the way back; both are plain calls, without a task or a future. What takes longer than a loop may be held up
(compressed messages, many typed values or strings, classification of large outputs) awaits threads or the next turn.

Source: Triton ``infer_handler.cc`` (``ModelInferHandler``).
"""

from __future__ import annotations

from typing import Final

from bireme.engine.validation import MAX_INLINE_BYTES
from bireme.frontend import on_demand
from bireme.frontend.grpc.api import GrpcApi
from bireme.frontend.grpc.call import Route, UnaryCall
from bireme.frontend.grpc.connection import GrpcConnection
from bireme.frontend.inference import INLINE_DEFLATE_SIZE, check_bytes, complete, has_large_bytes
from bireme.telemetry.tracing import GRPC
from bireme.types import (
    Buffer,
    InferenceRequest,
    InferenceResponse,
    Internal,
    Respond,
    Unavailable,
    Unsupported,
)
from bireme.wire.grpc import EncodedMessage, decode_infer_request, encode_infer_response, head_size
from bireme.wire.grpc.compression import Encoding, compress
from bireme.wire.http2 import Receiver, Stream

SHUTTING_DOWN: Final = "GRPC server is shutting down and has stopped accepting new requests."
_DECOUPLED = "ModelInfer RPC doesn't support models with decoupled transaction policy; ModelStreamInfer does"


class InferRoute(Route):
    """``ModelInfer``."""

    __slots__ = ("_api",)

    def __init__(self, api: GrpcApi, path: bytes) -> None:
        super().__init__(path, api.options.max_message_size)
        self._api = api

    def open(self, connection: GrpcConnection, stream: Stream) -> Receiver:
        """Begin a call."""
        return InferCall(self._api, connection, stream, self)


class InferCall(UnaryCall):
    """One ``ModelInfer``."""

    __slots__ = ()

    def begin(self, message: Buffer) -> None:
        """Hand the request to the engine; `respond` is called with the response."""
        check_accepting(self.api)
        if is_heavy_to_decode(message):
            self.work = self.api.spawn_preparation(self, self._decode(message))
        else:
            self._submit(decode(self.api, self.route, message, self.respond), message)

    def resume(self) -> None:
        """Begin, or go on with a request that is decoded and had to wait for the client to take earlier answers."""
        if self.request is None:
            super().resume()
            return
        message, self._message = self._message, None
        assert message is not None
        try:
            self._submit(self.request, message, is_admitted=True)
        except Exception as error:  # noqa: BLE001 (answered, and logged if it was not foreseen)
            self.take_error(error)

    def _submit(self, request: InferenceRequest, message: Buffer, *, is_admitted: bool = False) -> None:
        server = self.api.server
        if server.on_demand is not None and on_demand.must_wait(server, request.model_name):
            self.work = self.api.spawn_preparation(self, self._load_first(request, message))
            return
        model = server.model(request.model_name, request.model_version)
        if model.is_decoupled:
            raise Unsupported(_DECOUPLED)
        # Before the request is given away: it may be answered within the call.
        self.request = request
        self.model = model
        expected = self.api.expected_size(self.connection.answer_sizes, request.model_name)
        if not is_admitted and not self.connection.admits(expected):
            self._message = message
            self.connection.wait(self, expected)
            return
        self.connection.expect(expected)
        self._num_expected = expected
        if has_large_bytes(self.api.server, request, message):
            self.work = self.api.spawn_preparation(self, self._submit_bytes(request))
            return
        if server.tracing.is_on:
            server.tracing.offer(request, GRPC, self.route.caller, self.start_ns)
        server.submit(request)

    async def _decode(self, message: Buffer) -> None:
        self._submit(await self.api.in_thread(decode, self.api, self.route, message, self.respond), message)

    async def _load_first(self, request: InferenceRequest, message: Buffer) -> None:
        await on_demand.wait(self.api.server, request)
        self._submit(request, message)

    async def _submit_bytes(self, request: InferenceRequest) -> None:
        server = self.api.server
        self.model = await check_bytes(self.api, server, request)
        if server.tracing.is_on:
            server.tracing.offer(request, GRPC, self.route.caller, self.start_ns)
        server.submit(request)

    def respond(self, request: InferenceRequest, response: InferenceResponse) -> None:
        """Send the engine's response; never raises."""
        if self.is_done:
            return
        try:
            if response.error is not None:
                self.take_error(response.error)
                return
            if not response.final:
                raise Internal("expected a single response, got more than one")
            model = self.model
            assert model is not None
            encoded = encode_infer_response(
                response, request.context, model.labels, has_batch_dim=model.max_batch_size > 0
            )
            self.api.note_answer(self.connection.answer_sizes, request.model_name, encoded.nbytes)
            if encoded.is_complete and self.route.accepted is None:
                self.answer(encoded.pieces, encoded.nbytes)
            else:
                self.work = self.api.spawn(self, self._finish(encoded))
        except Exception as error:  # noqa: BLE001 (the engine must not be told of it: the client is)
            self.take_error(error)

    async def _finish(self, encoded: EncodedMessage) -> None:
        await complete(self.api, encoded)
        encoding = self.route.accepted
        if encoding is None:
            self.answer(encoded.pieces, encoded.nbytes)
            return
        packed = await pack(self.api, encoded, encoding)
        if packed is None:
            self.answer(encoded.pieces, encoded.nbytes, encoding, is_plain=True)
        else:
            self.answer((packed,), len(packed), encoding)


# Shared with streams


def check_accepting(api: GrpcApi) -> None:
    """Refuse new inferences while the server is shutting down.

    Raises:
        Unavailable: it is.
    """
    # Sequences that have begun go on: the engine knows them, and refuses all else.
    if not api.is_accepting and not api.server.has_sequences:
        raise Unavailable(SHUTTING_DOWN)


def is_heavy_to_decode(message: Buffer) -> bool:
    """Whether ``message`` has so much that is no raw tensor that it belongs on a thread."""
    return len(message) > MAX_INLINE_BYTES and head_size(message) > MAX_INLINE_BYTES


def decode(api: GrpcApi, route: Route, message: Buffer, respond: Respond) -> InferenceRequest:
    """Return the request in ``message``, with forwarded metadata among its parameters; on any thread.

    Raises:
        BiremeError: as `decode_infer_request`.
    """
    request = decode_infer_request(message, respond, regions=api.server.shared_memory)
    if route.forwarded is not None:
        request.parameters = {**(request.parameters or {}), **route.forwarded}
    return request


async def pack(api: GrpcApi, encoded: EncodedMessage, encoding: Encoding) -> bytes | None:
    """Return a response compressed; None if that gains nothing."""
    if encoded.nbytes <= INLINE_DEFLATE_SIZE:
        packed = compress(encoded.pieces, encoding)
    else:
        packed = await api.in_thread(compress, encoded.pieces, encoding)
    return packed if len(packed) < encoded.nbytes else None
