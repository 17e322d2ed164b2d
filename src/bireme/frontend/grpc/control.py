"""Methods that change the server: repository index, load, unload, trace and log settings.

Loads and unloads are coroutines: they go on when the client leaves.

Source: Triton ``grpc_server.cc`` (``RegisterRepositoryIndex`` …, ``RegisterTrace``, ``RegisterLogging``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from bireme.frontend.trace_settings import trace_model
from bireme.telemetry import log
from bireme.telemetry.tracing import read_changes
from bireme.types import InvalidArgument, Unavailable, Unsupported
from bireme.wire.grpc import message_class

if TYPE_CHECKING:
    from bireme.frontend.grpc.api import GrpcApi

_FILE_PREFIX = "file:"
_UINT32_MAX = (1 << 32) - 1

_LOG_FIELDS: Final = {
    "log_file": "string_param",
    "log_info": "bool_param",
    "log_warning": "bool_param",
    "log_error": "bool_param",
    "log_verbose_level": "uint32_param",
    "log_format": "string_param",
}
"""The variant of the oneof that holds each log setting."""
_KINDS = {"bool_param": "boolean", "uint32_param": "uint32", "string_param": "string"}


def repository_index(api: GrpcApi, request: Any) -> Any:
    """``RepositoryIndex``; unlike over HTTP, the repository's name must be empty."""
    _refuse_repository(request)
    if api.server.has_remote_repositories:
        return _fetch_index(api, request)
    return _index_response(api.server.repository_index(request.ready))


async def _fetch_index(api: GrpcApi, request: Any) -> Any:
    return _index_response(await api.server.fetch_index(ready=request.ready))


def _index_response(index: list[dict[str, str]]) -> Any:
    for entry in index:
        entry.pop("namespace", None)  # the message has no field for it
    return message_class("inference.RepositoryIndexResponse")(models=index)


async def load(api: GrpcApi, request: Any) -> Any:
    """``RepositoryModelLoad``: answered when the model serves."""
    _refuse_repository(request)
    config: str | None = None
    files: dict[str, bytes] = {}
    for key, parameter in request.parameters.items():
        if key == "config":
            config = _load_parameter(key, parameter, "string_param")
        elif key.startswith(_FILE_PREFIX):
            files[key.removeprefix(_FILE_PREFIX)] = _load_parameter(key, parameter, "bytes_param")
        else:
            raise InvalidArgument(f"unrecognized load parameter '{key}'.")
    await api.server.load_model(request.model_name, config, files)
    return message_class("inference.RepositoryModelLoadResponse")()


async def unload(api: GrpcApi, request: Any) -> Any:
    """``RepositoryModelUnload``: answered when the model takes no more requests. Other parameters have no effect."""
    _refuse_repository(request)
    dependents = False
    if "unload_dependents" in request.parameters:
        parameter = request.parameters["unload_dependents"]
        if parameter.WhichOneof("parameter_choice") != "bool_param":
            raise InvalidArgument(
                "invalid value type for 'unload_dependents' parameter, expected bool_param."
            )
        dependents = parameter.bool_param
    await api.server.unload_model(request.model_name, unload_dependents=dependents)
    return message_class("inference.RepositoryModelUnloadResponse")()


def trace_setting(api: GrpcApi, request: Any) -> Any:
    """``TraceSetting``: changes what the map says, and answers with what is valid; an empty list takes a setting back."""
    model = trace_model(api.server, request.model_name)
    texts = {key: list(setting.value) or None for key, setting in request.settings.items()}
    if texts:
        api.server.tracing.update(model, read_changes(texts))
    make = message_class("inference.TraceSettingResponse.SettingValue")
    settings = {key: make(value=value) for key, value in api.server.tracing.describe(model).items()}
    return message_class("inference.TraceSettingResponse")(settings=settings)


def log_settings(_: GrpcApi, request: Any) -> Any:
    """``LogSettings``: changes what the map says, all of it or nothing, and answers with every setting."""
    changes = {key: _log_value(key, value) for key, value in request.settings.items()}
    if changes:
        try:
            log.settings.update(changes)
        except Unavailable as error:  # of an unknown format; over gRPC it is the caller's mistake
            raise InvalidArgument(error.message) from None
    return _log_response()


def _refuse_repository(request: Any) -> None:
    if request.repository_name:
        raise Unsupported("'repository_name' specification is not supported")


def _load_parameter(key: str, parameter: Any, kind: str) -> Any:
    if parameter.WhichOneof("parameter_choice") != kind:
        raise InvalidArgument(f"invalid value type for load parameter '{key}', expected {kind}.")
    return getattr(parameter, kind)


def _log_value(key: str, value: Any) -> Any:
    """Return the value of one log setting; what it means is `bireme.telemetry.log`'s to check."""
    kind = value.WhichOneof("parameter_choice")
    expected = _LOG_FIELDS.get(key)
    if key == "log_file":
        return ""  # refused whatever it holds
    if expected is not None and kind != expected:
        raise InvalidArgument(f"expect {_KINDS[expected]} for '{key}', got {kind or 'nothing'}")
    return getattr(value, kind) if kind else None


def _log_response() -> Any:
    make = message_class("inference.LogSettingsResponse.SettingValue")
    settings = log.settings.get()
    # HTTP takes levels beyond 32 bits.
    settings["log_verbose_level"] = min(settings["log_verbose_level"], _UINT32_MAX)
    values = {key: make(**{_LOG_FIELDS[key]: value}) for key, value in settings.items()}
    return message_class("inference.LogSettingsResponse")(settings=values)
