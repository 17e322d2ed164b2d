"""Serving: one run of the server, from its settings to its exit status.

Start: ports first (a taken port must not cost the minutes that large models load), then models; until they are loaded
the server answers that it is not ready. Stop, on SIGTERM or SIGINT: not ready at once, requests in flight finish, exit
status 0. A second signal, or the end of ``--exit-timeout-secs``, ends the process at once with exit status 1.
"""

from __future__ import annotations

import asyncio
import errno
import gc
import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from bireme import __version__
from bireme.cli.settings import Settings
from bireme.engine import Server
from bireme.frontend.frontend import FrontEnd
from bireme.frontend.http import HttpFrontend
from bireme.frontend.metrics import MetricsFrontend
from bireme.frontend.options import ListenOptions
from bireme.telemetry import log
from bireme.types import Unavailable

if TYPE_CHECKING:
    from bireme.backends.python.debug_desk import DebugDesk

_logger = log.get_logger(__name__)

_PORT_ERRORS = frozenset({errno.EADDRINUSE, errno.EACCES})
_FLUSH_GRACE_S = 1.0
"""What a slow reader has at least to take the rest of its answer, once the models are done."""


class Serving:
    """One server with its front ends, until a signal ends it."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._server = Server(options=settings.server)
        self._front_ends: list[tuple[str, FrontEnd]] = []
        self._stop_asked: asyncio.Future[str] | None = None
        self._desk: DebugDesk | None = None

    def run(self) -> int:
        """Serve; return the exit status.

        Raises:
            BiremeError: the server could not start.
        """
        log.configure(**self._settings.log)
        for note in self._settings.notes:
            _logger.warning(note)
        if not self._settings.debug_models:
            return self._run_loop()
        # Imported here: it brings much along that a server without Python models does not need.
        from bireme.backends.python.debug_desk import DebugDesk
        from bireme.cli.debugging import run_beside

        self._desk = DebugDesk(self._settings.debug_models)
        return run_beside(self._desk, self._run_loop, self._on_raw_signal)

    def _run_loop(self) -> int:
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            return runner.run(self._main())

    async def _main(self) -> int:
        self._stop_asked = asyncio.get_running_loop().create_future()
        if self._desk is None:
            self._listen_for_signals()
        start = asyncio.ensure_future(self._start())
        events: list[asyncio.Future[Any]] = [start, self._stop_asked]
        await asyncio.wait(events, return_when=asyncio.FIRST_COMPLETED)
        if not start.done():
            # Loading threads cannot be interrupted, and nobody waits for what they do.
            _logger.info("received %s while starting: exiting", self._stop_asked.result())
            _exit_now(0)
        start.result()
        _logger.info(
            "received %s: requests in flight have %g s to finish; a second signal exits at once",
            await self._stop_asked,
            self._settings.server.exit_timeout_secs,
        )
        return await self._stop()

    async def _start(self) -> None:
        try:
            await self._open_ports()
            await self._server.start()
        except BaseException:
            await self._close_ports(0)
            raise
        for name in () if self._desk is None else self._desk.missing:
            _logger.warning("--debug-model=%s: there is no such model, or it is not written in Python", name)
        # What is here now stays: the collector need not look at it again and again (nor copy it, after a fork).
        gc.collect()
        gc.freeze()
        age_ms = _process_age_ms()
        _logger.info("Bireme %s is ready%s", __version__, "" if age_ms is None else f" in {age_ms} ms")

    async def _open_ports(self) -> None:
        front_ends = list(self._make_front_ends())  # what is wrong with one is known before any is bound
        for name, front_end in front_ends:
            await self._open(name, front_end)
        if self._desk is None and any(_has_files(front_end.options) for _, front_end in front_ends):
            _on_hangup(self._reopen)

    def _make_front_ends(self) -> Iterator[tuple[str, FrontEnd]]:
        settings = self._settings
        if settings.http is not None:
            yield "HTTP", HttpFrontend(self._server, settings.http)
        if settings.grpc is not None:
            # Imported here: it brings much along that a server without gRPC does not need.
            from bireme.frontend.grpc.frontend import GrpcFrontend

            yield "gRPC", GrpcFrontend(self._server, settings.grpc)
        if settings.metrics is not None:
            yield "metrics", MetricsFrontend(self._server, settings.metrics)

    async def _open(self, name: str, front_end: FrontEnd) -> None:
        try:
            await front_end.start()
        except Unavailable as error:
            cause = error.__cause__
            has_port = not front_end.options.unix_path
            is_taken = isinstance(cause, OSError) and cause.errno in _PORT_ERRORS
            what = "port" if has_port and is_taken else "address"
            raise Unavailable(
                f"{error.message}; choose another {what} for {name} with --{name.lower()}-{what}"
            ) from error
        self._front_ends.append((name, front_end))
        path = "/metrics" if name == "metrics" and not front_end.options.unix_path else ""
        _logger.info("listening for %s requests on %s%s", name, front_end.url, path)

    def _reopen(self) -> None:
        for _, front_end in self._front_ends:
            front_end.reopen()

    async def _stop(self) -> int:
        timeout_s = self._settings.server.exit_timeout_secs
        deadline = time.monotonic() + timeout_s
        # The ports stay open meanwhile: probes hear "not ready" and requests a clear refusal, not a reset.
        self._server.announce_stop()
        await asyncio.gather(*(front_end.retire(timeout_s) for _, front_end in self._front_ends))
        timeout_s = max(0.0, deadline - time.monotonic())
        is_clean = await self._server.stop(timeout_s)
        if not is_clean:
            _logger.error(
                "not everything finished within --exit-timeout-secs=%g",
                self._settings.server.exit_timeout_secs,
            )
            _exit_now(1)
        await self._close_ports(max(deadline - time.monotonic(), _FLUSH_GRACE_S))
        _logger.info("stopped")
        return 0

    async def _close_ports(self, grace_s: float) -> None:
        await asyncio.gather(*(front_end.stop(grace_s) for _, front_end in self._front_ends))

    def _listen_for_signals(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            try:
                asyncio.get_running_loop().add_signal_handler(number, self._on_signal, number)
            except NotImplementedError:  # Windows: handlers run between two bytecodes, wherever that is
                signal.signal(number, self._on_raw_signal)

    def _on_raw_signal(self, number: int, _frame: object = None) -> None:
        if self._stop_asked is None:  # the loop does not run yet, on its thread
            _exit_now(0)
        self._stop_asked.get_loop().call_soon_threadsafe(self._on_signal, number)

    def _on_signal(self, number: int) -> None:
        name = signal.Signals(number).name
        assert self._stop_asked is not None
        if self._stop_asked.done():
            _logger.error("received %s again: exiting without waiting", name)
            _exit_now(1)
        self._stop_asked.set_result(name)


def _has_files(options: ListenOptions) -> bool:
    """Whether there is anything that SIGHUP can renew."""
    return options.tls is not None or bool(getattr(options, "access_log", ""))


def _on_hangup(reopen: Callable[[], None]) -> None:
    """Call ``reopen`` on SIGHUP, which those send who rotate logs or renew certificates."""
    with suppress(AttributeError, NotImplementedError):  # Windows
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, reopen)


def _exit_now(status: int) -> NoReturn:
    """End the process without waiting for any thread."""
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def _process_age_ms() -> int | None:
    """Return how long this process has existed, to ten milliseconds; None where the system does not tell."""
    try:
        fields = Path("/proc/self/stat").read_text("ascii", "replace").rpartition(")")[2].split()
        started_s = int(fields[19]) / os.sysconf("SC_CLK_TCK")
        return round((time.clock_gettime(time.CLOCK_BOOTTIME) - started_s) * 1000)
    except (OSError, AttributeError, IndexError, ValueError):
        return None


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        from uvloop import new_event_loop
    except ImportError:  # Windows
        return None
    return new_event_loop
