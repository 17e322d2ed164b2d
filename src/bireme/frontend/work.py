"""Work: what a front end does beside the loop or over several turns of it, and how long it waits for that."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, Protocol, TypeVar

from bireme.types import InvalidArgument

T = TypeVar("T")

_NUM_THREADS = 2

INTERNAL_ERROR: Final = "internal error; the server's log has the details"
"""All that a client learns of an exception that nobody foresaw."""
_MAX_PREPARATIONS = 2
"""Inflating or parsing may be followed by the decoding of BYTES; what comes later is not waited for."""


class Answerable(Protocol):
    """A request that waits for its answer."""

    def take_error(self, error: Exception) -> None:
        """Answer with ``error``: a `BiremeError` as it is, anything else as an internal error that is logged."""


class Work:
    """The tasks and threads of one front end. Loop thread only."""

    __slots__ = ("_pool", "_preparations", "_tasks")

    def __init__(self, name: str) -> None:
        self._pool = ThreadPoolExecutor(_NUM_THREADS, thread_name_prefix=name)
        self._tasks: set[asyncio.Task[None]] = set()
        self._preparations: set[asyncio.Task[None]] = set()

    def spawn(self, call: Answerable, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run ``work``, which answers ``call``; its errors become the answer."""
        task = asyncio.get_running_loop().create_task(_answering(call, work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(lambda _: work.close())  # when it was cancelled before it began
        return task

    def spawn_preparation(self, call: Answerable, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run ``work``, which brings the received ``call`` to the engine; as `spawn`."""
        task = self.spawn(call, work)
        self._preparations.add(task)
        task.add_done_callback(self._preparations.discard)
        return task

    async def in_thread(self, work: Callable[..., T], *args: Any) -> T:
        """Run ``work``, which lets go of the GIL, beside the loop."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, work, *args)

    async def settle(self, timeout_s: float) -> None:
        """Wait until what is being prepared now has been given to the engine; for ``timeout_s`` at most."""
        deadline_s = time.monotonic() + timeout_s
        for _ in range(_MAX_PREPARATIONS):
            if self._preparations:
                await asyncio.wait(self._preparations, timeout=max(0.0, deadline_s - time.monotonic()))

    async def stop(self) -> None:
        """Give up what nobody waits for any more; called when every connection is gone."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        self._pool.shutdown(wait=False, cancel_futures=True)


def compile_header_pattern(pattern: str) -> re.Pattern[str] | None:
    """Return the pattern of forwarded headers; None when there is none.

    Raises:
        InvalidArgument: it is no regular expression.
    """
    if not pattern:
        return None
    try:
        return re.compile(pattern, re.IGNORECASE)
    except re.error as error:
        raise InvalidArgument(
            f"header_forward_pattern {pattern!r} is no regular expression: {error}"
        ) from None


async def _answering(call: Answerable, work: Coroutine[Any, Any, None]) -> None:
    try:
        await work
    except Exception as error:  # noqa: BLE001 (answered, and logged if it was not foreseen)
        call.take_error(error)
