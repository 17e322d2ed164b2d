"""LoneHost: stands in for the server where a model is opened without one, as by ``bireme check``."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping

from bireme.config import ModelConfig
from bireme.ipc.arena import Arena
from bireme.telemetry.custom_metrics import CustomMetrics
from bireme.types import InferenceRequest, InferenceResponse, Unavailable, Way


class LoneHost:
    """A `bireme.backends.interface.Host` with a loop on a thread of its own, and no models."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.arena = Arena(1)
        self.custom_metrics = CustomMetrics()
        self._thread = threading.Thread(target=self.loop.run_forever, name="bireme-lone-host", daemon=True)
        self._thread.start()

    def submit(self, request: InferenceRequest) -> None:
        """Refuse it."""
        raise _no_server(f"model '{request.model_name}' cannot be called")

    def call_directly(self, request: InferenceRequest) -> InferenceResponse | None:  # noqa: ARG002
        """No model can be called."""
        return None

    def way_to(self, name: str, version: int) -> Way:  # noqa: ARG002
        """No model can be called."""
        return "queue"

    def cancel(self, request: InferenceRequest) -> None:
        """Nothing was ever submitted."""

    def expect(self, name: str, version: int) -> None:
        """No request will come."""

    def hold(self, request: InferenceRequest) -> None:
        """Nothing was ever submitted."""

    def resume(self, request: InferenceRequest) -> None:
        """Nothing was ever submitted."""

    def find_config(self, name: str, version: int) -> ModelConfig:  # noqa: ARG002
        """Refuse to say."""
        raise _no_server(f"model '{name}' does not serve")

    def is_model_decoupled(self, name: str, version: int) -> bool:  # noqa: ARG002
        """Refuse to say."""
        raise _no_server(f"model '{name}' does not serve")

    async def is_model_ready(self, name: str, version: int) -> bool:  # noqa: ARG002
        """No model is ready."""
        return False

    async def load_model(self, name: str, config: str | None, files: Mapping[str, bytes] | None) -> None:  # noqa: ARG002
        """Refuse it."""
        raise _no_server(f"model '{name}' cannot be loaded")

    async def unload_model(self, name: str, *, unload_dependents: bool) -> None:  # noqa: ARG002
        """Refuse it."""
        raise _no_server(f"model '{name}' cannot be unloaded")

    def close(self) -> None:
        """End the loop and its thread."""
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.run_until_complete(self.loop.shutdown_default_executor())
        self.loop.close()


def _no_server(what: str) -> Unavailable:
    return Unavailable(f"{what}: the model runs without a server")
