"""gRPC methods that change the server: repository index, load, unload, trace and log settings."""

from __future__ import annotations

import asyncio

import pytest

from bireme.telemetry import log
from bireme.types import InvalidArgument, Unavailable, Unsupported
from grpc_handlers import ask, ask_blocking, ask_later
from http_fakes import FakeServer


@pytest.fixture
def server():
    return FakeServer()


# Repository


@pytest.mark.parametrize("ready", [False, True])
def test_index(server, ready):
    asked = []
    entries = [
        {"name": "a", "version": "1", "state": "READY", "reason": ""},
        {"name": "b", "version": "2", "state": "UNAVAILABLE", "reason": "it broke"},
        {"name": "c"},
    ]
    server.repository_index = lambda ready: asked.append(ready) or entries

    reply = ask(server, "RepositoryIndex", ready=ready)

    assert asked == [ready]
    assert [(each.name, each.version, each.state, each.reason) for each in reply.models] == [
        ("a", "1", "READY", ""),
        ("b", "2", "UNAVAILABLE", "it broke"),
        ("c", "", "", ""),
    ]


def test_a_repository_name_is_unsupported(server):
    with pytest.raises(Unsupported, match=r"^'repository_name' specification is not supported$"):
        ask(server, "RepositoryIndex", repository_name="r")
    for name in ("RepositoryModelLoad", "RepositoryModelUnload"):
        with pytest.raises(Unsupported, match=r"^'repository_name' specification is not supported$"):
            ask_blocking(server, name, repository_name="r", model_name="m")
    assert not server.calls


def test_a_load_answers_when_the_model_serves(server):
    async def scenario():
        server.load_gate = asyncio.Event()
        task = asyncio.create_task(ask_later(server, "RepositoryModelLoad", model_name="m"))
        await asyncio.sleep(0)
        assert not task.done()
        server.load_gate.set()
        await task

    asyncio.run(scenario())
    assert server.calls == [("load", "m", None, {})]


def test_a_load_takes_a_config_and_raw_files(server):
    given = {
        "config": {"string_param": '{"name": "m"}'},
        "file:1/model.onnx": {"bytes_param": b"\x00\xff raw"},
        "file:labels.txt": {"bytes_param": b""},
    }

    ask_blocking(server, "RepositoryModelLoad", model_name="m", parameters=given)

    assert server.calls == [
        ("load", "m", '{"name": "m"}', {"1/model.onnx": b"\x00\xff raw", "labels.txt": b""})
    ]


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("config", {"bytes_param": b"{}"}, "invalid value type for load parameter 'config', expected string_param."),
        ("config", {}, "invalid value type for load parameter 'config', expected string_param."),
        ("file:x", {"string_param": "eA=="}, "invalid value type for load parameter 'file:x', expected bytes_param."),
        ("file", {"bytes_param": b""}, "unrecognized load parameter 'file'."),
        ("Config", {"string_param": "{}"}, "unrecognized load parameter 'Config'."),
        ("unload_dependents", {"bool_param": True}, "unrecognized load parameter 'unload_dependents'."),
    ],
)  # fmt: skip
def test_other_load_parameters_are_refused(server, key, value, message):
    with pytest.raises(InvalidArgument) as raised:
        ask_blocking(server, "RepositoryModelLoad", model_name="m", parameters={key: value})

    assert raised.value.message == message
    assert not server.calls


@pytest.mark.parametrize(
    ("given", "dependents"),
    [
        ({}, False),
        ({"unload_dependents": {"bool_param": True}}, True),
        ({"unload_dependents": {"bool_param": False}}, False),
        ({"other": {"string_param": "ignored"}}, False),
    ],
)
def test_unload(server, given, dependents):
    ask_blocking(server, "RepositoryModelUnload", model_name="m", parameters=given)

    assert server.calls == [("unload", "m", dependents)]


def test_unload_dependents_must_be_a_boolean(server):
    given = {"unload_dependents": {"int64_param": 1}}

    with pytest.raises(InvalidArgument) as raised:
        ask_blocking(server, "RepositoryModelUnload", model_name="m", parameters=given)
    assert raised.value.message == (
        "invalid value type for 'unload_dependents' parameter, expected bool_param."
    )
    assert not server.calls


@pytest.mark.parametrize("name", ["RepositoryModelLoad", "RepositoryModelUnload"])
def test_control_errors_are_the_engines(server, name):
    server.control_error = Unavailable("explicit model load / unload is not allowed")

    with pytest.raises(Unavailable, match="is not allowed"):
        ask_blocking(server, name, model_name="m")


# Logging


@pytest.fixture
def _default_log_settings():
    yield
    log.settings.uninstall()


def settings_of(reply):
    return {
        key: (value.WhichOneof("parameter_choice"), getattr(value, value.WhichOneof("parameter_choice")))
        for key, value in reply.settings.items()
    }


DEFAULTS = {
    "log_file": ("string_param", ""),
    "log_info": ("bool_param", True),
    "log_warning": ("bool_param", True),
    "log_error": ("bool_param", True),
    "log_verbose_level": ("uint32_param", 0),
    "log_format": ("string_param", "default"),
}


@pytest.mark.usefixtures("_default_log_settings")
def test_log_settings_are_read_and_changed(server):
    assert settings_of(ask(server, "LogSettings")) == DEFAULTS

    changes = {
        "log_info": {"bool_param": False},
        "log_verbose_level": {"uint32_param": 3},
        "log_format": {"string_param": "ISO8601"},
    }
    reply = ask(server, "LogSettings", settings=changes)

    assert settings_of(reply) == DEFAULTS | {
        "log_info": ("bool_param", False),
        "log_verbose_level": ("uint32_param", 3),
        "log_format": ("string_param", "ISO8601"),
    }
    assert settings_of(ask(server, "LogSettings")) == settings_of(reply)


@pytest.mark.usefixtures("_default_log_settings")
@pytest.mark.parametrize(
    ("key", "value", "error", "message"),
    [
        ("log_file", {"string_param": "x"}, Unsupported, "log file location can not be updated"),
        ("log_file", {}, Unsupported, "log file location can not be updated through network protocol"),
        ("log_info", {"string_param": "true"}, InvalidArgument, "expect boolean for 'log_info', got string_param"),
        ("log_warning", {"uint32_param": 1}, InvalidArgument, "expect boolean for 'log_warning'"),
        ("log_error", {}, InvalidArgument, "expect boolean for 'log_error', got nothing"),
        ("log_verbose_level", {"bool_param": True}, InvalidArgument, "expect uint32 for 'log_verbose_level'"),
        ("log_format", {"bool_param": True}, InvalidArgument, "expect string for 'log_format', got bool_param"),
        ("log_format", {"string_param": "neither"}, InvalidArgument, "got: neither; expected one of default"),
    ],
)  # fmt: skip
def test_wrong_log_settings_are_refused_and_nothing_changes(server, key, value, error, message):
    others = {"log_info": {"bool_param": False}, "log_verbose_level": {"uint32_param": 1}}

    with pytest.raises(error) as raised:
        ask(server, "LogSettings", settings=others | {key: value})

    assert message in raised.value.message
    assert settings_of(ask(server, "LogSettings")) == DEFAULTS


@pytest.mark.usefixtures("_default_log_settings")
def test_unknown_log_settings_are_ignored(server):
    unknown = {"log_colour": {"string_param": "red"}, "log_nothing": {}}

    assert settings_of(ask(server, "LogSettings", settings=unknown)) == DEFAULTS


@pytest.mark.usefixtures("_default_log_settings")
def test_a_verbose_level_beyond_32_bits_is_answered_as_the_largest(server):
    """HTTP can set one."""
    log.settings.update({"log_verbose_level": 1 << 40})

    assert settings_of(ask(server, "LogSettings"))["log_verbose_level"] == ("uint32_param", (1 << 32) - 1)
