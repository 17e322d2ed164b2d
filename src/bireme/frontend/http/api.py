"""Api: what the handlers of the inference front end share — the server, the options, and work that takes its time."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from bireme.engine.server import Server
from bireme.frontend.http.exchange import Exchange
from bireme.frontend.http.options import HttpOptions
from bireme.ipc.json_offload import JsonOffload
from bireme.types import BiremeError, InvalidArgument
from bireme.wire.http import Limits

T = TypeVar("T")

_NUM_THREADS = 2


class Api:
    """Shared by all handlers. Loop thread only."""

    __slots__ = (
        "_pool",
        "_preparations",
        "_tasks",
        "header_pattern",
        "limits",
        "offload",
        "options",
        "server",
    )

    def __init__(self, server: Server, options: HttpOptions) -> None:
        """Prepare.

        Raises:
            InvalidArgument: the header pattern is no regular expression.
        """
        self.server = server
        self.options = options
        self.limits = Limits(max_input_size=options.max_input_size)
        self.header_pattern = _compile(options.header_forward_pattern)
        self.offload = JsonOffload(self.limits)
        self._pool = ThreadPoolExecutor(_NUM_THREADS, thread_name_prefix="bireme-http")
        self._tasks: set[asyncio.Task[None]] = set()
        self._preparations: set[asyncio.Task[None]] = set()

    def spawn(self, exchange: Exchange, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run ``work``, which answers ``exchange``; its errors become the answer."""
        task = asyncio.get_running_loop().create_task(_answering(exchange, work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def spawn_preparation(self, exchange: Exchange, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run ``work``, which brings the received ``exchange`` to the engine; as `spawn`."""
        task = self.spawn(exchange, work)
        self._preparations.add(task)
        task.add_done_callback(self._preparations.discard)
        return task

    async def settle(self, timeout_s: float) -> None:
        """Wait until what is being prepared now has been given to the engine; for ``timeout_s`` at most."""
        deadline_s = time.monotonic() + timeout_s
        for _ in range(
            2
        ):  # parsing may be followed by the decoding of BYTES; what comes later is not waited for
            if self._preparations:
                await asyncio.wait(self._preparations, timeout=max(0.0, deadline_s - time.monotonic()))

    async def in_thread(self, work: Callable[..., T], *args: Any) -> T:
        """Run ``work``, which lets go of the GIL, beside the loop."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, work, *args)

    async def stop(self) -> None:
        """Give up what nobody waits for any more; called when every connection is gone."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        await self.offload.stop()
        self._pool.shutdown(wait=False, cancel_futures=True)


def _compile(pattern: str) -> re.Pattern[str] | None:
    """Return the pattern of forwarded headers; None when there is none."""
    if not pattern:
        return None
    try:
        return re.compile(pattern, re.IGNORECASE)
    except re.error as error:
        raise InvalidArgument(
            f"header_forward_pattern {pattern!r} is no regular expression: {error}"
        ) from None


async def _answering(exchange: Exchange, work: Coroutine[Any, Any, None]) -> None:
    try:
        await work
    except BiremeError as error:
        exchange.fail(error)
    except Exception as error:  # noqa: BLE001 (answered, and logged with its traceback)
        exchange.crash(error)
