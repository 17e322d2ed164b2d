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
from bireme.cli.values import RestrictedGroup
from bireme.engine.options import ServerOptions
from bireme.frontend.http.options import HttpOptions
from bireme.frontend.options import ListenOptions, Restriction
from bireme.telemetry import MetricsOptions
from bireme.types import InvalidArgument, Unsupported

Values = Mapping[str, Any]
"""The value of every flag, by name, given or default."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What `bireme serve` was asked to do."""

    server: ServerOptions
    http: HttpOptions | None
    metrics: ListenOptions | None
    log: Mapping[str, Any]
    """Arguments of `bireme.telemetry.log.configure`."""
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
        metrics=ListenOptions(
            address=values["metrics-address"] or values["http-address"], port=values["metrics-port"]
        )
        if values["allow-metrics"]
        else None,
        log={
            "info": values["log-info"],
            "warning": values["log-warning"],
            "error": values["log-error"],
            "verbose": values["log-verbose"],
            "format": values["log-format"],
            "file": values["log-file"],
        },
        notes=tuple(_notes(values, given)),
    )
    _check_ports(settings)
    settings.server.check()
    return settings


def _server_options(values: Values) -> ServerOptions:
    repositories = tuple(dict.fromkeys(values["model-repository"]))
    _check_repositories(repositories)
    models = tuple(dict.fromkeys(values["load-model"]))
    if models and values["model-control-mode"] != "explicit":
        raise InvalidArgument("--load-model requires --model-control-mode=explicit")
    if "*" in models and len(models) > 1:
        others = ", ".join(name for name in models if name != "*")
        raise InvalidArgument(f"--load-model=* means all models and cannot be combined with {others}")
    return ServerOptions(
        model_repository=repositories,
        id=values["id"],
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
        exit_timeout_secs=values["exit-timeout-secs"],
        metrics=MetricsOptions.parse(
            values["metrics-config"],
            cpu_metrics=values["allow-cpu-metrics"],
            interval_ms=values["metrics-interval-ms"],
        ),
    )


def _http_options(values: Values) -> HttpOptions:
    groups: tuple[RestrictedGroup, ...] = values["http-restricted-api"]
    named = Counter(category for group in groups for category in group.categories)
    for category, times in named.items():
        if times > 1:
            raise InvalidArgument(
                f"--http-restricted-api: '{category}' is named {times} times; a category belongs to one group"
            )
    return HttpOptions(
        address=values["http-address"],
        port=values["http-port"],
        reuse_port=values["reuse-http-port"],
        header_forward_pattern=values["http-header-forward-pattern"],
        max_input_size=values["http-max-input-size"],
        restricted_apis=tuple(Restriction(*group) for group in groups),
        cors_origins=tuple(values["http-cors-origin"]),
        busy_poll_us=values["http-busy-poll-us"],
        access_log=values["access-log"],
        access_log_json=values["log-format"] == "json",
    )


def _check_repositories(repositories: tuple[str, ...]) -> None:
    if not repositories:
        raise InvalidArgument("--model-repository: at least one is needed, for example -m ./models")
    for repository in repositories:
        if "://" in repository:
            raise Unsupported(
                f"--model-repository {repository}: not supported yet: object stores come with a later release"
            )
        path = Path(repository).expanduser()
        if not path.is_dir():
            found = "it is a file" if path.exists() else "nothing is there"
            raise InvalidArgument(f"--model-repository {repository}: not a directory ({found})")


def _check_ports(settings: Settings) -> None:
    listeners = [("HTTP", settings.http), ("metrics", settings.metrics)]
    enabled = [(name, options) for name, options in listeners if options is not None]
    for (name, options), (other_name, other) in combinations(enabled, 2):
        same_port = options.port == other.port != 0
        if same_port and _overlap(options.address, other.address):
            raise InvalidArgument(
                f"--http-port and --metrics-port are both {options.port} on {options.address}: "
                f"the server cannot listen to {name} requests and {other_name} requests there"
            )


def _overlap(address: str, other: str) -> bool:
    """Whether two listeners on these addresses get in each other's way; names are not resolved."""
    return address == other or "0.0.0.0" in {address, other}


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
        elif flag is FLAGS["strict-model-config"]:
            yield "--strict-model-config is deprecated; its newer name is --disable-auto-complete-config"
            if values["disable-auto-complete-config"] and not values["strict-model-config"]:
                yield "--disable-auto-complete-config wins over --strict-model-config=false"
