"""ServerOptions: every setting of the engine in one frozen value, checked once when the server is made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from bireme.repository.storage import StoreCacheOptions
from bireme.telemetry import MetricsOptions
from bireme.telemetry.tracing import TraceOptions
from bireme.types import InvalidArgument


class ModelControlMode(StrEnum):
    """Who decides which models are loaded."""

    NONE = "none"  # everything at start, then nothing changes
    POLL = "poll"  # everything at start, then what changes in the repositories
    EXPLICIT = "explicit"  # what the load and unload calls say
    ONDEMAND = "ondemand"  # a model at its first request; and what load and unload calls say


class RateLimit(StrEnum):
    """Whether instances wait for the resources that their config names."""

    OFF = "off"
    EXECUTION_COUNT = "execution_count"  # who has run less goes first


@dataclass(frozen=True, slots=True)
class OnDemandOptions:
    """How much stays loaded in control mode ``ondemand``."""

    memory_budget: int = 0
    """Bytes that all models may take; 0: as much as there is."""
    max_models: int = 0
    """Models that may be loaded at one time; 0: any number."""
    idle_secs: float = 0
    """A model that is not used for so long is unloaded; 0: none is."""
    load_timeout_secs: float = 60
    """How long a request waits for a load, if it does not say so itself."""

    @property
    def idle_ns(self) -> int:
        """``idle_secs`` in ns."""
        return int(self.idle_secs * 1e9)

    @property
    def load_timeout_ns(self) -> int:
        """``load_timeout_secs`` in ns."""
        return int(self.load_timeout_secs * 1e9)


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """The settings of a `Server`; each has the meaning of tritonserver's flag of the same name."""

    model_repository: tuple[str, ...] = ()
    """Paths of model repositories, or their locations in object stores. None: only models loaded with file overrides
    (explicit mode)."""
    object_cache_directory: str = ""
    """Where files of object stores are kept; empty: in the user's cache directory."""
    object_cache_size: int = 64 << 30
    """Bytes that they may take; above it what was used least recently is removed. 0: no limit."""
    id: str = "triton"
    """The server's name in its metadata."""
    model_control_mode: str = ModelControlMode.NONE
    """``none``, ``poll``, ``explicit`` or ``ondemand``."""
    repository_poll_secs: float = 15
    """Between two polls; 0 never polls. Only with ``poll``."""
    load_model: tuple[str, ...] = ()
    """Models to load at start, ``("*",)`` for all. Only with ``explicit``."""
    exit_on_error: bool = True
    """A model that fails at start makes `Server.start` fail."""
    strict_readiness: bool = True
    """The server is ready only while every known model is."""
    disable_auto_complete_config: bool = False
    model_config_name: str = ""
    """Use ``configs/<name>.pbtxt`` where a model has it."""
    model_load_thread_count: int = 4
    model_load_retry_count: int = 0
    model_namespacing: bool = False
    """Each repository has its own names: a model is told from others by its repository and its name."""
    backend_config: tuple[tuple[str, str, str], ...] = ()
    """(backend, key, value); an empty backend stands for all of them."""
    backend_directory: str = "/opt/tritonserver/backends"
    """Holds backends that are a directory with a ``model.py``; need not exist."""
    repoagent_directory: str = "/opt/tritonserver/repoagents"
    """Holds repository agents that are a directory with an ``agent.py``; need not exist."""
    exit_timeout_secs: float = 30
    """How long `Server.stop` waits for requests in flight."""
    on_demand: OnDemandOptions = field(default_factory=OnDemandOptions)
    rate_limit: str = RateLimit.OFF
    """``off`` or ``execution_count``: whether ``rate_limiter`` in configs counts."""
    rate_limit_resource: tuple[tuple[str, int, int | None], ...] = ()
    """(resource, count, device or None for each of them) of all resources there are. None: as much as instances ask for."""
    allow_client_shm: bool = False
    """Clients may register shared memory regions, from which the server reads and to which it writes."""
    cache_config: Mapping[str, Mapping[str, str | int | float | bool]] = field(default_factory=dict)
    """The settings of the response cache, by its name: ``{"local": {"size": 64 << 20}}``. Empty: there is none."""
    metrics: MetricsOptions = field(default_factory=MetricsOptions)
    tracing: TraceOptions = field(default_factory=TraceOptions)

    def check(self) -> None:
        """Check what no type can say.

        Raises:
            InvalidArgument: names the option, its value and what is expected.
        """
        modes = [mode.value for mode in ModelControlMode]
        if self.model_control_mode not in modes:
            raise InvalidArgument(
                f"model_control_mode is '{self.model_control_mode}', expected one of {', '.join(modes)}"
            )
        if self.load_model and not self.allows_loads:
            raise InvalidArgument(
                f"load_model ({', '.join(self.load_model)}) needs model_control_mode 'explicit', "
                f"got '{self.model_control_mode}'"
            )
        limits = [limit.value for limit in RateLimit]
        if self.rate_limit not in limits:
            raise InvalidArgument(f"rate_limit is '{self.rate_limit}', expected one of {', '.join(limits)}")
        if "*" in self.load_model and len(set(self.load_model)) > 1:
            raise InvalidArgument(
                "Wildcard model name '*' must be the ONLY startup model if specified at all."
            )
        if self.model_namespacing and self.model_control_mode == ModelControlMode.ONDEMAND:
            raise InvalidArgument("model_namespacing cannot be combined with model_control_mode 'ondemand'")
        if any(character.isspace() or character in "/\\" for character in self.model_config_name):
            raise InvalidArgument(
                f"model_config_name is {self.model_config_name!r}: it must not contain spaces or path separators"
            )
        for name, smallest in _SMALLEST.items():
            value = getattr(self, name)
            if not value >= smallest:
                raise InvalidArgument(f"{name} is {value}, expected {smallest} or more")
        self.tracing.check()

    @property
    def allows_loads(self) -> bool:
        """Whether clients and models may load and unload models."""
        return self.model_control_mode in (ModelControlMode.EXPLICIT, ModelControlMode.ONDEMAND)

    @property
    def counts_models(self) -> bool:
        """Whether the server is ready only while its models are. On demand they come and go, each for its own clients."""
        return self.strict_readiness and self.model_control_mode != ModelControlMode.ONDEMAND

    @property
    def store_cache(self) -> StoreCacheOptions:
        """How files of object stores are kept."""
        return StoreCacheOptions(self.object_cache_directory, self.object_cache_size)

    def settings_of(self, backend: str) -> Mapping[str, str]:
        """Return the ``backend_config`` settings of one backend: the global ones, then its own."""
        settings = {key: value for owner, key, value in self.backend_config if not owner}
        settings.update({key: value for owner, key, value in self.backend_config if owner == backend})
        return settings


_SMALLEST = {
    "repository_poll_secs": 0,
    "model_load_thread_count": 1,
    "model_load_retry_count": 0,
    "exit_timeout_secs": 0,
    "object_cache_size": 0,
}
