"""What makes a decoupled model wait: requests whose responses nobody has room for, and a short way to the server.

Both kinds of runtime use it. A thread that sends waits. The loop of an asynchronous ``execute`` does not, as other requests'
tasks are on it, too: there the send passes, and the coroutine rests where it next awaits something (`paced`).
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine, Generator, Hashable, Iterable
from contextlib import suppress
from types import coroutine
from typing import Any, Final, Generic, TypeVar

from bireme.types import Tensor

MOST_ON_THEIR_WAY: Final = 32
"""Responses that leave between two receipts, at most; twice as many may be on their way to the server."""
MOST_BYTES_ON_THEIR_WAY: Final = 2 << 20
"""As `MOST_ON_THEIR_WAY`, in bytes. Or one response, if that is larger."""

Key = TypeVar("Key", bound=Hashable)
T = TypeVar("T")
Wake = Callable[[], object]


def running_loop() -> asyncio.AbstractEventLoop | None:
    """Return the loop that runs in the calling thread, None if there is none."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def size_of(tensors: Iterable[Tensor]) -> int:
    """Return about how many bytes they have, without encoding them for that."""
    return sum(
        tensor.nbytes
        if tensor.datatype != "BYTES" or tensor.is_encoded
        else sum(map(len, tensor.to_numpy().flat))
        for tensor in tensors
    )


class Holds(Generic[Key]):
    """The requests that are held, and who waits for their release. Any thread may use it; no method waits.

    Nothing is locked: whoever begins to wait looks again afterwards whether it came too late to be woken.
    """

    __slots__ = ("_is_over", "_owing", "_waiting")

    def __init__(self) -> None:
        self._waiting: dict[Key, list[Wake]] = {}
        self._owing: set[Key] = set()
        """Those to which an event loop has sent all the same."""
        self._is_over = False

    def __contains__(self, key: Key) -> bool:
        return key in self._waiting

    def hold(self, key: Key) -> None:
        """Have senders to ``key`` wait."""
        if not self._is_over:
            self._waiting.setdefault(key, [])

    def release(self, key: Key) -> None:
        """Wake who waits for ``key``, if it is held."""
        wakes = self._waiting.pop(key, None)
        self._owing.discard(key)
        for wake in wakes or ():
            wake()

    def end(self) -> None:
        """Release all, and hold nothing from now on."""
        self._is_over = True
        for key in tuple(self._waiting):
            self.release(key)

    def join(self, key: Key, wake: Wake) -> bool:
        """Have ``wake`` called once ``key`` is released, on the thread that does it; False: it is not held (any more)."""
        wakes = self._waiting.get(key)
        if wakes is None:
            return False
        wakes.append(wake)
        return self._waiting.get(key) is wakes

    # Event loops

    def owe(self, key: Key) -> None:
        """A loop sends to ``key`` although it is held: the coroutine that did has to rest."""
        if key in self._waiting:
            self._owing.add(key)

    def debts(self, keys: Iterable[Key]) -> list[Key]:
        """Return those of ``keys`` whose coroutine has to rest."""
        return [key for key in keys if key in self._owing] if self._owing else []

    async def rest(self, key: Key) -> None:
        """Return once ``key`` is released, on the running loop."""
        loop = asyncio.get_running_loop()
        released = asyncio.Event()

        def wake() -> None:
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(released.set)

        if self.join(key, wake):
            await released.wait()


@coroutine
def paced(
    work: Coroutine[Any, Any, T], holds: Holds[Any], keys: Iterable[Hashable]
) -> Generator[Any, Any, T]:
    """Run ``work``, which goes on after an ``await`` of its own only when none of ``keys`` is owing."""
    error: BaseException | None = None
    while True:
        try:
            awaited = work.send(None) if error is None else work.throw(error)
        except StopIteration as end:
            result: T = end.value
            return result
        error = None
        try:
            yield awaited
            for key in holds.debts(keys):
                yield from _steps(holds.rest(key))
        except BaseException as raised:  # noqa: BLE001 - a cancellation: it is for the model's code
            error = raised


def _steps(awaitable: Awaitable[object]) -> Generator[Any, Any, object]:
    return awaitable.__await__()


class Passage:
    """Keeps short what is on its way to the server: its loop may be slower than a model that does nothing but send.

    Every so many responses the server is asked for a receipt, and the one before is waited for. The server gives it
    when it has read that far, whether anybody wants the responses or not.
    """

    __slots__ = ("_ask", "_await_receipt", "_lock", "_nbytes", "_num")

    def __init__(self, ask: Callable[[], Wake]) -> None:
        """``ask`` asks for a receipt for all that was sent until now, and returns what waits for it."""
        self._ask = ask
        self._await_receipt: Wake | None = None
        self._lock = threading.Lock()
        self._num = 0
        self._nbytes = 0

    def note(self, nbytes: int) -> None:
        """Count a response of ``nbytes`` that has left; wait for those long before it."""
        self._num += 1
        self._nbytes += nbytes
        if self._num < MOST_ON_THEIR_WAY and self._nbytes < MOST_BYTES_ON_THEIR_WAY:
            return
        self._num = self._nbytes = 0
        with self._lock:
            before, self._await_receipt = self._await_receipt, self._ask()
            if before is not None:
                before()
