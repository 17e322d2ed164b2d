"""The routes beside inference: health, metadata, config, statistics, repository, logging."""

from __future__ import annotations

import asyncio
import base64
import json

import pytest

from bireme.engine.server_state import ServerState
from bireme.telemetry import log
from bireme.types import InvalidArgument, Unavailable
from http_fakes import FakeServer, Scene, request, until


@pytest.fixture
def scene():
    return Scene()


def post(path: str, document: object = None) -> bytes:
    return request(path, b"" if document is None else json.dumps(document).encode(), method="POST")


# Health


@pytest.mark.parametrize(
    ("state", "is_ready", "live", "ready"),
    [
        (ServerState.NEW, False, 400, 400),
        (ServerState.INITIALIZING, False, 200, 400),
        (ServerState.READY, False, 200, 400),
        (ServerState.READY, True, 200, 200),
        (ServerState.FAILED, False, 400, 400),
        (ServerState.EXITING, False, 503, 503),
        (ServerState.STOPPED, False, 503, 503),
    ],
)
def test_server_health(scene, state, is_ready, live, ready):
    scene.server.state = state
    scene.server.is_ready = is_ready

    for kind, expected in (("live", live), ("ready", ready)):
        reply = scene.ask(request(f"/v2/health/{kind}"))
        assert reply.status == expected
        assert bool(reply.body) == (expected == 503)


def test_model_health(scene):
    assert (scene.ask(request("/v2/models/m/ready")).status, scene.client.reply().body) == (200, b"")
    scene.server.models["m"].version = 0
    reply = scene.ask(request("/v2/models/m/versions/1/ready"))
    assert (reply.status, json.loads(reply.body)) == (400, {"error": "Model version not ready"})
    assert scene.ask(request("/v2/models/x/ready")).status == 404


# Descriptions


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/v2", {"name": "triton"}),
        ("/v2/models/m", {"metadata of": "m", "version": -1}),
        ("/v2/models/m/versions/3", {"metadata of": "m", "version": 3}),
        ("/v2/models/m/config", {"config of": "m", "version": -1}),
        ("/v2/models/m/versions/3/config", {"config of": "m", "version": 3}),
        ("/v2/models/m/stats", {"statistics of": "m", "version": -1}),
        ("/v2/models/m/versions/03/stats", {"statistics of": "m", "version": 3}),
        ("/v2/models/stats", {"statistics of": None, "version": -1}),
    ],
)
def test_descriptions_are_json(scene, path, expected):
    reply = scene.ask(request(path + "?query=ignored"))

    assert (reply.status, json.loads(reply.body)) == (200, expected)
    assert reply.headers["content-type"] == "application/json"


@pytest.mark.parametrize(
    ("path", "body"),
    [("/v2/health/ready", b""), ("/v2/models/m/ready", b'{"error":"Model version not ready"}')],
)
@pytest.mark.parametrize("is_ready", [True, False])
def test_models_that_have_a_say_are_asked(path, body, is_ready):
    async def scenario():
        scene = Scene()
        scene.server.asks_models = True
        scene.server.hook = asyncio.get_running_loop().create_future()
        scene.client.send(request(path) + request("/v2/health/live"))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not scene.client.replies
        scene.server.hook.set_result(is_ready)
        await until(lambda: scene.client.replies)
        reply, live = scene.client.replies
        assert (reply.status, reply.body) == ((200, b"") if is_ready else (400, body))
        assert live.status == 200
        assert (await scene.ask_later(request("/v2/models/x/ready"))).status == 404
        await scene.api.stop()

    asyncio.run(scenario())


def test_a_probe_that_leaves_does_not_wait_for_the_models_answer():
    async def scenario():
        scene = Scene()
        scene.server.asks_models = True
        scene.server.hook = asyncio.get_running_loop().create_future()
        scene.client.send(request("/v2/models/m/ready"))
        await asyncio.sleep(0)
        scene.client.leave()
        await asyncio.sleep(0)
        assert scene.server.hook.cancelled()
        await scene.api.stop()

    asyncio.run(scenario())


@pytest.mark.parametrize("suffix", ["", "/config", "/ready"])
def test_unknown_models_are_404(scene, suffix):
    reply = scene.ask(request(f"/v2/models/x{suffix}"))

    assert reply.status == 404
    assert json.loads(reply.body) == {"error": "Request for unknown model: 'x' is not found"}


@pytest.mark.parametrize("digits", ["9223372036854775808", "9" * 5000])
@pytest.mark.parametrize("suffix", ["", "/config", "/ready", "/stats"])
def test_a_version_beyond_64_bits_is_a_400(scene, digits, suffix):
    reply = scene.ask(request(f"/v2/models/m/versions/{digits}{suffix}"))

    assert reply.status == 400
    assert json.loads(reply.body)["error"].startswith(
        "failed to get model version from specified version string"
    )


# Repository


@pytest.mark.parametrize(
    ("body", "ready"), [(None, False), ({}, False), ({"ready": True}, True), ({"ready": False}, False)]
)
@pytest.mark.parametrize("path", ["/v2/repository/index", "/v2/repository/any/index"])
def test_index(scene, path, body, ready):
    reply = scene.ask(post(path, body))

    assert (reply.status, json.loads(reply.body)) == (200, [{"name": "m", "ready": ready}])


@pytest.mark.parametrize("body", [{"ready": 1}, [], "x"])
def test_index_with_a_wrong_body_is_a_400(scene, body):
    assert scene.ask(post("/v2/repository/index", body)).status == 400


def test_load_and_unload_answer_when_they_are_done():
    async def scenario():
        scene = Scene()
        scene.server.load_gate = asyncio.Event()
        parameters = {"config": "{}", "file:1/model.onnx": base64.b64encode(b"onnx").decode()}
        scene.client.send(post("/v2/repository/models/m/load", {"parameters": parameters}))
        await asyncio.sleep(0)
        assert not scene.client.replies
        scene.server.load_gate.set()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        (reply,) = scene.client.replies
        assert (reply.status, reply.body) == (200, b"")
        assert (await scene.ask_later(post("/v2/repository/models/m/load"))).status == 200
        body = {"parameters": {"unload_dependents": True}}
        assert (await scene.ask_later(post("/v2/repository/models/m/unload", body))).status == 200
        assert (await scene.ask_later(post("/v2/repository/models/x/unload"))).status == 200
        assert scene.server.calls == [
            ("load", "m", "{}", {"1/model.onnx": b"onnx"}),
            ("load", "m", None, {}),
            ("unload", "m", True),
            ("unload", "x", False),
        ]
        await scene.api.stop()

    asyncio.run(scenario())


def test_large_load_bodies_are_decoded_beside_the_loop():
    async def scenario():
        scene = Scene()
        content = bytes(300_000)
        body = {"parameters": {"config": "{}", "file:1/model.onnx": base64.b64encode(content).decode()}}
        assert (await scene.ask_later(post("/v2/repository/models/m/load", body))).status == 200
        assert scene.server.calls == [("load", "m", "{}", {"1/model.onnx": content})]
        await scene.api.stop()

    asyncio.run(scenario())


def test_a_load_goes_on_when_its_client_leaves():
    async def scenario():
        scene = Scene()
        scene.server.load_gate = asyncio.Event()
        scene.client.send(post("/v2/repository/models/m/load"))
        await asyncio.sleep(0)
        scene.client.leave()
        scene.server.load_gate.set()
        await asyncio.sleep(0)
        await scene.api.stop()
        assert scene.client.transport.written == b""
        assert len(scene.server.calls) == 1

    asyncio.run(scenario())


@pytest.mark.parametrize("action", ["load", "unload"])
def test_control_errors_keep_their_status(action):
    async def scenario():
        scene = Scene()
        path = f"/v2/repository/models/m/{action}"
        scene.server.control_error = Unavailable("explicit model load / unload is not allowed")
        reply = await scene.ask_later(post(path))
        assert reply.status == 503
        assert reply.headers["retry-after"] == "1"
        scene.server.control_error = InvalidArgument("load failed for model 'm'")
        assert (await scene.ask_later(post(path))).status == 400
        assert (await scene.ask_later(post(path, {"parameters": [1]}))).status == 400
        assert scene.ask(post(f"/v2/repository/r/models/m/{action}")).status == 501
        await scene.api.stop()

    asyncio.run(scenario())


def test_a_crashing_load_is_a_500(caplog):
    async def scenario():
        scene = Scene()
        scene.server.control_error = ZeroDivisionError("secret")
        reply = await scene.ask_later(post("/v2/repository/models/m/load"))
        assert reply.status == 500
        assert b"secret" not in reply.body
        await scene.api.stop()

    asyncio.run(scenario())
    assert "ZeroDivisionError: secret" in caplog.text


# Logging


@pytest.fixture
def _default_log_settings():
    yield
    log.settings.uninstall()


@pytest.mark.usefixtures("_default_log_settings")
def test_log_settings_are_read_and_changed(scene):
    before = json.loads(scene.ask(request("/v2/logging")).body)
    assert set(before) == {
        "log_file",
        "log_info",
        "log_warning",
        "log_error",
        "log_verbose_level",
        "log_format",
    }
    reply = scene.ask(post("/v2/logging", {"log_info": False, "log_format": "ISO8601", "log_error": None}))

    assert json.loads(reply.body) == before | {"log_info": False, "log_format": "ISO8601"}
    assert scene.ask(request("/v2/logging")).body == reply.body


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"log_file": "x"}, 501),
        ({"log_format": "neither"}, 503),
        ({"log_info": 1}, 400),
        ({"log_verbose_level": -1}, 400),
        ([], 400),
    ],
)
def test_wrong_log_settings_are_refused(scene, body, status):
    assert scene.ask(post("/v2/logging", body)).status == status


@pytest.mark.parametrize(
    "path",
    [
        "/v2/repository/index",
        "/v2/logging",
        "/v2/repository/models/m/load",
        "/v2/repository/models/m/unload",
    ],
)
def test_bodies_that_are_no_json_are_a_400(path):
    async def scenario():
        scene = Scene(FakeServer())
        reply = await scene.ask_later(request(path, b'{"broken'))
        assert reply.status == 400
        assert json.loads(reply.body)["error"].startswith("failed to parse the request JSON buffer:")
        await scene.api.stop()

    asyncio.run(scenario())


@pytest.mark.parametrize("path", ["/v2/repository/index", "/v2/repository/models/m/unload", "/v2/logging"])
def test_calls_with_large_bodies_are_refused_before_they_arrive(scene, path):
    """60 MB of JSON would be parsed on the loop, for seconds."""
    reply = scene.ask(request(path, b"{" + b" " * (64 << 10)))

    assert reply.status == 413
    assert b"65537 bytes exceeds the 65536 bytes that this route takes" in reply.body
