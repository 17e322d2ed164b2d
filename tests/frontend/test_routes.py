"""Routes: which path is what, restrictions, verbs and cross-origin headers."""

from __future__ import annotations

import json

import pytest

from bireme.frontend.http import Restriction
from bireme.frontend.http.routes import find
from bireme.telemetry import log
from bireme.types import InvalidArgument
from http_fakes import Scene, request


def served(path: str) -> str:
    """Name the handler and the target of a path."""
    found = find(path.encode())
    if found is None:
        return ""
    endpoint, target = found
    name = endpoint.answer.__name__
    return " ".join([name, *filter(None, target)])


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/v2", "server_metadata"),
        ("/v2/health/live", "server_live"),
        ("/v2/health/ready", "server_ready"),
        ("/v2/models/m", "model_metadata m"),
        ("/v2/models/m/versions/7", "model_metadata m 7"),
        ("/v2/models/m/ready", "model_ready m"),
        ("/v2/models/m/versions/7/ready", "model_ready m 7"),
        ("/v2/models/m/config", "model_config m"),
        ("/v2/models/m/versions/7/config", "model_config m 7"),
        ("/v2/models/m/stats", "model_statistics m"),
        ("/v2/models/m/versions/7/stats", "model_statistics m 7"),
        ("/v2/models/stats", "all_statistics"),
        ("/v2/models/m/infer", "InferRoute m"),
        ("/v2/models/m/versions/007/infer", "InferRoute m 007"),
        ("/v2/models/m/generate", "GenerateRoute m"),
        ("/v2/models/m/versions/7/generate_stream", "GenerateStreamRoute m 7"),
        ("/v2/models/m/trace/setting", "trace_settings m"),
        ("/v2/trace/setting", "trace_settings"),
        ("/v2/logging", "logging"),
        ("/v2/repository/index", "repository_index"),
        ("/v2/repository/r/index", "repository_index r"),
        ("/v2/repository/models/m/load", "load m"),
        ("/v2/repository/r/models/m/unload", "unload m r"),
        ("/v2/systemsharedmemory/status", "system_status"),
        ("/v2/systemsharedmemory/region/n/register", "system_register n"),
        ("/v2/cudasharedmemory/region/n/status", "cuda_status n"),
        ("/v2/cudasharedmemory/unregister", "cuda_unregister"),
        # names that look like something else
        ("/v2/models/stats/ready", "model_ready stats"),
        ("/v2/models/versions/versions/1", "model_metadata versions 1"),
        ("/v2/models/a%2Fb/ready", "model_ready a%2Fb"),
        ("/v2/models/ü/ready", "model_ready ü"),
        # not there
        ("/", ""),
        ("/v1", ""),
        ("/v2/", ""),
        ("/v2/health", ""),
        ("/v2/health/live/", ""),
        ("//v2", ""),
        ("/v2/models", ""),
        ("/v2/models/", ""),
        ("/v2/models/m/", ""),
        ("/v2/models//ready", ""),
        ("/v2/models/m/versions", ""),
        ("/v2/models/m/versions/", ""),
        ("/v2/models/m/versions/x/ready", ""),
        ("/v2/models/m/versions/-1/ready", ""),
        ("/v2/models/m/versions/7/trace/setting", ""),
        ("/v2/models/m/infer/infer", ""),
        ("/v2/repository", ""),
        ("/v2/repository//index", ""),
        ("/v2/repository/r/s/index", ""),
        ("/v2/repository/models/m", ""),
        ("/v2/repository/models//load", ""),
        ("/v2/repository/models/m/reload", ""),
        ("/v2/systemsharedmemory", ""),
        ("/v2/systemsharedmemory/region//status", ""),
        ("/v2/sharedmemory/status", ""),
        ("/metrics", ""),
    ],
)
def test_paths(path, expected):
    assert served(path) == expected


def test_unknown_path_is_a_404_with_an_error_body():
    reply = Scene().ask(request("/v2/modells/m"))

    assert reply.status == 404
    assert json.loads(reply.body) == {"error": "Not Found: there is no route '/v2/modells/m'"}
    assert reply.headers["content-type"] == "application/json"


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("POST", "/v2", "GET"),
        ("POST", "/v2/health/live", "GET"),
        ("DELETE", "/v2/models/m", "GET"),
        ("GET", "/v2/models/m/infer", "POST"),
        ("PUT", "/v2/models/m/versions/1/infer", "POST"),
        ("GET", "/v2/models/m/generate", "POST"),
        ("GET", "/v2/repository/index", "POST"),
        ("GET", "/v2/repository/models/m/load", "POST"),
        ("DELETE", "/v2/logging", "GET, POST"),
        ("OPTIONS", "/v2/models/m/infer", "POST"),
        ("POST", "/v2/systemsharedmemory/status", "GET"),
        ("GET", "/v2/systemsharedmemory/unregister", "POST"),
    ],
)
def test_wrong_verb_is_a_405_that_names_the_right_ones(method, path, allowed):
    reply = Scene().ask(request(path, method=method))

    assert reply.status == 405
    assert reply.headers["allow"] == allowed
    assert json.loads(reply.body)["error"].startswith("Method Not Allowed")


# Restricted APIs


@pytest.fixture
def restricted():
    return Scene(
        restricted_apis=(
            Restriction(("inference", "statistics"), "X-Key", "open sesame"),
            (("health",), "probe", "1"),
        )
    )


@pytest.mark.parametrize(
    ("method", "path", "headers", "status"),
    [
        ("GET", "/v2/models/m/stats", {}, 403),
        ("GET", "/v2/models/m/stats", {"X-Key": "wrong"}, 403),
        ("GET", "/v2/models/m/stats", {"x-key": "open sesame"}, 200),
        ("GET", "/v2/health/live", {"X-Key": "open sesame"}, 403),
        ("GET", "/v2/health/live", {"Probe": "1"}, 200),
        ("GET", "/v2/models/m/ready", {}, 403),
        ("GET", "/v2/models/m", {}, 200),
        ("GET", "/v2/models/m/infer", {}, 403),  # the restriction comes before the verb
        ("GET", "/v2/models/m/infer", {"X-KEY": "open sesame"}, 405),
        ("GET", "/v2/nowhere", {}, 404),
    ],
)
def test_restricted_apis_need_their_header(restricted, method, path, headers, status):
    reply = restricted.ask(request(path, method=method, headers=headers))

    assert reply.status == status
    if status == 403:
        assert json.loads(reply.body)["error"].startswith("This API is restricted, expecting header '")


@pytest.mark.parametrize(
    ("groups", "text"),
    [
        (
            [(("inference", "infer"), "k", "v")],
            "unknown restricted api 'infer', expected one of health, inference",
        ),
        ([(("health",), "k", "v"), (("trace", "health"), "k", "v")], "'health' belongs to several groups"),
    ],
)
def test_restrictions_that_make_no_sense_are_errors(groups, text):
    with pytest.raises(InvalidArgument, match=text):
        Scene(restricted_apis=tuple(groups))


# Cross-origin requests

PREFLIGHT = {
    "Origin": "https://app.example",
    "Access-Control-Request-Method": "POST",
    "Access-Control-Request-Headers": "content-type,x-key",
}


def test_without_configured_origins_there_is_no_trace_of_cors():
    scene = Scene()

    reply = scene.ask(request("/v2", headers={"Origin": "https://app.example"}))
    assert not [name for name in reply.headers if name.startswith("access-control") or name == "vary"]
    assert scene.ask(request("/v2", method="OPTIONS", headers=PREFLIGHT)).status == 405


@pytest.mark.parametrize(
    ("origins", "allowed"),
    [(("*",), "*"), (("https://other.example", "https://app.example"), "https://app.example")],
)
def test_configured_origins_may_call(origins, allowed):
    scene = Scene(cors_origins=origins)

    for path in ("/v2", "/v2/nowhere"):
        reply = scene.ask(request(path, headers={"Origin": "https://app.example"}))
        assert reply.headers["access-control-allow-origin"] == allowed
        assert "Inference-Header-Content-Length" in reply.headers["access-control-expose-headers"]
        assert reply.headers.get("vary") == (None if allowed == "*" else "Origin")

    reply = scene.ask(request("/v2/models/m/infer", method="OPTIONS", headers=PREFLIGHT))
    assert (reply.status, reply.body) == (200, b"")
    assert reply.headers["access-control-allow-origin"] == allowed
    assert "POST" in reply.headers["access-control-allow-methods"]
    assert reply.headers["access-control-allow-headers"] == "content-type,x-key"
    assert int(reply.headers["access-control-max-age"]) > 0


def test_other_origins_are_told_nothing():
    scene = Scene(cors_origins=("https://other.example",))

    for method, path in (("GET", "/v2"), ("OPTIONS", "/v2/models/m/infer")):
        reply = scene.ask(request(path, method=method, headers=PREFLIGHT))
        assert not [name for name in reply.headers if name.startswith("access-control")]
        assert reply.headers["vary"] == "Origin"


def test_preflight_needs_no_restriction_header_since_browsers_send_none():
    scene = Scene(cors_origins=("*",), restricted_apis=(Restriction(("inference",), "k", "v"),))

    assert scene.ask(request("/v2/models/m/infer", method="OPTIONS", headers=PREFLIGHT)).status == 200


# The verbose log


def test_verbose_log_has_a_line_per_answer(capsys):
    scene = Scene()
    log.configure(info=False)
    try:
        scene.ask(request("/v2/health/live"))
        log.settings.update({"log_verbose_level": 1})
        scene.ask(request("/v2/health/live"))
        scene.ask(request("/v2/models/nope/trace/setting"))
        first, second = capsys.readouterr().out.splitlines()
    finally:
        log.settings.uninstall()

    assert '"HTTP request: GET /v2/health/live answered 200, 0 bytes"' in first
    assert "HTTP request: GET /v2/models/nope/trace/setting answered 400, " in second
    assert "bytes: Request for unknown model : nope" in second
