"""BlockingServer: a server for plain scripts, its event loop in a background thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any, Self, TypeVar, Unpack

from bireme.engine.inference import InferResult, InferSettings
from bireme.engine.model import Model
from bireme.engine.server import Server
from bireme.types import Unavailable

T = TypeVar("T")


class BlockingServer:
    """What ``with Server(...) as server`` gives: the methods of `Server`, each returning when it is done.

    Any thread may call any method, also at the same time.
    """

    def __init__(self, server: Server) -> None:
        """Start ``server`` on a loop of its own and return when it is ready. Raises as `Server.start`."""
        self._server = server
        self._loop = _new_event_loop()
        self._thread = threading.Thread(target=self._run_loop, name="bireme-server", daemon=True)
        self._thread.start()
        try:
            self._await(server.start())
        except BaseException:
            self._end_loop()
            raise

    def infer(self, name: str, inputs: Mapping[str, Any], **settings: Unpack[InferSettings]) -> InferResult:
        """Run a model; see `Server.ainfer` for values and ``settings``."""
        return self._server.infer(name, inputs, **settings)

    def load_model(
        self, name: str, config: str | None = None, files: Mapping[str, bytes] | None = None
    ) -> None:
        """Load or reload a model; see `Server.load_model`."""
        self._await(self._server.load_model(name, config, files))

    def unload_model(self, name: str, *, unload_dependents: bool = False) -> None:
        """Unload a model; see `Server.unload_model`."""
        self._await(self._server.unload_model(name, unload_dependents=unload_dependents))

    def register_repository(
        self, location: str | Path, mapping: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        """Add a repository; see `Server.register_repository`."""
        self._call(lambda: self._server.register_repository(location, mapping))

    def unregister_repository(self, location: str | Path) -> None:
        """Take a repository out; see `Server.unregister_repository`."""
        self._call(lambda: self._server.unregister_repository(location))

    @property
    def is_live(self) -> bool:
        """As `Server.is_live`."""
        return self._server.is_live

    @property
    def is_ready(self) -> bool:
        """As `Server.is_ready`."""
        return self._server.is_live and self._call(lambda: self._server.is_ready)

    def is_model_ready(self, name: str, version: int = -1) -> bool:
        """As `Server.is_model_ready`."""
        return self._call(lambda: self._server.is_model_ready(name, version))

    def model(self, name: str, version: int = -1) -> Model:
        """As `Server.model`; what it returns is the loop thread's: read its settings, change nothing."""
        return self._call(lambda: self._server.model(name, version))

    def metadata(self) -> dict[str, Any]:
        """As `Server.metadata`."""
        return self._server.metadata()

    def model_metadata(self, name: str, version: int = -1) -> dict[str, Any]:
        """As `Server.model_metadata`."""
        return self._call(lambda: self._server.model_metadata(name, version))

    def model_config(self, name: str, version: int = -1) -> dict[str, Any]:
        """As `Server.model_config`."""
        return self._call(lambda: self._server.model_config(name, version))

    def model_statistics(self, name: str | None = None, version: int = -1) -> dict[str, Any]:
        """As `Server.model_statistics`."""
        return self._call(lambda: self._server.model_statistics(name, version))

    def repository_index(self, *, ready: bool = False) -> list[dict[str, str]]:
        """As `Server.repository_index`."""
        return self._await(self._server.fetch_index(ready=ready))

    def expose_metrics(self) -> bytes:
        """Return the Prometheus page."""
        return self._call(self._server.metrics.expose)

    def close(self, timeout_s: float | None = None) -> bool:
        """Stop as `Server.stop` and end the thread; a second call does nothing."""
        if not self._thread.is_alive():
            return True
        try:
            is_clean = self._await(self._server.stop(timeout_s))
            if is_clean:  # else a thread of it may be stuck, and waiting for it would be, too
                self._await(self._loop.shutdown_default_executor())
            return is_clean
        finally:
            self._end_loop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _call(self, function: Callable[[], T]) -> T:
        """Call ``function`` on the loop thread, where all state lives."""

        async def call() -> T:
            return function()

        return self._await(call())

    def _await(self, work: Coroutine[Any, Any, T]) -> T:
        try:
            future: Future[T] = asyncio.run_coroutine_threadsafe(work, self._loop)
        except RuntimeError:
            work.close()
            raise Unavailable("Server not ready: it has been stopped") from None
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def _run_loop(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()
        self._loop.close()

    def _end_loop(self) -> None:
        with suppress(RuntimeError):  # closed already
            self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def __repr__(self) -> str:
        return f"BlockingServer({self._server!r})"


def _new_event_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:  # Windows
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()
