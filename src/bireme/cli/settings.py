"""From parsed flags to the options of each part of the server, and the checks that need more than one flag.

Everything that can be known to be wrong before a model is opened or a port is bound is an error here.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

from bireme.cli.flags import FLAGS, Flag
from bireme.cli.trace_flags import trace_notes, trace_options
from bireme.cli.values import RestrictedGroup
from bireme.engine.options import OnDemandOptions, ServerOptions
from bireme.engine.response_cache.registry import CacheSettings, parse_settings
from bireme.frontend.grpc.options import GrpcOptions
from bireme.frontend.http.options import HttpOptions
from bireme.frontend.options import ListenOptions, Restriction, TlsOptions, unix_path
from bireme.repository.object_store.location import is_remote, parse_location
from bireme.telemetry import MetricsOptions
from bireme.types import InvalidArgument, Unsupported

Values = Mapping[str, Any]
"""The value of every flag, by name, given or default."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What `bireme serve` was asked to do."""

    server: ServerOptions
    http: HttpOptions | None
    grpc: GrpcOptions | None
    metrics: ListenOptions | None
    log: Mapping[str, Any]
    """Arguments of `bireme.telemetry.log.configure`."""
    debug_models: tuple[str, ...] = ()
    """Python models that run on the main thread."""
    notes: tuple[str, ...] = ()
    """What the user should know about flags that were accepted but do not do what they say."""


def make_settings(values: Values, given: Iterable[Flag] = ()) -> Settings:
    """Return the settings for the flags' ``values``; ``given`` are those that stand on the command line.

    Raises:
        InvalidArgument: names the flag, what is wrong and what is expected.
        Unsupported: the environment asks for a front end of a later release.
    """
    _check_environment(values)
    settings = Settings(
        server=_server_options(values),
        http=_http_options(values) if values["allow-http"] else None,
        grpc=_grpc_options(values) if values["allow-grpc"] else None,
        metrics=_metrics_options(values) if values["allow-metrics"] else None,
        log={
            "info": values["log-info"],
            "warning": values["log-warning"],
            "error": values["log-error"],
            "verbose": values["log-verbose"],
            "format": values["log-format"],
            "file": values["log-file"],
        },
        debug_models=tuple(dict.fromkeys(values["debug-model"])),
        notes=(*_notes(values, given), *trace_notes(values, trace_options(values))),
    )
    _check_ports(settings)
    settings.server.check()
    return settings


def _server_options(values: Values) -> ServerOptions:
    # Vertex AI says where its models are.
    default = filter(None, [os.environ.get("AIP_STORAGE_URI")])
    repositories = tuple(dict.fromkeys(values["model-repository"] or default))
    _check_repositories(repositories)
    models = tuple(dict.fromkeys(values["load-model"]))
    if models and values["model-control-mode"] not in {"explicit", "ondemand"}:
        raise InvalidArgument("--load-model requires --model-control-mode=explicit")
    if "*" in models and len(models) > 1:
        others = ", ".join(name for name in models if name != "*")
        raise InvalidArgument(f"--load-model=* means all models and cannot be combined with {others}")
    return ServerOptions(
        model_repository=repositories,
        object_cache_directory=values["object-cache-directory"],
        object_cache_size=values["object-cache-size"],
        id=values["id"],
        model_namespacing=values["model-namespacing"],
        model_control_mode=values["model-control-mode"],
        repository_poll_secs=values["repository-poll-secs"],
        load_model=models,
        exit_on_error=values["exit-on-error"],
        strict_readiness=values["strict-readiness"],
        disable_auto_complete_config=values["disable-auto-complete-config"]
        or bool(values["strict-model-config"]),
        model_config_name=values["model-config-name"] or "",
        model_load_thread_count=values["model-load-thread-count"],
        model_load_retry_count=values["model-load-retry-count"],
        backend_config=tuple(values["backend-config"]),
        backend_directory=values["backend-directory"],
        repoagent_directory=values["repoagent-directory"],
        exit_timeout_secs=values["exit-timeout-secs"],
        on_demand=OnDemandOptions(
            memory_budget=values["ondemand-memory-budget"],
            max_models=values["ondemand-max-models"],
            idle_secs=values["ondemand-idle-secs"],
            load_timeout_secs=values["ondemand-load-timeout-secs"],
        ),
        rate_limit=values["rate-limit"],
        rate_limit_resource=tuple(map(tuple, values["rate-limit-resource"])),
        allow_client_shm=values["allow-client-shm"],
        cache_config=_cache_config(values),
        metrics=MetricsOptions.parse(
            values["metrics-config"],
            cpu_metrics=values["allow-cpu-metrics"],
            interval_ms=values["metrics-interval-ms"],
        ),
        tracing=trace_options(values),
    )


def _cache_config(values: Values) -> CacheSettings:
    nbytes = values["response-cache-byte-size"]
    if nbytes is not None and values["cache-config"]:
        raise InvalidArgument("--response-cache-byte-size and --cache-config cannot be combined")
    return {"local": {"size": nbytes}} if nbytes else parse_settings(values["cache-config"])


def _http_options(values: Values) -> HttpOptions:
    return HttpOptions(
        address=_address(values, "http-address"),
        port=values["http-port"],
        reuse_port=values["reuse-http-port"],
        header_forward_pattern=values["http-header-forward-pattern"],
        max_input_size=values["http-max-input-size"],
        restricted_apis=_restrictions(values, "http-restricted-api"),
        cors_origins=tuple(values["http-cors-origin"]),
        busy_poll_us=values["http-busy-poll-us"],
        tls=_tls_options(values, "http"),
        access_log=values["access-log"],
        access_log_json=values["log-format"] == "json",
    )


def _grpc_options(values: Values) -> GrpcOptions:
    return GrpcOptions(
        address=_address(values, "grpc-address"),
        port=values["grpc-port"],
        reuse_port=values["reuse-grpc-port"],
        busy_poll_us=values["grpc-busy-poll-us"],
        tls=_tls_options(values, "grpc"),
        header_forward_pattern=values["grpc-header-forward-pattern"],
        restricted_protocols=_restrictions(values, "grpc-restricted-protocol"),
        response_compression_level=values["grpc-infer-response-compression-level"],
        access_log=values["access-log"],
        access_log_json=values["log-format"] == "json",
        keepalive_time_ms=values["grpc-keepalive-time"],
        keepalive_timeout_ms=values["grpc-keepalive-timeout"],
        keepalive_permit_without_calls=values["grpc-keepalive-permit-without-calls"],
        http2_max_pings_without_data=values["grpc-http2-max-pings-without-data"],
        http2_min_recv_ping_interval_without_data_ms=values["grpc-http2-min-recv-ping-interval-without-data"],
        http2_max_ping_strikes=values["grpc-http2-max-ping-strikes"],
        max_connection_age_ms=values["grpc-max-connection-age"],
        max_connection_age_grace_ms=values["grpc-max-connection-age-grace"],
    )


def _metrics_options(values: Values) -> ListenOptions:
    if values["metrics-address"]:
        address = _address(values, "metrics-address")
    else:
        address = values["http-address"]
        if unix_path(address):
            address = "127.0.0.1"  # who keeps requests off the network does not want statistics on it
    return ListenOptions(address=address, port=values["metrics-port"])


def _address(values: Values, name: str) -> str:
    address: str = values[name]
    try:
        unix_path(address)
    except InvalidArgument as error:
        raise InvalidArgument(f"--{name}: {error.message}") from None
    return address


def _restrictions(values: Values, name: str) -> tuple[Restriction, ...]:
    groups: tuple[RestrictedGroup, ...] = values[name]
    named = Counter(category for group in groups for category in group.categories)
    for category, times in named.items():
        if times > 1:
            raise InvalidArgument(
                f"--{name}: '{category}' is named {times} times; a category belongs to one group"
            )
    return tuple(Restriction(*group) for group in groups)


def _tls_options(values: Values, kind: str) -> TlsOptions | None:
    if not _has_tls(values, kind):
        return None
    return TlsOptions(
        cert=values[f"{kind}-server-cert"],
        key=values[f"{kind}-server-key"],
        root_cert=values[f"{kind}-root-cert"],
        mutual=bool(values[f"{kind}-use-ssl-mutual"]),
        flags=kind,
    )


def _has_tls(values: Values, kind: str) -> bool:
    """Whether TLS is on. The mutual flag turns it on, whatever its value. Source: Triton ``command_line_parser.cc``."""
    return bool(values[f"{kind}-use-ssl"]) or values[f"{kind}-use-ssl-mutual"] is not None


def _check_repositories(repositories: tuple[str, ...]) -> None:
    if not repositories:
        raise InvalidArgument("--model-repository: at least one is needed, for example -m ./models")
    for repository in repositories:
        if is_remote(repository):
            try:
                parse_location(repository)
            except InvalidArgument as error:
                raise InvalidArgument(f"--model-repository: {error.message}") from None
            continue
        if "://" in repository:
            raise InvalidArgument(
                f"--model-repository {repository}: no such kind of repository, expected a directory or a location "
                "that begins with s3://, gs:// or as://"
            )
        path = Path(repository).expanduser()
        if not path.is_dir():
            found = "it is a file" if path.exists() else "nothing is there"
            raise InvalidArgument(f"--model-repository {repository}: not a directory ({found})")


def _check_ports(settings: Settings) -> None:
    listeners = (("HTTP", settings.http), ("gRPC", settings.grpc), ("metrics", settings.metrics))
    enabled = [(name, options) for name, options in listeners if options is not None]
    for (name, options), (other_name, other) in combinations(enabled, 2):
        if not _collide(options, other):
            continue
        what = "address" if options.unix_path else "port"
        where = options.address if options.unix_path else f"{options.port} on {options.address}"
        raise InvalidArgument(
            f"--{name.lower()}-{what} and --{other_name.lower()}-{what} are both {where}: "
            f"the server cannot listen to {name} requests and {other_name} requests there"
        )


def _collide(options: ListenOptions, other: ListenOptions) -> bool:
    """Whether two listeners get in each other's way; names are not resolved."""
    path, other_path = options.unix_path, other.unix_path
    if path or other_path:
        return bool(path and other_path) and Path(path).resolve() == Path(other_path).resolve()
    addresses = {options.address, other.address}
    return options.port == other.port != 0 and (len(addresses) == 1 or "0.0.0.0" in addresses)


def _check_environment(values: Values) -> None:
    # In a Vertex AI container tritonserver would turn its HTTP front end off and listen elsewhere.
    if os.environ.get("AIP_MODE") == "PREDICTION" and values["allow-vertex-ai"] is None:
        raise Unsupported(
            "AIP_MODE=PREDICTION asks for the Vertex AI front end, which comes with a later release; "
            "--allow-vertex-ai=false serves plain HTTP"
        )


def _notes(values: Values, given: Iterable[Flag]) -> Iterable[str]:
    for flag in given:
        if flag.no_effect:
            yield f"--{flag.name} has no effect: {flag.no_effect}"
        elif missing := _missing_switch(values, flag):
            yield f"--{flag.name} has no effect without --{missing}"
        elif flag is FLAGS["backend-directory"] and not Path(values["backend-directory"]).is_dir():
            yield f"--backend-directory {values['backend-directory']}: not a directory, so it has no backends"
        elif flag is FLAGS["response-cache-byte-size"]:
            yield "--response-cache-byte-size is deprecated; its newer name is --cache-config=local,size=BYTES"
        elif flag is FLAGS["strict-model-config"]:
            yield "--strict-model-config is deprecated; its newer name is --disable-auto-complete-config"
            if values["disable-auto-complete-config"] and not values["strict-model-config"]:
                yield "--disable-auto-complete-config wins over --strict-model-config=false"


def _missing_switch(values: Values, flag: Flag) -> str:
    """Return the flag that ``flag``, one of TLS, needs beside it to have an effect; empty when nothing is missing."""
    kind, _, end = flag.name.partition("-")
    if end in {"server-cert", "server-key", "root-cert"} and not _has_tls(values, kind):
        return f"{kind}-use-ssl"
    if end == "root-cert" and not values[f"{kind}-use-ssl-mutual"]:
        return f"{kind}-use-ssl-mutual"
    return ""
