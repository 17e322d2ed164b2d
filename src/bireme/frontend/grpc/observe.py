"""Methods that look and change nothing: health, metadata, config, statistics.

All of them answer at once, but for the readiness of models that have a say in it.

Source: Triton ``grpc_server.cc`` (``RegisterServerLive`` … ``RegisterModelStatistics``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from bireme.config import proto
from bireme.engine.step_namespaces import with_names
from bireme.frontend import health, on_demand
from bireme.wire.grpc import message_class
from bireme.wire.model_version import parse_model_version

if TYPE_CHECKING:
    from bireme.frontend.grpc.api import GrpcApi


def server_live(api: GrpcApi, _: Any) -> Any:
    """``ServerLive``: well while models are still being loaded, too."""
    return message_class("inference.ServerLiveResponse")(live=health.is_live(api.server))


def server_ready(api: GrpcApi, _: Any) -> Any:
    """``ServerReady``."""
    if api.server.asks_models:
        return _ask_all(api)
    return message_class("inference.ServerReadyResponse")(ready=health.is_ready(api.server))


async def _ask_all(api: GrpcApi) -> Any:
    return message_class("inference.ServerReadyResponse")(ready=await health.check_ready(api.server))


def model_ready(api: GrpcApi, request: Any) -> Any:
    """``ModelReady``: false for a version that serves and cannot run now; one that does not serve is an error."""
    name, version = request.name, parse_model_version(request.version)
    if api.server.asks_models:
        return _ask_model(api, name, version)
    return message_class("inference.ModelReadyResponse")(ready=api.server.is_model_ready(name, version))


async def _ask_model(api: GrpcApi, name: str, version: int) -> Any:
    is_ready = await api.server.check_model_ready(name, version)
    return message_class("inference.ModelReadyResponse")(ready=is_ready)


def server_metadata(api: GrpcApi, _: Any) -> Any:
    """``ServerMetadata``."""
    return message_class("inference.ServerMetadataResponse")(**api.server.metadata())


def model_metadata(api: GrpcApi, request: Any) -> Any:
    """``ModelMetadata``."""
    if on_demand.must_wait(api.server, request.name):
        return _load_first(api, request, model_metadata)
    metadata = api.server.model_metadata(request.name, parse_model_version(request.version))
    return message_class("inference.ModelMetadataResponse")(**metadata)


def model_config(api: GrpcApi, request: Any) -> Any:
    """``ModelConfig``: the whole config that the version runs with."""
    if on_demand.must_wait(api.server, request.name):
        return _load_first(api, request, model_config)
    model = api.server.model(request.name, parse_model_version(request.version))
    return message_class("inference.ModelConfigResponse")(config=proto.to_proto(with_names(model.config)))


async def _load_first(api: GrpcApi, request: Any, method: Callable[[GrpcApi, Any], Any]) -> Any:
    await on_demand.wait_for(api.server, request.name)
    return method(api, request)


def model_statistics(api: GrpcApi, request: Any) -> Any:
    """``ModelStatistics``: of one model, of one version, or of all; without a name the version has no effect."""
    version = parse_model_version(request.version)
    statistics = api.server.model_statistics(request.name or None, version)
    entries = [_statistics_fields(entry) for entry in statistics["model_stats"]]
    return message_class("inference.ModelStatisticsResponse")(model_stats=entries)


def _statistics_fields(entry: dict[str, Any]) -> dict[str, Any]:
    """Return a version's statistics with messages as the values of its map, which not every protobuf makes itself."""
    make = message_class("inference.InferResponseStatistics")
    responses = {key: make(**value) for key, value in entry["response_stats"].items()}
    return {**entry, "response_stats": responses}
