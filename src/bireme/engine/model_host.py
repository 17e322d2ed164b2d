"""ModelHost: the server, as seen by the models that it runs (`bireme.backends.interface.Host`).

It goes to the models directly, so that they can call each other until the last request has been answered, when clients
are refused already.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING

from bireme.config import ModelConfig
from bireme.engine.load_plan import LoadOverride
from bireme.engine.request_deadlines import REQUEST_PARAMETER, take_deadline
from bireme.telemetry import spans
from bireme.types import BiremeError, InferenceRequest, InferenceResponse, Unavailable, Way

if TYPE_CHECKING:
    from bireme.engine.lifecycle import Lifecycle
    from bireme.engine.model import Model
    from bireme.engine.on_demand import OnDemand
    from bireme.ipc.arena import Arena
    from bireme.telemetry import ServerMetrics


class ModelHost:
    """See `bireme.backends.interface.Host`. Loop thread only."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, *, arena: Arena, metrics: ServerMetrics, allows_loads: bool
    ) -> None:
        """``allows_loads``: models may load and unload others (explicit control mode)."""
        self.loop = loop
        self.arena = arena
        self.custom_metrics = metrics.custom
        self._allows_loads = allows_loads
        self.lifecycle: Lifecycle
        """Set before the first model is loaded."""
        self.on_demand: OnDemand | None = None
        """Loads models that are called; None: nobody does."""

    def submit(self, request: InferenceRequest) -> None:
        """Give ``request`` to its model."""
        if request.parent is not None or request.trace_context is not None:
            spans.begin_call(request, request.parent)
        try:
            if request.parameters is not None and REQUEST_PARAMETER in request.parameters:
                take_deadline(request)
            name, version = request.model_name, request.model_version
            model = self._look_up(name, version) or self.lifecycle.table.find_lingering(name, version)
            if model is None:
                if self.on_demand is not None and self.on_demand.take(request, self.submit):
                    return
                raise self.lifecycle.table.refusal(name, version)
            model.enqueue(request)
        except BiremeError as error:
            spans.refuse_call(request, error)
            raise

    def call_directly(self, request: InferenceRequest) -> InferenceResponse | None:
        """Run ``request`` on the calling thread, if that is possible."""
        model = self._look_up(request.model_name, request.model_version)
        if model is None or model.direct_calls is None:
            return None
        try:
            return model.direct_calls.call(request)
        except BiremeError as error:
            if request.parent is not None:
                spans.begin_call(request, request.parent)
                spans.refuse_call(request, error)
            raise

    def way_to(self, name: str, version: int) -> Way:
        """Return the shortest way to the model. Any thread."""
        model = self._look_up(name, version)
        return "queue" if model is None else model.way

    def cancel(self, request: InferenceRequest) -> None:
        """Take ``request`` back."""
        model: Model | None = request.owner
        if model is not None:
            model.cancel(request)

    def expect(self, name: str, version: int) -> None:
        """Let an instance of the model be awake, if it is free and sleeps."""
        model = self._look_up(name, version)
        if model is not None:
            model.pool.expect()

    def hold(self, request: InferenceRequest) -> None:
        """Let no more responses to ``request`` come for now."""
        model: Model | None = request.owner
        if model is not None:
            model.hold(request)

    def resume(self, request: InferenceRequest) -> None:
        """Let the responses to ``request`` come again."""
        model: Model | None = request.owner
        if model is not None:
            model.resume(request)

    def find_config(self, name: str, version: int) -> ModelConfig:
        """Return the config that a model version runs with. Any thread."""
        return self._find(name, version).config

    def is_model_decoupled(self, name: str, version: int) -> bool:
        """Whether the model answers any number of times."""
        if self.on_demand is not None and self.on_demand.wants(name):
            return self.on_demand.is_decoupled(name)
        return self._find(name, version).is_decoupled

    async def is_model_ready(self, name: str, version: int) -> bool:
        """Whether the model version can run now."""
        try:
            if self.on_demand is not None and self.on_demand.is_loadable(name):
                return True
            model = self._find(name, version)
        except BiremeError:
            return False
        return await model.check_ready()

    async def load_model(self, name: str, config: str | None, files: Mapping[str, bytes] | None) -> None:
        """Load or reload a model."""
        self._require_loads()
        await self.lifecycle.load(name, LoadOverride(config, dict(files or {})))

    async def unload_model(self, name: str, *, unload_dependents: bool) -> None:
        """Unload a model."""
        self._require_loads()
        await self.lifecycle.unload(name, unload_dependents=unload_dependents)

    def _require_loads(self) -> None:
        if not self._allows_loads:
            raise Unavailable("explicit model load / unload is not allowed if polling is enabled")

    def _find(self, name: str, version: int) -> Model:
        model = self._look_up(name, version)
        if model is None:
            raise self.lifecycle.table.refusal(name, version)
        return model

    def _look_up(self, name: str, version: int) -> Model | None:
        table = self.lifecycle.table
        return table.latest.get(name) if version == -1 else table.versions.get((name, version))
