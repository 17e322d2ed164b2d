"""JsonOffload: the server's side of the process that parses large JSON bodies (`bireme.ipc.json_worker`).

One worker, started with the first job. It gets one job at a time, so nothing waits in its socket; the others wait here.
When it dies, the job it had is answered `Unavailable` and the next one starts another worker.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Coroutine, Mapping
from typing import Any, Final

import orjson

from bireme.ipc import segment
from bireme.ipc.json_worker import MAX_MESSAGE
from bireme.ipc.segment import Segment
from bireme.types import (
    AlreadyExists,
    BiremeError,
    Buffer,
    Cancelled,
    Internal,
    InvalidArgument,
    NotFound,
    Unavailable,
    Unsupported,
)
from bireme.wire.http import Limits

log = logging.getLogger("bireme.ipc")

IS_SUPPORTED: Final = (
    segment.IS_SUPPORTED and hasattr(socket, "SOCK_SEQPACKET") and hasattr(socket, "send_fds")
)
"""Whether this system can do it; elsewhere JSON is parsed where the request is."""

_END_TIMEOUT_S = 2.0
_ERRORS = {
    error.code: error
    for error in (InvalidArgument, AlreadyExists, NotFound, Unsupported, Unavailable, Cancelled, Internal)
}

_Rewritten = tuple[memoryview, int]


class _Job:
    """One body and the future of its rewritten form."""

    __slots__ = ("body", "future", "message")

    def __init__(self, body: Segment, message: bytes, future: asyncio.Future[_Rewritten]) -> None:
        self.body = body
        self.message = message
        self.future = future


class JsonOffload:
    """Rewrites JSON bodies as binary ones in another process. Loop thread only."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._waiting: deque[_Job] = deque()
        self._current: _Job | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: socket.socket | None = None
        self._is_starting = False
        self._is_stopped = False
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def pid(self) -> int | None:
        """The worker's process id, or None while there is none."""
        return self._process.pid if self._process is not None else None

    async def rewrite(
        self,
        body: Buffer,
        json_length: int | None,
        model_name: str,
        generate_inputs: Mapping[str, Any] | None = None,
    ) -> _Rewritten:
        """Return ``body`` with every tensor binary, and the length of its JSON part; as `rewrite_as_binary`.

        With ``generate_inputs`` (from `describe_inputs`) it is the body of a generate call; as `rewrite_generate`.

        A body that lies in a `Segment` is handed over as it is; another one is copied into one.

        Raises:
            BiremeError: what decoding the body would raise.
            Unavailable: the worker died, cannot be started, or is being stopped.
        """
        try:
            whole = await _to_segment(body)
        except OSError as error:
            raise Unavailable(f"cannot hand over a body of {len(body)} bytes for parsing: {error}") from error
        if self._is_stopped:
            raise Unavailable("the server is stopping")
        limits = self._limits
        message = orjson.dumps(
            [
                len(body),
                json_length,
                limits.max_input_size,
                limits.max_json_depth,
                model_name,
                generate_inputs,
            ]
        )
        future: asyncio.Future[_Rewritten] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Job(whole, message, future))
        self._next()
        return await future

    async def stop(self) -> None:
        """Fail what waits and end the worker."""
        self._is_stopped = True
        while self._tasks:
            await asyncio.wait(self._tasks)
        self._fail_all(Unavailable("the server is stopping"))
        if self._process is not None:
            await asyncio.get_running_loop().run_in_executor(None, self._detach())

    def _next(self) -> None:
        """Give the worker its next job, if it is free and somebody still waits."""
        while self._current is None and self._waiting and not self._is_starting:
            if self._channel is None:
                self._is_starting = True
                self._spawn_task(self._start())
                return
            job = self._waiting.popleft()
            if not job.future.done():  # its client may have left
                self._send(job, self._channel)

    def _send(self, job: _Job, channel: socket.socket) -> None:
        self._current = job
        try:
            socket.send_fds(channel, [job.message], [job.body.fd])
        except OSError:
            self._lose_worker()

    def _on_readable(self) -> None:
        channel, job = self._channel, self._current
        assert channel is not None
        try:
            message, fds, _, _ = socket.recv_fds(channel, MAX_MESSAGE, 1, socket.MSG_CMSG_CLOEXEC)
        except BlockingIOError:
            return
        except OSError:
            message, fds = b"", []
        if not message or job is None:
            self._lose_worker()
            return
        self._current = None
        self._next()
        first, second = orjson.loads(message)
        result = memoryview(Segment.attach(fds[0], first)) if fds else None
        if job.future.done():
            return
        if result is None:
            job.future.set_exception(_ERRORS.get(first, Internal)(second))
        else:
            job.future.set_result((result, second))

    # The worker's life

    def _spawn_task(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _start(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            self._process, channel = await loop.run_in_executor(None, _spawn)
        except OSError as error:
            self._fail_all(Unavailable(f"cannot start the process that parses large JSON bodies: {error}"))
            return
        finally:
            self._is_starting = False
        self._channel = channel
        loop.add_reader(channel.fileno(), self._on_readable)
        self._next()

    def _lose_worker(self) -> None:
        """Answer the job of a worker that is gone, and go on with another one."""
        loop = asyncio.get_running_loop()
        reap = self._detach()
        self._spawn_task(self._report(loop.run_in_executor(None, reap)))
        job, self._current = self._current, None
        if job is not None and not job.future.done():
            job.future.set_exception(
                Unavailable(
                    "the process that parsed the request's JSON ended unexpectedly; the request may be sent again"
                )
            )
        self._next()

    async def _report(self, status: asyncio.Future[int]) -> None:
        log.error("the process that parses large JSON bodies ended unexpectedly with status %d", await status)

    def _detach(self) -> _Reap:
        """Let go of the worker; the result waits for its end, and is for another thread."""
        process, channel = self._process, self._channel
        assert process is not None
        assert channel is not None
        self._process = self._channel = None
        asyncio.get_running_loop().remove_reader(channel.fileno())
        channel.close()
        return _Reap(process)

    def _fail_all(self, error: BiremeError) -> None:
        jobs = [*([self._current] if self._current else []), *self._waiting]
        self._current = None
        self._waiting.clear()
        for job in jobs:
            if not job.future.done():
                job.future.set_exception(error)


class _Reap:
    """Waits for the end of a worker whose socket is closed."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    def __call__(self) -> int:
        try:
            return self._process.wait(_END_TIMEOUT_S)
        except subprocess.TimeoutExpired:  # in the middle of a long job
            self._process.kill()
            return self._process.wait()


def _spawn() -> tuple[subprocess.Popen[bytes], socket.socket]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        try:
            process = subprocess.Popen(  # noqa: S603 (our own module, no shell)
                [sys.executable, "-m", "bireme.ipc.json_worker", str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
            )
        except BaseException:
            ours.close()
            raise
    ours.setblocking(False)
    return process, ours


async def _to_segment(body: Buffer) -> Segment:
    """Return the segment that ``body`` fills; or a new one with a copy of it, made beside the loop."""
    if isinstance(body, memoryview) and isinstance(body.obj, Segment):
        return body.obj
    copy = Segment.allocate(max(1, len(body)))
    await asyncio.get_running_loop().run_in_executor(None, copy.fill, body)
    return copy
