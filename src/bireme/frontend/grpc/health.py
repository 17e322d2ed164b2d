"""``grpc.health.v1``: Check, and Watch, which Triton lacks.

The service's name is ignored, as in Triton: every name stands for the whole server. While the server stops, Check is an
error, and a watcher hears NOT_SERVING before its stream ends with that error: a drain waits for no watcher. Check asks
the models that have a say in their readiness; Watch, which looks every second, does not.

Source: Triton ``grpc_server.cc`` (``RegisterHealthCheck``); gRPC "GRPC Health Checking Protocol".
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from bireme.engine.server import Server
from bireme.frontend import health
from bireme.frontend.grpc.message_stream import MessageStream
from bireme.wire.grpc import message_class
from bireme.wire.grpc.status import Status

if TYPE_CHECKING:
    from bireme.frontend.grpc.api import GrpcApi

SERVING: Final = 1
NOT_SERVING: Final = 2


def check(api: GrpcApi, _: Any) -> Any:
    """``Check``."""
    if api.server.asks_models:
        return _ask_all(api)
    return _response(is_serving=health.is_ready(api.server))


async def _ask_all(api: GrpcApi) -> Any:
    return _response(is_serving=await health.check_ready(api.server))


def watch(api: GrpcApi, stream: MessageStream) -> HealthWatcher:
    """Open a ``Watch``."""
    return HealthWatcher(api.health_watch, stream)


class HealthWatch:
    """Tells all watchers of a server when its readiness changes: at once by `refresh`, else within a second.

    Readiness follows from the states of all models and raises no event, so one timer looks at it while anyone watches.
    """

    __slots__ = ("_interval_s", "_is_serving", "_server", "_streams", "_timer")

    def __init__(self, server: Server, interval_s: float = 1.0) -> None:
        self._server = server
        self._interval_s = interval_s
        self._streams: dict[MessageStream, None] = {}
        self._is_serving = False
        """What all of the streams have been told."""
        self._timer: asyncio.TimerHandle | None = None

    def add(self, stream: MessageStream) -> None:
        """Tell ``stream`` the status now and each change until `discard`."""
        self.refresh()
        if not self._streams:
            self._is_serving = self._server.is_ready
        stream.send(_response(is_serving=self._is_serving))
        if health.is_ending(self._server):
            _end(stream)
            return
        self._streams[stream] = None
        self._start_timer()

    def discard(self, stream: MessageStream) -> None:
        """Forget ``stream``, known or not."""
        self._streams.pop(stream, None)
        if not self._streams and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def refresh(self) -> None:
        """Look at the server now. When it is stopping, the streams end."""
        if not self._streams:
            return
        is_serving = self._server.is_ready
        if is_serving is not self._is_serving:
            self._is_serving = is_serving
            message = _response(is_serving=is_serving)
            for stream in list(self._streams):
                stream.send(message)
        if health.is_ending(self._server):
            for stream in list(self._streams):
                self.discard(stream)
                _end(stream)

    def _start_timer(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._interval_s, self._look)

    def _look(self) -> None:
        self._timer = None
        self.refresh()
        if self._streams:
            self._start_timer()


class HealthWatcher:
    """One ``Watch`` call."""

    __slots__ = ("_has_asked", "_stream", "_watch")

    def __init__(self, watch: HealthWatch, stream: MessageStream) -> None:
        self._watch = watch
        self._stream = stream
        self._has_asked = False

    def take(self, _: Any) -> None:
        """Start watching; a second message is ignored."""
        if not self._has_asked:
            self._has_asked = True
            self._watch.add(self._stream)

    def end(self) -> None:
        """Go on: the one request has been sent. Without one there is nothing to answer."""
        if not self._has_asked:
            self._stream.fail(Status.UNIMPLEMENTED, "Watch takes exactly one request message, got none")

    def cancel(self) -> None:
        """Stop watching."""
        self._watch.discard(self._stream)


def _response(*, is_serving: bool) -> Any:
    status = SERVING if is_serving else NOT_SERVING
    return message_class("grpc.health.v1.HealthCheckResponse")(status=status)


def _end(stream: MessageStream) -> None:
    stream.fail(Status.UNAVAILABLE, "Server exiting")
