"""EventStream: the responses of one request as server-sent events.

The status is that of the first response; later errors are events. A client that does not read makes the model wait
(`bireme.frontend.pace`). What a model sends that cannot wait is kept up to `HttpOptions.max_unsent_bytes`, and then the
client loses its connection.

Source: WHATWG HTML, "Server-sent events"; Triton ``http_server.cc`` (``GenerateRequestClass``).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final

from bireme.frontend.http.api import Api
from bireme.frontend.http.errors import status_of
from bireme.frontend.http.exchange import RETRY_AFTER, Exchange
from bireme.frontend.inference import complete
from bireme.frontend.pace import Pace
from bireme.frontend.work import INTERNAL_ERROR
from bireme.telemetry.log import get_logger
from bireme.types import (
    BiremeError,
    Buffer,
    InferenceRequest,
    InferenceResponse,
    Internal,
    Tensor,
    Unavailable,
)
from bireme.wire.encoded import Encoded
from bireme.wire.http import encode_error_event, encode_generate_response

log = get_logger(__name__)

_HEADERS: Final = (
    b"Content-Type: text/event-stream; charset=utf-8\r\n"
    b"Cache-Control: no-cache\r\n"
    b"X-Accel-Buffering: no\r\n"  # nginx would otherwise keep events until it has some kilobytes of them
)


class EventStream:
    """The answer to one ``generate_stream`` request. Loop thread only."""

    __slots__ = ("_api", "_exchange", "_has_ended", "_is_encoding", "_num_waiting_bytes", "_pace", "_waiting")

    def __init__(self, api: Api, exchange: Exchange) -> None:
        self._api = api
        self._exchange = exchange
        self._waiting: deque[InferenceResponse] = deque()
        """Responses behind one that takes its time."""
        self._num_waiting_bytes = 0
        self._pace = Pace(api.options.max_unsent_bytes)
        self._is_encoding = False
        self._has_ended = False
        """Whether the final response has come."""

    def respond(self, request: InferenceRequest, response: InferenceResponse) -> None:
        """Send the next response, or the end; never raises."""
        exchange = self._exchange
        if exchange.is_answered:  # the client has left
            return
        try:
            self._has_ended = response.final
            if not response.flag_only or response.parameters:
                if self._is_overdue():
                    self._cut(request)
                    return
                self._waiting.append(response)
                if self._is_encoding:
                    self._num_waiting_bytes += _size_of(response)
            if not self._is_encoding:
                self._send_waiting()
            self._keep_pace()
        except Exception as error:  # noqa: BLE001 (the engine must not be told of it)
            exchange.crash(error)

    def _send_waiting(self) -> None:
        waiting = self._waiting
        while waiting:
            response = waiting.popleft()
            if response.error is not None:
                self._send_error(response.error)
                continue
            try:
                event = encode_generate_response(response, is_event=True)
            except Exception as error:  # noqa: BLE001 (the client is told, and the stream goes on)
                self._send_error(error)
                continue
            if not event.is_complete:
                self._is_encoding = True
                self._num_waiting_bytes = sum(map(_size_of, waiting))
                self._exchange.work = self._api.spawn(self._exchange, self._finish(event))
                return
            self._send(event.pieces, event.nbytes)
        if self._has_ended and not self._exchange.is_answered:
            self._send((), 0)  # the final response was but the mark

    async def _finish(self, event: Encoded) -> None:
        """Complete an event that takes its time, and then send what waits behind it."""
        try:
            await complete(self._api, event)
        except Exception as error:  # noqa: BLE001 (the client is told, and the stream goes on)
            self._send_error(error)
        else:
            self._send(event.pieces, event.nbytes)
        self._is_encoding = False
        self._num_waiting_bytes = 0
        self._send_waiting()
        self._keep_pace()

    def _keep_pace(self) -> None:
        """Have the model wait for a client that is far behind."""
        exchange, pace = self._exchange, self._pace
        if exchange.request is None:  # all is sent, or the client has left
            return
        pace.look(exchange.request, self._num_kept)
        exchange.on_room = self._keep_pace if pace.is_held else None

    def _send_error(self, error: Exception) -> None:
        """Tell of an error, by the status, too, if nothing was sent before."""
        if not isinstance(error, BiremeError):
            log.error("%r failed", self._exchange.head, exc_info=error)
            error = Internal(INTERNAL_ERROR)
        exchange = self._exchange
        exchange.error = exchange.error or error.message
        if exchange.stream is None:
            extra = RETRY_AFTER if isinstance(error, Unavailable) else b""
            exchange.begin(status_of(error), _HEADERS + extra)
        event = encode_error_event(error.message)
        self._send((event,), len(event))

    def _send(self, pieces: Sequence[Buffer], size: int) -> None:
        exchange = self._exchange
        if exchange.stream is None:
            exchange.begin(200, _HEADERS)
        exchange.send_part(pieces, size, is_last=self._has_ended and not self._waiting)

    def _is_overdue(self) -> bool:
        """Whether more than may be kept has been kept for the client already."""
        return self._num_kept > self._api.options.max_unsent_bytes

    @property
    def _num_kept(self) -> int:
        """Bytes that are kept for the client."""
        return self._exchange.unsent_size + self._num_waiting_bytes

    def _cut(self, request: InferenceRequest) -> None:
        log.warning(
            "%r: the client has left more than %d bytes of its events unread; its request to model '%s' is cancelled and "
            "its connection ends",
            self._exchange.head,
            self._api.options.max_unsent_bytes,
            request.model_name,
        )
        self._exchange.connection.cut(self._exchange)


def _size_of(response: InferenceResponse) -> int:
    """Return about how many bytes a response holds."""
    return sum(map(_tensor_size, response.outputs))


def _tensor_size(tensor: Tensor) -> int:
    if tensor.datatype != "BYTES" or tensor.is_encoded:
        return tensor.nbytes
    return sum(map(len, tensor.to_numpy().flat))
