"""``POST /v2/models/{M}[/versions/{V}]/infer``: the route that everything else is there for.

`InferRoute` holds what the request head says: model, JSON length, encodings, forwarded headers. For the usual request
`InferRoute.handle` is all there is between the connection and the engine, and `InferRoute.answer` all there is on the
way back; both are plain calls, without a task or a future. What takes longer than a loop may be held up (compressed
bodies, large JSON in either direction) goes through `_prepare` and `_finish`, which await threads, a worker process or
the next turn of the loop.

Source: Triton ``http_server.cc`` (``HandleInfer``, ``InferRequestClass``).
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence

from bireme.engine.model import Model
from bireme.frontend import on_demand
from bireme.frontend.http.api import Api
from bireme.frontend.http.errors import status_of
from bireme.frontend.http.exchange import JSON, STATUS_LINES, Exchange, Route
from bireme.frontend.http.head import RefusedRequest, RequestHead
from bireme.frontend.http.target import Target
from bireme.frontend.inference import (
    INLINE_DEFLATE_SIZE,
    INLINE_INFLATE_SIZE,
    check_bytes,
    complete,
    has_large_bytes,
)
from bireme.frontend.memory import allocate_body
from bireme.ipc import json_offload
from bireme.ipc.segment import Segment
from bireme.telemetry.tracing import HTTP
from bireme.types import (
    BiremeError,
    Buffer,
    InferenceRequest,
    InferenceResponse,
    Internal,
    Parameter,
    Unsupported,
)
from bireme.wire.http import (
    ACCEPTED_ENCODINGS,
    EncodedBody,
    Encoding,
    choose_encoding,
    compress,
    decode_infer_request,
    decode_raw_request,
    decompress,
    encode_infer_response,
    error_body,
    parse_content_encoding,
    parse_header_length,
)
from bireme.wire.reserved_parameters import forwarded_name

_DECOUPLED = (
    "HTTP end point doesn't support models with decoupled transaction policy; generate_stream does, as does "
    "ModelStreamInfer over gRPC"
)
_OK_JSON = STATUS_LINES[200] + JSON
_OK_BINARY = (
    STATUS_LINES[200] + b"Content-Type: application/octet-stream\r\nInference-Header-Content-Length: %d\r\n"
)
_ACCEPT_ENCODING = b"Accept-Encoding: %s\r\n" % ACCEPTED_ENCODINGS.encode()


class InferRoute(Route):
    """Inference by the requests of one head."""

    __slots__ = (
        "_accepted",
        "_api",
        "_caller",
        "_encoding",
        "_fault",
        "_forwarded",
        "_header_length",
        "_is_usual",
        "_json_length",
        "_model_name",
        "_version",
    )

    def __init__(self, api: Api, head: RequestHead, target: Target) -> None:
        super().__init__(api.options.max_body_size)
        self._api = api
        self._model_name = target.model
        self._version = -1
        self._encoding: Encoding | None = None
        self._accepted = choose_encoding(head.fields.get(b"accept-encoding"))
        self._header_length = head.fields.get(b"inference-header-content-length")
        self._json_length: int | None = None
        self._forwarded: dict[str, Parameter] | None = None
        self._caller = api.server.tracing.read_context(head.fields)
        """Who the request belongs to, by its trace context."""
        self._fault: BiremeError | None = None
        """What is wrong with the head; told when the request is complete."""
        is_body_as_sent = False
        try:
            self._version = target.version_number
            self._encoding = parse_content_encoding(head.fields.get(b"content-encoding"))
            is_body_as_sent = self._encoding is None and not head.is_chunked
            if is_body_as_sent:
                self._json_length = parse_header_length(self._header_length, head.content_length)
            self._forwarded = _forwarded_headers(head, api.header_pattern)
        except BiremeError as error:
            self._fault = error
        json_size = head.content_length if self._json_length is None else self._json_length
        self._is_usual = is_body_as_sent and self._fault is None and 0 < json_size <= api.options.offload_size
        if (
            self._header_length is None
            or self._encoding is not None
            or json_size > api.options.max_input_size
        ):
            self.max_body_size = api.options.max_input_size

    # The body, while it arrives

    def allocate(self, size: int) -> memoryview:
        """Return memory for a body: a segment when another process will parse the JSON in it."""
        json_size = size if self._json_length is None else self._json_length
        if self._is_offloaded(json_size) and self._encoding is None:
            return memoryview(Segment.allocate(size))
        return allocate_body(size, tensors_at=json_size, arena=self._api.server.arena)

    def refuse_size(self, size: int) -> RefusedRequest:
        """Name the limit that a body of ``size`` bytes passes."""
        if self.max_body_size == self._api.options.max_input_size:
            return super().refuse_size(size)
        return RefusedRequest(
            413, f"request body of {size} bytes exceeds the maximum of {self.max_body_size} bytes"
        )

    def _is_offloaded(self, json_size: int) -> bool:
        return json_offload.IS_SUPPORTED and json_size > self._api.options.offload_size

    # The way in

    def handle(self, exchange: Exchange) -> None:
        """Hand the request to the engine; `answer` is called with the response."""
        server = self._api.server
        if server.on_demand is not None and on_demand.must_wait(server, self._model_name):
            exchange.work = self._api.spawn_preparation(exchange, self._load_first(exchange))
        elif self._is_usual:
            self._submit(exchange, exchange.body, self._json_length)
        else:
            exchange.work = self._api.spawn_preparation(exchange, self._prepare(exchange))

    async def _load_first(self, exchange: Exchange) -> None:
        """Wait for the model within the time that the request has; what it takes to read that is done meanwhile."""
        if self._fault is not None:
            _fail_head(exchange, self._fault)
            return
        server, json_length, start_ns = self._api.server, self._json_length, time.monotonic_ns()
        on_demand.begin(server, self._model_name)
        if not self._is_usual:
            json_length = await self._make_usual(exchange)
        if json_length != 0:
            request = self._decode(exchange, exchange.body, json_length)
            await on_demand.wait(server, request, start_ns)
        else:
            # What a raw body means depends on the model's inputs; only headers can give it a deadline.
            waited = InferenceRequest(self._model_name, {}, exchange.respond, parameters=self._forwarded)
            await on_demand.wait(server, waited, start_ns)
            model = server.model(self._model_name, self._version)
            request = self._decode_raw(exchange, exchange.body, model)
            on_demand.carry_over(waited, request)
        self._submit(exchange, exchange.body, json_length, request)

    def _decode(self, exchange: Exchange, body: Buffer, json_length: int | None) -> InferenceRequest:
        request = decode_infer_request(
            memoryview(body),
            json_length,
            model_name=self._model_name,
            model_version=self._version,
            respond=exchange.respond,
            limits=self._api.limits,
            regions=self._api.server.shared_memory,
        )
        if self._forwarded is not None:
            request.parameters = {**(request.parameters or {}), **self._forwarded}
        return request

    def _decode_raw(self, exchange: Exchange, body: Buffer, model: Model) -> InferenceRequest:
        request = decode_raw_request(
            memoryview(body),
            model.inputs,
            model_name=self._model_name,
            model_version=self._version,
            respond=exchange.respond,
            limits=self._api.limits,
        )
        if self._forwarded is not None:
            request.parameters = self._forwarded.copy()
        return request

    def _submit(
        self,
        exchange: Exchange,
        body: Buffer,
        json_length: int | None,
        request: InferenceRequest | None = None,
    ) -> None:
        """Submit ``request``, whose deadline goes on if it had to wait for its model; None: what ``body`` says."""
        api = self._api
        server = api.server
        try:
            model = server.model(self._model_name, self._version)
            if request is None:
                request = (
                    self._decode_raw(exchange, body, model)
                    if json_length == 0
                    else self._decode(exchange, body, json_length)
                )
            if model.is_decoupled:
                raise Unsupported(_DECOUPLED)
            if has_large_bytes(server, request, body):
                exchange.work = api.spawn_preparation(exchange, self._submit_bytes(exchange, request))
                return
            # Both before the request is given away: it may be answered within the call.
            exchange.request = request
            exchange.model = model
            if server.tracing.is_on:
                server.tracing.offer(request, HTTP, self._caller, exchange.start_ns)
            server.submit(request)
        except BiremeError as error:
            exchange.fail(error)

    async def _submit_bytes(self, exchange: Exchange, request: InferenceRequest) -> None:
        """Have large BYTES inputs decoded beside the loop, then give the request to the engine."""
        server = self._api.server
        model = await check_bytes(self._api, server, request)
        exchange.request = request
        exchange.model = model
        if server.tracing.is_on:
            server.tracing.offer(request, HTTP, self._caller, exchange.start_ns)
        server.submit(request)

    async def _prepare(self, exchange: Exchange) -> None:
        """Bring an unusual body into the usual form, then submit it."""
        self._api.server.model(self._model_name, self._version)  # an unknown model is not worth the work
        if self._fault is not None:
            _fail_head(exchange, self._fault)
            return
        json_length = await self._make_usual(exchange)
        self._submit(exchange, exchange.body, json_length)

    async def _make_usual(self, exchange: Exchange) -> int | None:
        """Inflate the body of ``exchange`` and have its tensors made binary, if it needs that; return its JSON's length."""
        body = exchange.body
        if self._encoding is not None:
            body = await self._inflate(body)
        json_length = parse_header_length(self._header_length, len(body))
        if self._is_offloaded(len(body) if json_length is None else json_length):
            body, json_length = await self._api.offload.rewrite(body, json_length, self._model_name)
        exchange.body = body
        return json_length

    async def _inflate(self, body: Buffer) -> bytes:
        limit = self._api.options.max_input_size
        if len(body) <= INLINE_INFLATE_SIZE:
            return decompress(body, limit)
        return await self._api.in_thread(decompress, body, limit)

    # The way out

    def answer(self, exchange: Exchange, request: InferenceRequest, response: InferenceResponse) -> None:
        """Send the engine's response; on the loop thread, and never raises."""
        if exchange.is_answered:  # the client has left
            return
        if response.error is not None:
            exchange.fail(response.error)
            return
        try:
            if not response.final:
                raise Internal("expected a single response, got more than one")
            model = exchange.model
            body = encode_infer_response(
                response, request.context, model.labels, has_batch_dim=model.max_batch_size > 0
            )
            if body.is_complete and self._accepted is None:
                _send(exchange, body.json_length, body.pieces, body.nbytes)
            else:
                exchange.work = self._api.spawn(exchange, self._finish(exchange, body))
        except Exception as error:  # noqa: BLE001 (the engine must not be told of it: the client is)
            exchange.take_error(error)

    async def _finish(self, exchange: Exchange, body: EncodedBody) -> None:
        """Complete a response that takes its time: step by step, with the loop's other work in between."""
        await complete(self._api, body)
        if self._accepted is None:
            _send(exchange, body.json_length, body.pieces, body.nbytes)
            return
        if body.nbytes <= INLINE_DEFLATE_SIZE:
            pieces = compress(body.pieces, self._accepted)
        else:
            pieces = await self._api.in_thread(compress, body.pieces, self._accepted)
        _send(exchange, body.json_length, pieces, sum(map(len, pieces)), self._accepted)


def _send(
    exchange: Exchange,
    json_length: int | None,
    pieces: Sequence[Buffer],
    size: int,
    encoding: Encoding | None = None,
) -> None:
    start = _OK_JSON if json_length is None else _OK_BINARY % json_length
    if encoding is not None:
        start += b"Content-Encoding: %s\r\n" % encoding.encode()
    exchange.send(start, pieces, size)


def _fail_head(exchange: Exchange, fault: BiremeError) -> None:
    """Answer what is wrong with the head; an unknown encoding with those that are known."""
    if isinstance(fault, Unsupported):
        exchange.reply(status_of(fault), error_body(fault.message), JSON + _ACCEPT_ENCODING)
    else:
        exchange.fail(fault)


def _forwarded_headers(head: RequestHead, pattern: re.Pattern[str] | None) -> dict[str, Parameter] | None:
    """Return the headers that become request parameters, or None.

    Raises:
        InvalidArgument: one of them is named like a parameter with a meaning.
    """
    if pattern is None:
        return None
    forwarded: dict[str, Parameter] = {}
    for raw_name, value in head.headers:
        name = raw_name.decode("latin-1")
        if pattern.search(name):
            forwarded[forwarded_name(name)] = value.decode("latin-1")
    return forwarded or None
