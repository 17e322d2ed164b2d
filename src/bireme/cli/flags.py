"""The flags of ``bireme serve``, as data: help, ``docs/cli.md``, parsing and the checks all read this one table.

It names every flag of tritonserver. What a flag stands for is one of three things:

- it works: neither ``feature`` nor ``no_effect`` is set;
- it tunes something that is built differently here: accepted, and ``no_effect`` says why nothing changes;
- it belongs to a ``feature`` of a later release: accepted where it switches that feature off, or sets up a feature
  that is off; refused otherwise, so that nobody takes a silent server for one that does what was asked.

Source: Triton ``command_line_parser.cc`` (``SetupOptions``); defaults from there and from ``TritonServerParameters``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from bireme.cli.values import (
    BACKEND_SETTING,
    BOOL,
    CONFIG_NAME,
    MILLISECONDS,
    PATH,
    PATTERN,
    PORT,
    RESOURCE,
    RESTRICTED_APIS,
    RESTRICTED_CATEGORIES,
    RESTRICTED_PROTOCOLS,
    SWITCH,
    TEXT,
    VERBOSITY,
    ValueType,
    choice,
    integer,
)


@dataclass(frozen=True, slots=True)
class Feature:
    """Something tritonserver does and this release does not."""

    name: str
    """Fits after "not supported yet:" and before "comes with a later release"."""
    switches: tuple[str, ...] = ()
    """The flags that turn it on. Its other flags mean nothing without them."""


@dataclass(frozen=True, slots=True)
class Flag:
    """One flag: its name without dashes, the type of its value, and what it does."""

    name: str
    type: ValueType
    text: str
    default: Any = None
    short: str = ""
    alias: str = ""
    repeat: bool = False
    extension: bool = False
    """Not a flag of tritonserver."""
    no_effect: str = ""
    feature: Feature | None = None
    off: tuple[str, ...] = ()
    """The texts that leave the feature off."""


SAGEMAKER = Feature("the SageMaker front end", ("allow-sagemaker",))
VERTEX = Feature("the Vertex AI front end", ("allow-vertex-ai",))
HOST_POLICIES = Feature("host policies")

_CATEGORIES = f"Categories: {', '.join(RESTRICTED_CATEGORIES)}."
_UNIX = "unix:/path stands for a UNIX domain socket."
_BUSY_POLL = (
    "Stay awake for so many microseconds after an answer, for clients that ask again at once: lower latency for a CPU "
    "core while it lasts."
)
_FALSE = ("false", "off", "0", "no")
_ONE_LOOP = "one event loop serves every connection"
_MS = integer(0, 2**31 - 1, "MS")
_NO_GPU = "each framework looks after GPUs and their memory by itself"


def _later(
    name: str, type_: ValueType, feature: Feature, *, off: tuple[str, ...] = (), repeat: bool = False
) -> Flag:
    return Flag(name, type_, "", feature=feature, off=off, repeat=repeat)


def _without_effect(name: str, type_: ValueType, why: str, *, repeat: bool = False) -> Flag:
    return Flag(name, type_, "", no_effect=why, repeat=repeat)


def _tls_flags(kind: str, *, extension: bool) -> tuple[Flag, ...]:
    """Return the flags of a front end's TLS."""
    return (
        Flag(f"{kind}-use-ssl", BOOL, "Listen with TLS.", False, extension=extension),
        Flag(
            f"{kind}-use-ssl-mutual",
            BOOL,
            f"Ask clients for a certificate, too. Given at all, it stands for --{kind}-use-ssl as well.",
            extension=extension,
        ),
        Flag(
            f"{kind}-server-cert",
            PATH,
            "The server's certificate and the intermediate ones, PEM. Read again when it changes, and on SIGHUP.",
            "",
            extension=extension,
        ),
        Flag(f"{kind}-server-key", PATH, "Its private key, PEM, not encrypted.", "", extension=extension),
        Flag(
            f"{kind}-root-cert",
            PATH,
            "The certificates that must have signed a client's, PEM.",
            "",
            extension=extension,
        ),
    )


SECTIONS: dict[str, tuple[Flag, ...]] = {
    "Server": (
        Flag("id", TEXT, "Name of this server in its metadata.", "triton"),
        Flag(
            "exit-timeout-secs",
            integer(0),
            "Seconds that in-flight requests have to finish after SIGTERM or Ctrl-C.",
            30,
        ),
        Flag(
            "allow-client-shm",
            BOOL,
            "Let clients register shared memory regions, which the server then reads tensors from and writes them to.",
            False,
        ),
        Flag(
            "debug-model",
            TEXT,
            "Run this Python model on the server's main thread, so that breakpoint() stops it in the terminal. Repeat for "
            "several.",
            repeat=True,
            extension=True,
        ),
    ),
    "Model repository": (
        Flag(
            "model-repository",
            PATH,
            "Directory of models, one folder each; or s3://bucket/path, s3://host:port/bucket/path, gs://bucket/path, "
            "as://account/container/path. Repeat for several; a model's name must be unique among them, but for "
            "--model-namespacing.",
            short="m",
            alias="model-store",
            repeat=True,
        ),
        Flag(
            "object-cache-directory",
            PATH,
            "Where files of object stores are kept for the next load. Default: object-stores in the user's cache directory.",
            "",
            extension=True,
        ),
        Flag(
            "object-cache-size",
            integer(0, metavar="BYTES"),
            "What they may take; above it those go that were used least recently. 0: no limit.",
            64 << 30,
            extension=True,
        ),
        Flag(
            "model-namespacing",
            BOOL,
            "Let each repository have its own names; requests reach a name that one model alone has.",
            False,
        ),
        Flag(
            "model-control-mode",
            choice("none", "poll", "explicit", "ondemand"),
            "none: load everything once. poll: follow changes of the folders. explicit: load and unload on request, "
            "and at start what --load-model names. ondemand (an extension): as explicit, and each model at its first request.",
            "none",
        ),
        Flag(
            "load-model",
            TEXT,
            "Model to load at start, in mode explicit or ondemand. Repeat for several; '*' alone means all.",
            repeat=True,
        ),
        Flag("repository-poll-secs", integer(0), "Seconds between two looks, in mode poll. 0: never.", 15),
        Flag(
            "ondemand-memory-budget",
            integer(0, metavar="BYTES"),
            "In mode ondemand: memory that all models may take, files and processes; above it the least recently used "
            "are unloaded. 0: no limit.",
            0,
            extension=True,
        ),
        Flag(
            "ondemand-max-models",
            integer(0),
            "In mode ondemand: models that may be loaded at one time. 0: any number.",
            0,
            extension=True,
        ),
        Flag(
            "ondemand-idle-secs",
            integer(0),
            "In mode ondemand: unload a model that has not been used for so long. 0: never.",
            0,
            extension=True,
        ),
        Flag(
            "ondemand-load-timeout-secs",
            integer(1),
            "In mode ondemand: how long a request waits for a load. The load goes on.",
            60,
            extension=True,
        ),
        Flag("exit-on-error", BOOL, "Stop with exit status 1 when a model fails to load at start.", True),
        Flag(
            "strict-readiness",
            BOOL,
            "The server is ready only while every known model is. False: as soon as it answers.",
            True,
        ),
        Flag(
            "disable-auto-complete-config",
            SWITCH,
            "Take config files as they are; nothing is filled in from the model file.",
            False,
        ),
        Flag(
            "model-config-name",
            CONFIG_NAME,
            "Use configs/NAME.pbtxt of a model where it has one, instead of config.pbtxt.",
        ),
        Flag(
            "repoagent-directory",
            PATH,
            "Where repository agents are: NAME/agent.py in it is agent NAME.",
            "/opt/tritonserver/repoagents",
        ),
        Flag("model-load-thread-count", integer(1), "Models that load at the same time.", 4),
        Flag("model-load-retry-count", integer(0), "Further tries when a model fails to load.", 0),
    ),
    "HTTP": (
        Flag("allow-http", BOOL, "Listen for HTTP requests.", True),
        Flag("http-address", TEXT, f"Address to listen on. {_UNIX}", "0.0.0.0"),
        Flag("http-port", PORT, "Port to listen on. 0: any free one.", 8000, short="p"),
        Flag("reuse-http-port", BOOL, "Share the port with other servers that say so too.", False),
        Flag(
            "http-header-forward-pattern",
            PATTERN,
            "Headers whose name matches become request parameters. Unanchored, in any case.",
            "",
        ),
        Flag(
            "http-max-input-size",
            integer(1, metavar="BYTES"),
            "Limit of a request's JSON part, of a tensor sent as JSON, and of a decompressed body. Binary tensors "
            "are not counted.",
            67108864,
        ),
        Flag(
            "http-restricted-api",
            RESTRICTED_APIS,
            f"Answer these routes only with this header. A category belongs to one group. {_CATEGORIES}",
            repeat=True,
        ),
        Flag(
            "http-cors-origin",
            TEXT,
            "Let pages of this origin call the server from a browser; '*' for any. Repeat for several.",
            repeat=True,
            extension=True,
        ),
        *_tls_flags("http", extension=True),
        Flag(
            "http-busy-poll-us",
            integer(0, 10_000, "US"),
            _BUSY_POLL,
            0,
            extension=True,
        ),
    ),
    "gRPC": (
        Flag("allow-grpc", BOOL, "Listen for gRPC requests.", True),
        Flag("grpc-address", TEXT, f"Address to listen on. {_UNIX}", "0.0.0.0"),
        Flag("grpc-port", PORT, "Port to listen on. 0: any free one.", 8001),
        Flag("reuse-grpc-port", BOOL, "Share the port with other servers that say so too.", False),
        Flag(
            "grpc-header-forward-pattern",
            PATTERN,
            "Metadata whose name matches become request parameters. Unanchored, in any case.",
            "",
        ),
        Flag(
            "grpc-restricted-protocol",
            RESTRICTED_PROTOCOLS,
            "Answer these methods only with metadata triton-grpc-protocol-KEY of this value. A category belongs to one "
            f"group. {_CATEGORIES}",
            repeat=True,
        ),
        Flag(
            "grpc-infer-response-compression-level",
            choice("none", "low", "medium", "high"),
            "Compress inference responses, for clients that accept it.",
            "none",
        ),
        *_tls_flags("grpc", extension=False),
        Flag("grpc-keepalive-time", _MS, "Ping a connection after so long a silence. 0: never.", 7200000),
        Flag(
            "grpc-keepalive-timeout", _MS, "End a connection that does not answer a ping in this time.", 20000
        ),
        Flag(
            "grpc-keepalive-permit-without-calls",
            BOOL,
            "Ping, and let clients ping, while no call is open.",
            False,
        ),
        Flag(
            "grpc-http2-max-pings-without-data",
            integer(0),
            "Pings sent in a row without data in between. 0: any number.",
            2,
        ),
        Flag(
            "grpc-http2-min-recv-ping-interval-without-data",
            _MS,
            "A client that pings sooner, without data in between, gets a strike.",
            300000,
        ),
        Flag(
            "grpc-http2-max-ping-strikes",
            integer(0),
            "More strikes than this end the connection. 0: any number is tolerated.",
            2,
        ),
        Flag("grpc-max-connection-age", _MS, "Ask a connection to end at this age. 0: never.", 0),
        Flag(
            "grpc-max-connection-age-grace",
            _MS,
            "How long the calls of such a connection may still take. 0: as long as they need.",
            0,
        ),
        Flag("grpc-busy-poll-us", integer(0, 10_000, "US"), _BUSY_POLL, 0, extension=True),
    ),
    "Metrics": (
        Flag("allow-metrics", BOOL, "Serve Prometheus metrics.", True),
        Flag(
            "metrics-address",
            TEXT,
            f"Address to listen on. {_UNIX} Default: that of --http-address, or 127.0.0.1 if that is a UNIX domain socket.",
            "",
        ),
        Flag("metrics-port", PORT, "Port to listen on. 0: any free one.", 8002),
        Flag("allow-cpu-metrics", BOOL, "Include the CPU's use and memory.", True),
        Flag("metrics-interval-ms", MILLISECONDS, "How old a sampled value may be.", 2000.0),
        Flag(
            "metrics-config",
            ValueType("KEY=VALUE", str),
            "counter_latencies=true, histogram_latencies=false, summary_latencies=false, "
            "summary_quantiles=0.5:0.05,0.9:0.01,…",
            repeat=True,
        ),
    ),
    "Tracing": (
        Flag(
            "trace-config",
            ValueType("[MODE,]KEY=VALUE", str),
            "level=TIMESTAMPS, level=TENSORS, rate=1000, count=-1, mode=triton|opentelemetry; triton,file=PATH, "
            "triton,log-frequency=0; opentelemetry,url=URL, opentelemetry,resource=KEY=VALUE, opentelemetry,bsp_…",
            repeat=True,
        ),
    ),
    "Logging": (
        Flag("log-verbose", VERBOSITY, "Level of detail; true is 1.", 0, short="v"),
        Flag("log-info", BOOL, "Write information.", True),
        Flag("log-warning", BOOL, "Write warnings.", True),
        Flag("log-error", BOOL, "Write errors.", True),
        Flag(
            "log-format",
            choice("default", "ISO8601", "json"),
            "Form of a line; json (an extension) writes one object per line.",
            "default",
        ),
        Flag("log-file", PATH, "Write to this file instead of the console.", ""),
        Flag(
            "access-log",
            PATH,
            "Write one line per request to this file: id, model, version, status, phases. '-' is the console.",
            "",
            extension=True,
        ),
    ),
    "Rate limiter": (
        Flag(
            "rate-limit",
            choice("off", "execution_count"),
            "execution_count: an instance runs only while the resources that its config names are free; who has run less "
            "goes first. off: the configs' rate_limiter has no effect.",
            "off",
        ),
        Flag(
            "rate-limit-resource",
            RESOURCE,
            "How much there is of a resource, on each device or on one. Given at all, there is nothing but what is given. "
            "Default: as much as the neediest instance asks for. Repeat for several.",
            repeat=True,
        ),
    ),
    "Backends": (
        Flag(
            "backend-config",
            BACKEND_SETTING,
            "A backend's setting; without a backend, one of all. Example: default-max-batch-size=8.",
            repeat=True,
        ),
        Flag(
            "backend-directory",
            PATH,
            "Where backends written in Python are: NAME/model.py in it serves models of backend NAME.",
            "/opt/tritonserver/backends",
        ),
    ),
    "Response cache": (
        Flag(
            "cache-config",
            ValueType("CACHE,KEY=VALUE", str),
            "A setting of the response cache, which models with response_cache use: local,size=BYTES keeps answers in memory; "
            "redis,host=HOST with redis,port=PORT in a Redis. There is one cache; repeat for its other settings.",
            repeat=True,
        ),
    ),
    "Accepted without effect": (
        _without_effect(
            "cache-directory",
            PATH,
            "a cache is a Python package with an entry point, found wherever it is installed",
        ),
        _without_effect("http-thread-count", integer(), _ONE_LOOP),
        _without_effect("grpc-infer-thread-count", integer(2, 128), _ONE_LOOP),
        _without_effect(
            "grpc-infer-allocation-pool-size",
            integer(),
            "what a call needs is made anew; reuse would save nothing",
        ),
        _without_effect(
            "grpc-max-response-pool-size",
            integer(1),
            "responses are not pooled; those a client has not taken are bounded",
        ),
        _without_effect("allow-gpu-metrics", BOOL, _NO_GPU),
        _without_effect("enable-peer-access", BOOL, _NO_GPU),
        _without_effect("pinned-memory-pool-byte-size", integer(), _NO_GPU),
        _without_effect("cuda-memory-pool-byte-size", TEXT, _NO_GPU, repeat=True),
        _without_effect("cuda-virtual-address-size", TEXT, _NO_GPU, repeat=True),
        _without_effect("min-supported-compute-capability", TEXT, _NO_GPU),
        _without_effect("model-load-gpu-limit", TEXT, _NO_GPU, repeat=True),
        _without_effect("buffer-manager-thread-count", integer(), "tensors are handed on, not copied"),
    ),
    "Deprecated": (
        Flag(
            "strict-model-config",
            BOOL,
            "true is --disable-auto-complete-config, which is its newer name.",
        ),
        Flag(
            "response-cache-byte-size",
            integer(0),
            "N is --cache-config=local,size=N, which is its newer name; 0: no cache.",
        ),
        Flag("trace-file", PATH, "Its newer name is --trace-config triton,file."),
        Flag("trace-level", TEXT, "Its newer name is --trace-config level.", repeat=True),
        Flag("trace-rate", integer(), "Its newer name is --trace-config rate."),
        Flag("trace-count", integer(), "Its newer name is --trace-config count."),
        Flag("trace-log-frequency", integer(), "Its newer name is --trace-config triton,log-frequency."),
    ),
    "Later releases": (
        _later("allow-sagemaker", BOOL, SAGEMAKER, off=_FALSE),
        _later("sagemaker-port", PORT, SAGEMAKER),
        _later("sagemaker-safe-port-range", TEXT, SAGEMAKER),
        _later("sagemaker-thread-count", integer(), SAGEMAKER),
        _later("allow-vertex-ai", BOOL, VERTEX, off=_FALSE),
        _later("vertex-ai-port", PORT, VERTEX),
        _later("vertex-ai-thread-count", integer(), VERTEX),
        _later("vertex-ai-default-model", TEXT, VERTEX),
        _later("host-policy", TEXT, HOST_POLICIES, repeat=True),
    ),
}
"""Every flag, by section, in the order of the help."""

FLAGS: dict[str, Flag] = {flag.name: flag for flags in SECTIONS.values() for flag in flags}
"""Every flag by name."""
