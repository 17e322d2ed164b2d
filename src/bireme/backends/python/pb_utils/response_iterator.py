"""ResponseIterator: the responses of a decoupled call."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from bireme.backends.python.pb_utils.response import InferenceResponse
from bireme.backends.python.runtime import ResponseStream
from bireme.types import InferenceResponse as ResponseFromServer


class ResponseIterator:
    """Yields the responses of a call as they come; iterated again after the last one, it yields them again.

    The last response is empty (no outputs, no error) when the other model ended with a mere flag. An iterator that is
    dropped before that drops what still comes. ``async for`` works too.
    """

    __slots__ = ("_is_finished", "_position", "_responses", "_stream")

    def __init__(self, stream: ResponseStream) -> None:
        self._stream = stream
        self._responses: list[InferenceResponse] = []
        self._position = 0
        self._is_finished = False

    def __iter__(self) -> ResponseIterator:
        if self._is_finished and self._position >= len(self._responses):
            self._position = 0
        return self

    def __next__(self) -> InferenceResponse:
        if self._is_finished or self._position < len(self._responses):
            return self._replay(StopIteration)
        try:
            response = next(self._stream)
        except StopIteration:
            self._is_finished = True
            raise
        return self._take(response)

    def __aiter__(self) -> ResponseIterator:
        return iter(self)

    async def __anext__(self) -> InferenceResponse:
        if self._is_finished or self._position < len(self._responses):
            return self._replay(StopAsyncIteration)
        try:
            response = await anext(self._stream)
        except StopAsyncIteration:
            self._is_finished = True
            raise
        return self._take(response)

    async def wait_first(self) -> ResponseIterator:
        """Wait for the first response, have it ready for who reads next, and return this. Cancelled, it takes the call back."""
        with suppress(StopAsyncIteration):
            try:
                await anext(self)
            except asyncio.CancelledError:
                self.cancel()
                raise
        self._position = 0
        return self

    def cancel(self) -> None:
        """Ask the server to cancel the call. Responses may still come; the last one then usually is an error."""
        if not self._is_finished:
            self._stream.cancel()

    def _take(self, response: ResponseFromServer) -> InferenceResponse:
        taken = InferenceResponse.from_response(response)
        self._responses.append(taken)
        self._position += 1
        self._is_finished = response.final
        return taken

    def _replay(self, end: type[Exception]) -> InferenceResponse:
        if self._position >= len(self._responses):
            raise end
        self._position += 1
        return self._responses[self._position - 1]

    def __del__(self) -> None:
        if not getattr(self, "_is_finished", True):
            self._is_finished = True
            self._stream.close()
