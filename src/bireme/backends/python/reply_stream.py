"""Where the answers to calls of other models go that no thread sits and waits for: futures, and streams of responses."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from bireme.backends.python.exchange import Waiter
from bireme.backends.python.holds import size_of
from bireme.ipc.messages import CancelCall, Taken
from bireme.types import InferenceRequest, InferenceResponse

if TYPE_CHECKING:
    from bireme.backends.python.process_runtime import ProcessRuntime

_MANY_LEASES: Final = 8
"""Leases of a stream's responses that may wait for the next message: a stream is all reading, and sends none."""
_MANY_TAKEN: Final = 16
"""Responses that are read before the server is told; far fewer than it lets wait (`bireme.backends.python.backlog`)."""
_MANY_BYTES: Final = 2 << 20


class FutureReceiver:
    """A future of a model's own loop, for one message."""

    __slots__ = ("_convert", "_loop", "_thread", "future")

    def __init__(self, loop: asyncio.AbstractEventLoop, convert: Callable[[Any], Any]) -> None:
        """``convert`` makes the future's result of the message."""
        self._loop = loop
        self._convert = convert
        self._thread = threading.get_ident()
        self.future: asyncio.Future[Any] = loop.create_future()

    def deliver(self, message: Any) -> None:
        """Resolve the future; from any thread."""
        if threading.get_ident() == self._thread:
            self._resolve(message)
            return
        with suppress(RuntimeError):  # the loop is closed: nobody waits
            self._loop.call_soon_threadsafe(self._resolve, message)

    def _resolve(self, message: Any) -> None:
        if not self.future.done():
            self.future.set_result(self._convert(message))


class ReplyStream(Waiter):
    """The responses of a decoupled call: `bireme.backends.python.runtime.ResponseStream`. One reader at a time."""

    __slots__ = ("_call", "_is_over", "_nbytes_taken", "_num_taken", "_receiver", "_request", "_runtime")

    def __init__(self, runtime: ProcessRuntime, request: InferenceRequest, call: int) -> None:
        super().__init__()
        self._runtime = runtime
        self._request = request
        self._call = call
        self._is_over = False
        """The final response was read, or nobody wants it."""
        self._num_taken = 0
        """Since the server was told."""
        self._nbytes_taken = 0
        self._receiver: FutureReceiver | None = None

    def deliver(self, message: Any) -> None:
        """Take a response, from any thread."""
        super().deliver(message)
        receiver, self._receiver = self._receiver, None
        if receiver is not None:
            receiver.deliver(None)

    def __next__(self) -> InferenceResponse:
        response = self._wait()
        if response is None:
            raise StopIteration
        return response

    async def __anext__(self) -> InferenceResponse:
        loop = asyncio.get_running_loop()
        if loop is self._runtime.loop:
            while not self.messages and not self._is_over:
                self._receiver = receiver = FutureReceiver(loop, _no_result)
                if self.messages:  # came in between, by another thread
                    break
                await receiver.future
            response = self._take(self.messages.popleft()) if self.messages else None
        else:
            response = await loop.run_in_executor(None, self._wait)
        if response is None:
            raise StopAsyncIteration
        return response

    def cancel(self) -> None:
        """Ask the server to cancel the call; responses may still come, the last one is final."""
        if not self._is_over:
            self._runtime.exchange.send(CancelCall(self._call))

    def close(self) -> None:
        """Nobody reads on: what still comes is dropped."""
        was_over, self._is_over = self._is_over, True
        exchange = self._runtime.exchange
        exchange.forget(self._call)
        self.messages.clear()
        if not was_over and not exchange.is_forked:
            exchange.send(Taken(self._call, 0))

    def _wait(self) -> InferenceResponse | None:
        """Return the next response, or None after the final one."""
        if self._is_over:
            return None
        return self._take(self._runtime.exchange.wait(self))

    def _take(self, response: InferenceResponse | None) -> InferenceResponse:
        exchange = self._runtime.exchange
        if response is None:
            response = self._runtime.lost_response(self._request)
        if response.final:
            self._is_over = True
            exchange.forget(self._call)
        else:
            exchange.flush(_MANY_LEASES)
            self._note_taken(size_of(response.outputs))
        return response

    def _note_taken(self, nbytes: int) -> None:
        self._num_taken += 1
        self._nbytes_taken += nbytes
        if self._num_taken >= _MANY_TAKEN or self._nbytes_taken >= _MANY_BYTES:
            self._runtime.exchange.send(Taken(self._call, self._num_taken))
            self._num_taken = self._nbytes_taken = 0


def _no_result(_: Any) -> None:
    """A mere sign that something came."""
