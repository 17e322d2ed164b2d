"""Runtime: what the classes that models use need from below; one implementation per way of running a model.

In a worker process it talks to the server over the channel, in a thread of the server to the engine itself. Requests,
responses and tensors are those of `bireme.types` either way.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol

from bireme.types import InferenceRequest, InferenceResponse


class CallsRefused(RuntimeError):
    """The model cannot call others, for a reason of its own that its message says."""


class ResponseStream(Protocol):
    """The responses of a decoupled call, in order, ended by a final one (which may be flag-only)."""

    def __next__(self) -> InferenceResponse:
        """Wait for the next response and return it. After the final one: StopIteration."""

    async def __anext__(self) -> InferenceResponse:
        """As `__next__`, without holding up the running loop."""

    def cancel(self) -> None:
        """Ask the server to cancel the call; responses may still come, the last one is final."""

    def close(self) -> None:
        """Nobody reads on: what still comes is dropped."""


class Runtime(Protocol):
    """The model instance's way to the server. Every method may be called from any thread of the model."""

    model_name: str
    version_dir: str

    def infer(self, request: InferenceRequest) -> InferenceResponse:
        """Run another model and wait for its one response; failures are responses with an error, too.

        Raises:
            RuntimeError: the model is not executing (initialize, finalize).
        """

    def infer_async(self, request: InferenceRequest) -> Awaitable[InferenceResponse]:
        """As `infer`, for the running asyncio loop."""

    def stream(self, request: InferenceRequest) -> ResponseStream:
        """Run another model, of any number of responses. Raises as `infer`."""

    def respond(self, request: InferenceRequest, response: InferenceResponse) -> None:
        """Send a response of ``request``, which this instance runs; ``response.final`` closes it.

        The response's tensors are taken as they are now: nobody may write to them afterwards.
        """

    def abandon(self, request: InferenceRequest) -> None:
        """The last way to answer ``request`` was dropped before a final response."""

    def is_cancelled(self, request: InferenceRequest) -> bool:
        """Whether the caller of ``request`` has taken it back, as far as the server has said by now."""

    def log(self, level: int, message: str, file: str, line: int) -> None:
        """Write a line into the server's log; ``level`` as in `logging`, 5 is verbose."""

    def load_model(self, name: str, config: str, files: Mapping[str, bytes] | None) -> None:
        """Load a model and wait until it serves.

        Raises:
            BiremeError: the server refused, or the model failed to load.
        """

    def unload_model(self, name: str, *, unload_dependents: bool) -> None:
        """Unload a model. Raises as `load_model`."""

    def is_model_ready(self, name: str, version: str) -> bool:
        """Whether a model version (empty: the latest) can run now."""

    def metric(self, operation: str, **arguments: Any) -> float | None:
        """Do ``operation`` of a custom metric.

        One of ``family``, ``drop_family``, ``series``, ``drop_series``, ``increment``, ``set``, ``observe`` and ``value``.
        Arguments and errors: `bireme.telemetry.custom_metrics.CustomMetrics`.
        """


_find_current: Callable[[], Runtime] | None = None


def current() -> Runtime:
    """Return the runtime of the model whose code is running.

    Raises:
        RuntimeError: no model is running here.
    """
    if _find_current is None:
        raise RuntimeError("no model is running in this process")
    return _find_current()


def set_current(find: Callable[[], Runtime]) -> None:
    """Have `current` ask ``find``: in a worker always the same runtime, among threads the calling thread's own."""
    global _find_current  # noqa: PLW0603 (one per process, set when the first model starts)
    _find_current = find
