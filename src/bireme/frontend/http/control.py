"""Routes that change the server: repository index, load, unload, log and trace settings.

Loads and unloads run as tasks of their own: they go on when the client leaves, and of the connection's later requests
only the answers wait for theirs.

Source: Triton ``http_server.cc`` (``HandleRepositoryIndex``, ``HandleRepositoryControl``, ``HandleLogging``,
``HandleTrace``).
"""

from __future__ import annotations

from bireme.frontend.http.call import Call
from bireme.frontend.trace_settings import trace_model
from bireme.telemetry import log
from bireme.telemetry.tracing import read_changes
from bireme.types import Unsupported
from bireme.wire.http import (
    decode_index_request,
    decode_load_request,
    decode_logging_request,
    decode_trace_request,
    decode_unload_request,
)

_IN_THREAD_SIZE = 256 << 10
"""Bytes of a load body from which on it is decoded beside the loop: it holds model files in base64."""


def repository_index(call: Call) -> None:
    """``POST /v2/repository[/{R}]/index``; the repository's name is taken and ignored."""
    ready = decode_index_request(call.exchange.body, call.api.limits)
    if call.server.has_remote_repositories:
        call.api.spawn(call.exchange, _fetch_index(call, ready=ready))
    else:
        call.reply_json(call.server.repository_index(ready))


def load(call: Call) -> None:
    """``POST /v2/repository[/{R}]/models/{M}/load``: answered when the model serves."""
    _refuse_repository(call)
    call.api.spawn(call.exchange, _load(call))


def unload(call: Call) -> None:
    """``POST /v2/repository[/{R}]/models/{M}/unload``: answered when the model takes no more requests."""
    _refuse_repository(call)
    call.api.spawn(call.exchange, _unload(call))


def logging(call: Call) -> None:
    """``GET`` and ``POST /v2/logging``: both answer with the settings, POST changes them first."""
    if call.exchange.head.method == b"POST":
        log.settings.update(decode_logging_request(call.exchange.body, call.api.limits))
    call.reply_json(log.settings.get())


def trace_settings(call: Call) -> None:
    """``GET`` and ``POST /v2[/models/{M}]/trace/setting``: both answer with what is valid, POST changes it first."""
    model = trace_model(call.server, call.target.model)
    tracing = call.server.tracing
    if call.exchange.head.method == b"POST":
        tracing.update(model, read_changes(decode_trace_request(call.exchange.body, call.api.limits)))
    told = tracing.describe(model)
    call.reply_json({key: texts if key == "trace_level" else ",".join(texts) for key, texts in told.items()})


async def _fetch_index(call: Call, *, ready: bool) -> None:
    call.reply_json(await call.server.fetch_index(ready=ready))


async def _load(call: Call) -> None:
    body = call.exchange.body
    if len(body) > _IN_THREAD_SIZE:
        parameters = await call.api.in_thread(decode_load_request, body, call.api.limits)
    else:
        parameters = decode_load_request(body, call.api.limits)
    await call.server.load_model(call.target.model, parameters.config, parameters.files)
    call.exchange.reply(200)


async def _unload(call: Call) -> None:
    dependents = decode_unload_request(call.exchange.body, call.api.limits)
    await call.server.unload_model(call.target.model, unload_dependents=dependents)
    call.exchange.reply(200)


def _refuse_repository(call: Call) -> None:
    if call.target.repository:
        raise Unsupported("'repository_name' specification is not supported")
