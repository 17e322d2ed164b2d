"""How threads and tasks of models wait for what the server's loop brings: one response, or a stream of them.

Each is given to a request as its ``respond``, which the engine calls on the loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import Callable

from bireme.backends.python.backlog import Backlog
from bireme.backends.python.holds import size_of
from bireme.types import InferenceRequest, InferenceResponse


class Answer:
    """Waits in a thread for the one response of a request."""

    __slots__ = ("_lock", "_response")

    def __init__(self) -> None:
        # A lock that is released by another thread: the cheapest way to wait, half the price of an Event.
        self._lock = threading.Lock()
        self._lock.acquire()
        self._response: InferenceResponse | None = None

    def take(self, _request: InferenceRequest, response: InferenceResponse) -> None:
        """Take the response; from any thread."""
        if self._response is None and not response.flag_only:
            self._response = response
        if response.final:
            self._response = self._response or response
            self._lock.release()

    def wait(self) -> InferenceResponse:
        """Return the response when it is there."""
        self._lock.acquire()
        assert self._response is not None
        return self._response


class TaskAnswer:
    """A future of the running loop, for the one response of a request."""

    __slots__ = ("_loop", "_response", "future")

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._response: InferenceResponse | None = None
        self.future: asyncio.Future[InferenceResponse] = self._loop.create_future()

    def take(self, _request: InferenceRequest, response: InferenceResponse) -> None:
        """Take the response; from any thread."""
        if self._response is None and not response.flag_only:
            self._response = response
        if response.final:
            with contextlib.suppress(RuntimeError):  # the caller's loop is closed: nobody waits
                self._loop.call_soon_threadsafe(self._finish, self._response or response)

    def _finish(self, response: InferenceResponse) -> None:
        if not self.future.done():
            self.future.set_result(response)


class Stream:
    """The responses of a decoupled call: `bireme.backends.python.runtime.ResponseStream`.

    Threads or one task may read it. A lock guards what has come against who waits for it.
    """

    __slots__ = (
        "_backlog",
        "_cancel",
        "_hold",
        "_is_closed",
        "_is_over",
        "_lock",
        "_responses",
        "_resume",
        "_wake",
    )

    def __init__(
        self, cancel: Callable[[], None], hold: Callable[[], None], resume: Callable[[], None]
    ) -> None:
        """``cancel`` takes the call back. ``hold`` has the callee wait, on the loop; ``resume`` ends that."""
        self._cancel = cancel
        self._hold = hold
        self._resume = resume
        self._lock = threading.Lock()
        self._backlog = Backlog()
        self._responses: deque[InferenceResponse] = deque()
        self._wake: Callable[[], None] | None = None
        self._is_closed = False
        self._is_over = False
        """Its reader has had the final response."""

    def take(self, _request: InferenceRequest, response: InferenceResponse) -> None:
        """Take a response, on the loop."""
        with self._lock:
            if self._is_closed:
                return
            self._responses.append(response)
            is_full = self._backlog.add(size_of(response.outputs))
            wake, self._wake = self._wake, None
        if is_full and not response.final:
            self._hold()
        if wake is not None:
            with contextlib.suppress(RuntimeError):  # the reader's loop is closed
                wake()

    def __next__(self) -> InferenceResponse:
        while True:
            with self._lock:
                if self._responses or self._is_over:
                    return self._pop(StopIteration)
                waiter = threading.Lock()
                waiter.acquire()
                self._wake = waiter.release
            waiter.acquire()

    async def __anext__(self) -> InferenceResponse:
        while True:
            with self._lock:
                if self._responses or self._is_over:
                    return self._pop(StopAsyncIteration)
                loop = asyncio.get_running_loop()
                arrived = asyncio.Event()
                self._wake = _waker(loop, arrived)
            await arrived.wait()

    def _pop(self, end: type[Exception]) -> InferenceResponse:
        if self._is_over:
            raise end
        response = self._responses.popleft()
        self._is_over = response.final
        if self._backlog.take():
            self._resume()
        return response

    def cancel(self) -> None:
        """Ask the server to cancel the call; what still comes can be read."""
        self._cancel()

    def close(self) -> None:
        """Drop what came and what still comes."""
        with self._lock:
            self._is_closed = True
            self._responses.clear()
            if self._backlog.is_full:
                self._resume()


def _waker(loop: asyncio.AbstractEventLoop, event: asyncio.Event) -> Callable[[], None]:
    def wake() -> None:
        loop.call_soon_threadsafe(event.set)

    return wake
