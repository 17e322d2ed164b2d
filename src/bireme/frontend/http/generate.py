"""``POST /v2/models/{M}[/versions/{V}]/generate`` and ``…/generate_stream``: flat JSON in, flat JSON or events out.

`GenerateRoute` brings a request to the engine and answers it when its model has sent exactly one response.
`GenerateStreamRoute` answers with an event for every response, as they come (`event_stream`).

Source: Triton ``http_server.cc`` (``HandleGenerate``, ``GenerateRequestClass``).
"""

from __future__ import annotations

import asyncio
import time
from typing import Final

from bireme.engine.request_deadlines import REQUEST_PARAMETER
from bireme.frontend import on_demand
from bireme.frontend.http.api import Api
from bireme.frontend.http.event_stream import EventStream
from bireme.frontend.http.exchange import JSON, STATUS_LINES, Exchange, Route
from bireme.frontend.http.head import RequestHead
from bireme.frontend.http.target import Target
from bireme.frontend.inference import check_bytes, complete, has_large_bytes
from bireme.frontend.memory import allocate_body
from bireme.ipc import json_offload
from bireme.ipc.segment import Segment
from bireme.telemetry.tracing import HTTP
from bireme.types import (
    BiremeError,
    InferenceRequest,
    InferenceResponse,
    Internal,
    InvalidArgument,
    Parameter,
    Respond,
)
from bireme.wire.encoded import Encoded
from bireme.wire.http import (
    PEEK_OVERLAP,
    decode_generate_request,
    decode_rewritten,
    describe_inputs,
    encode_generate_response,
    peek_number,
)

_OK_JSON: Final = STATUS_LINES[200] + JSON
_PEEK_SIZE: Final = 1 << 20
"""Bytes that are searched between two turns of the loop, 1 ms at most."""
_NOT_ONE: Final = (
    "generate expects model to produce exactly 1 response, use generate stream for model that generates various number "
    "of responses"
)


class GenerateRoute(Route):
    """One JSON object in, one out."""

    __slots__ = ("_api", "_caller", "_fault", "_is_encoded", "_model_name", "_version")

    def __init__(self, api: Api, head: RequestHead, target: Target) -> None:
        super().__init__(api.options.max_input_size)
        self._api = api
        self._model_name = target.model
        self._version = -1
        self._caller = api.server.tracing.read_context(head.fields)
        self._fault: BiremeError | None = None
        self._is_encoded = head.fields.get(b"content-encoding", b"").strip().lower() not in (b"", b"identity")
        try:
            self._version = target.version_number
        except BiremeError as error:
            self._fault = error

    def allocate(self, size: int) -> memoryview:
        """Return memory for a body: a segment when another process will parse it."""
        return memoryview(Segment.allocate(size)) if self._is_offloaded(size) else allocate_body(size)

    def _is_offloaded(self, size: int) -> bool:
        return json_offload.IS_SUPPORTED and size > self._api.options.offload_size

    # The way in

    def handle(self, exchange: Exchange) -> None:
        """Hand the request to the engine."""
        if self._fault is not None:
            raise self._fault
        api = self._api
        if on_demand.must_wait(api.server, self._model_name):
            exchange.work = api.spawn_preparation(exchange, self._load_first(exchange))
        else:
            self._take(exchange)

    def _take(self, exchange: Exchange, waited: InferenceRequest | None = None) -> None:
        """Hand the request to the engine; ``waited`` has waited for the model in its place."""
        api, body = self._api, exchange.body
        model = api.server.model(self._model_name, self._version)
        if self._is_encoded:
            raise InvalidArgument("Unsupported content-encoding, only 'identity' is supported.")
        if self._is_offloaded(len(body)):
            exchange.work = api.spawn_preparation(exchange, self._prepare(exchange, waited))
            return
        request = decode_generate_request(
            body,
            model.inputs,
            model_name=self._model_name,
            model_version=self._version,
            respond=self._responder(exchange),
            limits=api.limits,
        )
        self._submit(exchange, request, waited)

    async def _load_first(self, exchange: Exchange) -> None:
        """Wait for the model, as what a request means depends on its inputs; within its deadline, which is plain to see."""
        server, body, start_ns = self._api.server, exchange.body, time.monotonic_ns()
        on_demand.begin(server, self._model_name)
        asked = None
        for start in range(0, len(body), _PEEK_SIZE):
            asked = peek_number(body[start : start + _PEEK_SIZE + PEEK_OVERLAP], REQUEST_PARAMETER)
            if asked is not None:
                break
            await asyncio.sleep(0)
        parameters: dict[str, Parameter] | None = {REQUEST_PARAMETER: asked} if asked is not None else None
        waited = InferenceRequest(self._model_name, {}, exchange.respond, parameters=parameters)
        await on_demand.wait(server, waited, start_ns)
        self._take(exchange, waited)

    async def _prepare(self, exchange: Exchange, waited: InferenceRequest | None) -> None:
        """Have a large body parsed by another process, then submit the request."""
        api = self._api
        model = api.server.model(self._model_name, self._version)
        inputs = describe_inputs(model.inputs)
        body, json_length = await api.offload.rewrite(exchange.body, None, self._model_name, inputs)
        exchange.body = body
        request = decode_rewritten(
            body,
            json_length,
            model_name=self._model_name,
            model_version=self._version,
            respond=self._responder(exchange),
            limits=api.limits,
        )
        if has_large_bytes(api.server, request, body):
            await check_bytes(api, api.server, request)
        self._submit(exchange, request, waited)

    def _submit(self, exchange: Exchange, request: InferenceRequest, waited: InferenceRequest | None) -> None:
        if waited is not None:
            on_demand.carry_over(waited, request)
        # Before the request is given away: it may be answered within the call.
        exchange.request = request
        server = self._api.server
        if server.tracing.is_on:
            server.tracing.offer(request, HTTP, self._caller, exchange.start_ns)
        server.submit(request)

    def _responder(self, exchange: Exchange) -> Respond:
        """Return what takes the responses of a request of this route."""
        return exchange.respond

    # The way out

    def answer(self, exchange: Exchange, request: InferenceRequest, response: InferenceResponse) -> None:
        """Wait for the end of the responses and send the only one; on the loop thread, and never raises."""
        if exchange.is_answered:  # the client has left, or there were too many
            return
        # The first response waits in the request: the end may come by itself.
        first: InferenceResponse | None = request.context
        if not response.flag_only:
            if first is not None:
                exchange.fail(Internal(_NOT_ONE))
                if not response.final:
                    self._api.server.cancel(request)  # nobody will see what it goes on to generate
                return
            first = response
        elif first is not None and response.parameters:
            first.parameters = {**(first.parameters or {}), **response.parameters}
        if not response.final:
            request.context = first
        elif first is None:
            exchange.fail(Internal(_NOT_ONE))
        else:
            self._answer(exchange, first)

    def _answer(self, exchange: Exchange, response: InferenceResponse) -> None:
        if response.error is not None:
            exchange.fail(response.error)
            return
        try:
            body = encode_generate_response(response)
            if body.is_complete:
                exchange.send(_OK_JSON, body.pieces, body.nbytes)
            else:
                exchange.work = self._api.spawn(exchange, self._finish(exchange, body))
        except Exception as error:  # noqa: BLE001 (the engine must not be told of it: the client is)
            exchange.take_error(error)

    async def _finish(self, exchange: Exchange, body: Encoded) -> None:
        await complete(self._api, body)
        exchange.send(_OK_JSON, body.pieces, body.nbytes)


class GenerateStreamRoute(GenerateRoute):
    """One JSON object in, any number of events out."""

    __slots__ = ()

    def _responder(self, exchange: Exchange) -> Respond:
        return EventStream(self._api, exchange).respond
