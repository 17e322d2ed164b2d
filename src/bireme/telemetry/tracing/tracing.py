"""Tracing: samples requests, and brings their finished traces to where they go, on a thread of its own."""

from __future__ import annotations

import queue
import threading
from collections.abc import Mapping
from typing import Final, Protocol

from bireme.telemetry import log as server_log
from bireme.telemetry.tracing.context import TraceContext
from bireme.telemetry.tracing.files import TraceFiles
from bireme.telemetry.tracing.options import TraceMode, TraceOptions
from bireme.telemetry.tracing.otlp import OtlpExporter
from bireme.telemetry.tracing.sampled import SampledTrace, TraceSource
from bireme.telemetry.tracing.settings import TraceSetting, TraceSettings, Values
from bireme.types import InferenceRequest

log = server_log.get_logger(__name__)

_PERIOD_S: Final = 0.1
"""How long finished traces may wait for others: the thread that writes takes time from the one that serves."""
_MAX_WAITING: Final = 10_000
"""More traces than this are not kept for a slow disk."""
_CLOSE_TIMEOUT_S: Final = 3.0
"""How long a stopping server waits for the last traces: a collector that does not answer must not keep it."""


class Destination(Protocol):
    """Where traces go; used by one thread."""

    def take(self, traces: list[SampledTrace]) -> None:
        """Take finished traces."""

    def close(self) -> None:
        """Bring what is left where it goes."""


class Tracing:
    """The trace extension of one server. Loop thread only, but for its own thread."""

    __slots__ = (
        "_done",
        "_is_closing",
        "_num_dropped",
        "_reads_context",
        "_settings",
        "_thread",
        "is_on",
    )

    def __init__(self, options: TraceOptions) -> None:
        """Prepare; `start` comes before the first request."""
        self._settings = TraceSettings(options)
        self._reads_context = options.mode is TraceMode.OPENTELEMETRY
        self._thread: threading.Thread | None = None
        self._done: queue.SimpleQueue[SampledTrace | TraceSetting | threading.Event] = queue.SimpleQueue()
        self._is_closing = threading.Event()
        self._num_dropped = 0
        self.is_on = False
        """Whether any request may be sampled: front ends and callers in this process `offer` theirs only then."""
        self._update_state()

    def start(self) -> None:
        """Take finished traces from now on, until `close`. A file is not opened before there is one.

        Raises:
            InvalidArgument: OpenTelemetry's library is not installed, or does not take a setting.
        """
        self._is_closing.clear()
        if self._reads_context:
            self._start()
        self._tell_limits()

    # Settings

    def describe(self, model: str = "") -> dict[str, list[str]]:
        """Return the setting that is valid for ``model``, or for all that have none of their own."""
        return self._settings.describe(model)

    def update(self, model: str, changes: Values) -> None:
        """Change the setting of ``model``, or of the server; as `TraceSettings.update`."""
        for setting in self._settings.update(model, changes):
            if self._thread is not None:
                self._done.put(setting)
        self._update_state()
        self._tell_limits()

    def _update_state(self) -> None:
        """Nothing is offered while nothing can be sampled, so that it costs nothing."""
        settings = tuple(self._settings.all())
        self.is_on = any(
            setting.samples_any or (self._reads_context and setting.level) for setting in settings
        )

    def _tell_limits(self) -> None:
        if self._reads_context and any("TENSORS" in setting.level for setting in self._settings.all()):
            log.error("Tensor level tracing is not supported by the mode: opentelemetry")

    # Requests

    def read_context(self, fields: Mapping[bytes, bytes]) -> TraceContext | None:
        """Return the context that a request's headers or metadata bring along, if this server goes by it."""
        return TraceContext.read(fields) if self._reads_context else None

    def offer(
        self,
        request: InferenceRequest,
        source: TraceSource | None = None,
        parent: TraceContext | None = None,
        receive_ns: int = 0,
    ) -> None:
        """Count ``request``, which is about to be submitted, and trace it if it is its turn, or if it has a ``parent``.

        Afterwards it has to be submitted. For the others see `SampledTrace`.
        """
        settings = self._settings
        setting = settings.models.get(request.model_name) or settings.current
        if not setting.sample(is_forced=parent is not None and bool(setting.level)):
            return
        SampledTrace(
            request,
            setting,
            self._finish,
            source=source,
            parent=parent,
            receive_ns=receive_ns,
            is_exported=self._reads_context,
        )
        if setting.count == 0:
            self._update_state()

    def _finish(self, trace: SampledTrace) -> None:
        if self._is_closing.is_set():
            return
        if self._thread is None:
            self._start()
        if self._done.qsize() < _MAX_WAITING:
            self._done.put(trace)
            return
        if not self._num_dropped:
            log.warning(
                "traces come faster than they can be written: those beyond %d are dropped", _MAX_WAITING
            )
        self._num_dropped += 1

    # The thread

    def _start(self) -> None:
        options = self._settings.options
        destination: Destination = (
            OtlpExporter(options.opentelemetry) if self._reads_context else TraceFiles(options.file)
        )
        self._thread = threading.Thread(
            target=self._run, args=(destination,), name="bireme-traces", daemon=True
        )
        self._thread.start()

    def _run(self, destination: Destination) -> None:
        while not self._is_closing.is_set():
            first = self._done.get()
            if not isinstance(first, threading.Event):
                self._is_closing.wait(_PERIOD_S)
            self._take(destination, first)
        try:
            destination.close()
        except Exception:
            log.exception("the last traces could not be written")

    def _take(self, destination: Destination, first: SampledTrace | TraceSetting | threading.Event) -> None:
        """Bring ``first``, and all that has come behind it, to where it goes."""
        waiting = [first]
        while not self._done.empty():
            waiting.append(self._done.get())
        traces: list[SampledTrace] = []
        try:
            for each in waiting:
                if isinstance(each, SampledTrace):
                    traces.append(each)
                elif isinstance(each, TraceSetting) and isinstance(destination, TraceFiles):
                    destination.take(traces)
                    traces = []
                    destination.retire(each)
            destination.take(traces)
        except Exception:  # the thread goes on
            log.exception("traces could not be written")
        for each in waiting:
            if isinstance(each, threading.Event):
                each.set()

    def flush(self, timeout_s: float = _CLOSE_TIMEOUT_S) -> None:
        """Wait until all finished traces have been taken by where they go. Blocking: not on the loop thread."""
        if self._thread is None:
            return
        taken = threading.Event()
        self._done.put(taken)
        taken.wait(timeout_s)

    def close(self) -> None:
        """Write what is left, and end the thread. Blocking: not on the loop thread."""
        thread, self._thread = self._thread, None
        if thread is None:
            return
        self._is_closing.set()
        self._done.put(threading.Event())
        thread.join(_CLOSE_TIMEOUT_S)
