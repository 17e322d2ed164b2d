"""From the command line to the options of the server's parts, and the checks that need more than one flag."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import pytest

from bireme.cli.flags import FLAGS
from bireme.cli.options import given_flags
from bireme.cli.serve import serve
from bireme.cli.settings import Settings, make_settings
from bireme.frontend.options import TlsOptions
from bireme.types import BiremeError


def parse(tmp_path: Path, *arguments: str) -> Settings:
    """Return the settings of ``bireme serve -m <a repository> ...``, as the command itself makes them."""
    found: dict[str, Any] = {}
    command = type(serve)(name="serve", callback=lambda **variables: found.update(variables))
    with command.make_context("serve", ["-m", str(tmp_path), *arguments]) as ctx:
        command.invoke(ctx)
        given = given_flags(ctx)
    return make_settings({name: found[name.replace("-", "_")] for name in FLAGS}, given)


def test_defaults_are_tritonserver_s(tmp_path):
    settings = parse(tmp_path)

    assert settings.http is not None
    assert settings.grpc is not None
    assert settings.metrics is not None
    assert ("0.0.0.0", 8000, 67108864, False) == (
        settings.http.address,
        settings.http.port,
        settings.http.max_input_size,
        settings.http.reuse_port,
    )
    grpc = settings.grpc
    assert ("0.0.0.0", 8001, False, None, "none") == (
        grpc.address,
        grpc.port,
        grpc.reuse_port,
        grpc.tls,
        grpc.response_compression_level,
    )
    assert (7_200_000, 20_000, False, 2, 300_000, 2, 0, 0) == (
        grpc.keepalive_time_ms,
        grpc.keepalive_timeout_ms,
        grpc.keepalive_permit_without_calls,
        grpc.http2_max_pings_without_data,
        grpc.http2_min_recv_ping_interval_without_data_ms,
        grpc.http2_max_ping_strikes,
        grpc.max_connection_age_ms,
        grpc.max_connection_age_grace_ms,
    )
    assert ("0.0.0.0", 8002) == (settings.metrics.address, settings.metrics.port)
    server = settings.server
    assert ("triton", "none", 15, True, True, 4, 0, 30) == (
        server.id,
        server.model_control_mode,
        server.repository_poll_secs,
        server.exit_on_error,
        server.strict_readiness,
        server.model_load_thread_count,
        server.model_load_retry_count,
        server.exit_timeout_secs,
    )
    assert () == settings.notes


@pytest.mark.parametrize(
    ("arguments", "part", "field", "expected"),
    [
        (["--id=x"], "server", "id", "x"),
        (["--model-control-mode", "EXPLICIT", "--load-model=a", "--load-model", "b"], "server", "load_model", ("a", "b")),
        (["--model-control-mode=explicit", "--load-model=*"], "server", "load_model", ("*",)),
        (["--disable-auto-complete-config"], "server", "disable_auto_complete_config", True),
        (["--strict-model-config=true"], "server", "disable_auto_complete_config", True),
        (["--strict-model-config=false"], "server", "disable_auto_complete_config", False),
        (["--exit-on-error=FALSE"], "server", "exit_on_error", False),
        (["--model-config-name=h100"], "server", "model_config_name", "h100"),
        (["--backend-config=onnxruntime,a=1", "--backend-config", "b=2"], "server", "backend_config", (("onnxruntime", "a", "1"), ("", "b", "2"))),
        (["-p", "9000"], "http", "port", 9000),
        (["--http-port=1", "--http-port=2"], "http", "port", 2),
        (["--http-cors-origin=*"], "http", "cors_origins", ("*",)),
        (["--http-restricted-api=health,trace:k=v"], "http", "restricted_apis", ((("health", "trace"), "k", "v"),)),
        (["--http-header-forward-pattern=^x-"], "http", "header_forward_pattern", "^x-"),
        (["--access-log=-", "--log-format=JSON"], "http", "access_log_json", True),
        (["--access-log=-"], "http", "access_log", "-"),
        (["--access-log=-"], "grpc", "access_log", "-"),
        (["--http-address=unix:/run/x"], "http", "unix_path", "/run/x"),
        (["--allow-client-shm=1"], "server", "allow_client_shm", True),
        (["--rate-limit=execution_count"], "server", "rate_limit", "execution_count"),
        (["--rate-limit-resource=a:1", "--rate-limit-resource=b:2:3"], "server", "rate_limit_resource", (("a", 1, None), ("b", 2, 3))),
        (["--grpc-port=9001"], "grpc", "port", 9001),
        (["--grpc-address=unix:x.sock"], "grpc", "unix_path", "x.sock"),
        (["--reuse-grpc-port=true"], "grpc", "reuse_port", True),
        (["--grpc-busy-poll-us=50"], "grpc", "busy_poll_us", 50),
        (["--grpc-header-forward-pattern=^x-"], "grpc", "header_forward_pattern", "^x-"),
        (["--grpc-restricted-protocol=health,trace:k=v"], "grpc", "restricted_protocols", ((("health", "trace"), "k", "v"),)),
        (["--grpc-infer-response-compression-level=HIGH"], "grpc", "response_compression_level", "high"),
        (["--grpc-keepalive-time=1"], "grpc", "keepalive_time_ms", 1),
        (["--grpc-keepalive-timeout=2"], "grpc", "keepalive_timeout_ms", 2),
        (["--grpc-keepalive-permit-without-calls=1"], "grpc", "keepalive_permit_without_calls", True),
        (["--grpc-http2-max-pings-without-data=3"], "grpc", "http2_max_pings_without_data", 3),
        (["--grpc-http2-min-recv-ping-interval-without-data=4"], "grpc", "http2_min_recv_ping_interval_without_data_ms", 4),
        (["--grpc-http2-max-ping-strikes=5"], "grpc", "http2_max_ping_strikes", 5),
        (["--grpc-max-connection-age=6"], "grpc", "max_connection_age_ms", 6),
        (["--grpc-max-connection-age-grace=7"], "grpc", "max_connection_age_grace_ms", 7),
        (["--metrics-port=9002"], "metrics", "port", 9002),
        (["--http-address=127.0.0.1"], "metrics", "address", "127.0.0.1"),
        (["--metrics-address=127.0.0.2"], "metrics", "address", "127.0.0.2"),
        (["--http-address=unix:/run/x"], "metrics", "address", "127.0.0.1"),
        (["--metrics-address=unix:/run/m"], "metrics", "unix_path", "/run/m"),
    ],
)  # fmt: skip
def test_a_flag_reaches_its_option(tmp_path, arguments, part, field, expected):
    assert expected == getattr(getattr(parse(tmp_path, *arguments), part), field)


def test_metrics_settings_are_parsed(tmp_path):
    options = parse(
        tmp_path, "--metrics-config=histogram_latencies=true", "--allow-cpu-metrics=0"
    ).server.metrics

    assert (True, False) == (options.histogram_latencies, options.cpu_metrics)


def test_log_settings_are_those_of_the_logger(tmp_path):
    assert {
        "info": False,
        "warning": True,
        "error": True,
        "verbose": 1,
        "format": "ISO8601",
        "file": "x.log",
    } == parse(tmp_path, "--log-info=0", "-v", "true", "--log-format=iso8601", "--log-file=x.log").log


@pytest.mark.parametrize(
    ("arguments", "part"),
    [(["--allow-http=0"], "http"), (["--allow-grpc=0"], "grpc"), (["--allow-metrics=off"], "metrics")],
)
def test_a_front_end_that_is_off_has_no_options(tmp_path, arguments, part):
    assert getattr(parse(tmp_path, *arguments), part) is None


def test_repositories_are_taken_once_each_in_order(tmp_path):
    (tmp_path / "b").mkdir()

    settings = parse(tmp_path, "--model-store", str(tmp_path / "b"), "--model-repository", str(tmp_path))

    assert (str(tmp_path), str(tmp_path / "b")) == settings.server.model_repository


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--load-model=a"], "--load-model requires --model-control-mode=explicit"),
        (
            ["--model-control-mode=explicit", "--load-model=*", "--load-model=a"],
            "--load-model=* means all models and cannot be combined with a",
        ),
        (["--http-port=8002"], "--http-port and --metrics-port are both 8002 on 0.0.0.0"),
        (["--http-port=8002", "--metrics-address=127.0.0.1"], "are both 8002"),
        (["--grpc-port=8000"], "--http-port and --grpc-port are both 8000 on 0.0.0.0"),
        (["--grpc-port=8002"], "--grpc-port and --metrics-port are both 8002 on 0.0.0.0"),
        (
            ["--http-address=unix:/run/x/../x", "--grpc-address=unix:///run/x"],
            "--http-address and --grpc-address are both unix:/run/x/../x: the server cannot listen to HTTP requests",
        ),
        (["--grpc-address=unix:"], "--grpc-address: address 'unix:' names no path"),
        (
            ["--metrics-address=unix://run/x"],
            "--metrics-address: address 'unix://run/x': two slashes must be",
        ),
        (
            ["--grpc-restricted-protocol=health:a=b", "--grpc-restricted-protocol=health:c=d"],
            "--grpc-restricted-protocol: 'health' is named 2 times; a category belongs to one group",
        ),
        (
            ["--http-restricted-api=health:a=b", "--http-restricted-api=trace,health:c=d"],
            "--http-restricted-api: 'health' is named 2 times; a category belongs to one group",
        ),
        (["-m", "s3://"], "it names no bucket; expected s3://bucket/path"),
        (["-m", "http://host/models"], "no such kind of repository"),
        (["-m", "/no/such/folder"], "--model-repository /no/such/folder: not a directory (nothing is there)"),
        (["-m", __file__], "not a directory (it is a file)"),
        (["--metrics-config=counters=true"], "unknown setting 'counters'"),
    ],
)
def test_what_does_not_go_together_is_refused(tmp_path, arguments, complaint):
    with pytest.raises(BiremeError) as caught:
        parse(tmp_path, *arguments)

    assert complaint in caught.value.message


@pytest.mark.parametrize(
    "arguments",
    [
        ["--http-port=0", "--metrics-port=0", "--grpc-port=0"],
        ["--http-port=8001", "--allow-grpc=false"],
        ["--http-address=unix:/run/h", "--http-port=8001", "--metrics-address=unix:/run/m"],
        ["--http-port=8002", "--allow-metrics=false"],
        ["--http-address=127.0.0.1", "--http-port=8002", "--metrics-address=127.0.0.2"],
    ],
)
def test_listeners_that_do_not_meet_are_accepted(tmp_path, arguments):
    parse(tmp_path, *arguments)


def test_flags_without_effect_and_old_names_are_noted(tmp_path):
    notes = parse(
        tmp_path, "--http-thread-count=8", "--strict-model-config=false", "--disable-auto-complete-config"
    ).notes

    assert [
        "--http-thread-count has no effect: one event loop serves every connection",
        "--strict-model-config is deprecated; its newer name is --disable-auto-complete-config",
        "--disable-auto-complete-config wins over --strict-model-config=false",
    ] == list(notes)


def test_a_backend_directory_that_is_missing_is_noted(tmp_path):
    missing = parse(tmp_path, f"--backend-directory={tmp_path}/none")

    assert missing.server.backend_directory == f"{tmp_path}/none"
    assert missing.notes == (f"--backend-directory {tmp_path}/none: not a directory, so it has no backends",)
    assert parse(tmp_path, f"--backend-directory={tmp_path}").notes == ()


def test_a_vertex_ai_container_is_told_that_its_front_end_is_missing(tmp_path, monkeypatch):
    monkeypatch.setenv("AIP_MODE", "PREDICTION")

    with pytest.raises(BiremeError, match="AIP_MODE=PREDICTION asks for the Vertex AI front end"):
        parse(tmp_path)
    assert parse(tmp_path, "--allow-vertex-ai=false").http is not None


def test_agents_and_namespaces_reach_the_server(tmp_path):
    defaults = parse(tmp_path).server
    given = parse(tmp_path, "--model-namespacing=on", "--repoagent-directory=/agents").server

    assert (False, "/opt/tritonserver/repoagents") == (
        defaults.model_namespacing,
        defaults.repoagent_directory,
    )
    assert (True, "/agents") == (given.model_namespacing, given.repoagent_directory)


def test_flags_of_later_releases_never_reach_the_settings(tmp_path):
    with pytest.raises(click.ClickException, match="--allow-sagemaker: not supported yet"):
        parse(tmp_path, "--allow-sagemaker=true")


@pytest.mark.parametrize("kind", ["http", "grpc"])
@pytest.mark.parametrize(
    ("arguments", "mutual"),
    [
        (["--{}-use-ssl=true"], False),
        (["--{}-use-ssl=true", "--{}-use-ssl-mutual=true"], True),
        (["--{}-use-ssl-mutual=true"], True),
        (["--{}-use-ssl-mutual=false"], False),  # given at all, it turns TLS on
    ],
)
def test_tls_is_on_where_a_flag_says_so(tmp_path, kind, arguments, mutual):
    files = ["--{}-server-cert=c", "--{}-server-key=k", "--{}-root-cert=r"]
    settings = parse(tmp_path, *(argument.format(kind) for argument in [*files, *arguments]))

    assert TlsOptions("c", "k", "r", mutual=mutual, flags=kind) == getattr(settings, kind).tls
    assert ([] if mutual else [f"--{kind}-root-cert has no effect without --{kind}-use-ssl-mutual"]) == list(
        settings.notes
    )


def test_certificates_alone_do_not_turn_tls_on(tmp_path):
    settings = parse(tmp_path, "--grpc-server-cert=c", "--grpc-server-key=k", "--grpc-use-ssl=false")

    assert settings.grpc is not None
    assert settings.grpc.tls is None
    assert [
        "--grpc-server-cert has no effect without --grpc-use-ssl",
        "--grpc-server-key has no effect without --grpc-use-ssl",
    ] == list(settings.notes)


def test_repositories_may_lie_in_object_stores(tmp_path):
    options = [
        "-m",
        "s3://http://minio:9000/bucket/models/",
        "--object-cache-directory=/c",
        "--object-cache-size=5",
    ]
    server = parse(tmp_path, *options).server
    assert server.model_repository == (str(tmp_path), "s3://http://minio:9000/bucket/models/")
    assert (server.store_cache.directory, server.store_cache.max_nbytes) == ("/c", 5)
    assert parse(tmp_path).server.object_cache_size == 64 << 30


def test_vertex_ai_names_the_repository_if_nobody_else_does(tmp_path, monkeypatch):
    monkeypatch.setenv("AIP_STORAGE_URI", "gs://bucket/models")
    values = {name: flag.default for name, flag in FLAGS.items()} | {"model-repository": ()}
    values |= {name: () for name, flag in FLAGS.items() if flag.repeat}
    assert make_settings(values).server.model_repository == ("gs://bucket/models",)
    assert parse(tmp_path).server.model_repository == (str(tmp_path),)
