"""Routes that look and change nothing: health, metadata, config, statistics.

All of them answer at once, but for the readiness of models that have a say in it.

Source: Triton ``http_server.cc`` (``HandleServerHealth`` … ``HandleModelStats``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bireme.frontend import health, on_demand
from bireme.frontend.http.call import Call
from bireme.types import InvalidArgument


def server_live(call: Call) -> None:
    """``GET /v2/health/live``: well while models are still being loaded, too."""
    _reply_health(call, is_well=health.is_live(call.server))


def server_ready(call: Call) -> None:
    """``GET /v2/health/ready``."""
    if call.server.asks_models:
        call.exchange.work = call.api.spawn(call.exchange, _ask_all(call))
    else:
        _reply_health(call, is_well=health.is_ready(call.server))


async def _ask_all(call: Call) -> None:
    _reply_health(call, is_well=await health.check_ready(call.server))


def model_ready(call: Call) -> None:
    """``GET /v2/models/{M}[/versions/{V}]/ready``."""
    name, version = call.target.model, call.target.version_number
    if call.server.asks_models:
        call.exchange.work = call.api.spawn(call.exchange, _ask_model(call, name, version))
    else:
        _reply_model_ready(call, is_ready=call.server.is_model_ready(name, version))


async def _ask_model(call: Call, name: str, version: int) -> None:
    _reply_model_ready(call, is_ready=await call.server.check_model_ready(name, version))


def _reply_model_ready(call: Call, *, is_ready: bool) -> None:
    if not is_ready:
        raise InvalidArgument("Model version not ready")
    _reply_health(call, is_well=True)


def server_metadata(call: Call) -> None:
    """``GET /v2``."""
    call.reply_json(call.server.metadata())


def model_metadata(call: Call) -> None:
    """``GET /v2/models/{M}[/versions/{V}]``."""
    _when_loaded(call, lambda: call.server.model_metadata(call.target.model, call.target.version_number))


def model_config(call: Call) -> None:
    """``GET /v2/models/{M}[/versions/{V}]/config``."""
    _when_loaded(call, lambda: call.server.model_config(call.target.model, call.target.version_number))


def _when_loaded(call: Call, describe: Callable[[], Any]) -> None:
    """Reply what ``describe`` returns, once the model is loaded."""
    if on_demand.must_wait(call.server, call.target.model):
        call.exchange.work = call.api.spawn(call.exchange, _load_first(call, describe))
    else:
        call.reply_json(describe())


async def _load_first(call: Call, describe: Callable[[], Any]) -> None:
    await on_demand.wait_for(call.server, call.target.model)
    call.reply_json(describe())


def model_statistics(call: Call) -> None:
    """``GET /v2/models/{M}[/versions/{V}]/stats``."""
    call.reply_json(call.server.model_statistics(call.target.model, call.target.version_number))


def all_statistics(call: Call) -> None:
    """``GET /v2/models/stats``."""
    call.reply_json(call.server.model_statistics())


def _reply_health(call: Call, *, is_well: bool) -> None:
    """Answer with the status alone: probes read nothing else."""
    call.exchange.reply(200 if is_well else 400, b"", b"")
