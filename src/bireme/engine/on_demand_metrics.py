"""OnDemandMetrics: how often models were loaded and unloaded without anybody saying so, on the metrics page."""

from __future__ import annotations

from weakref import WeakKeyDictionary

from prometheus_client import CollectorRegistry, Counter, Gauge


class OnDemandMetrics:
    """The counts of one server in control mode ``ondemand``."""

    def __init__(self, registry: CollectorRegistry) -> None:
        """Appear on the page of ``registry``."""
        self._loads = Counter(
            "bireme_ondemand_loads", "Models loaded as a request asked for them", ["model"], registry=registry
        )
        self._failures = Counter(
            "bireme_ondemand_load_failures", "Such loads that failed", ["model"], registry=registry
        )
        self._evictions = Counter(
            "bireme_ondemand_evictions",
            "Models unloaded as they were idle or others needed the room",
            ["model", "reason"],
            registry=registry,
        )
        self._nbytes = Gauge(
            "bireme_ondemand_memory_bytes",
            "What the loaded models take of the memory budget",
            registry=registry,
        )

    @classmethod
    def of(cls, registry: CollectorRegistry) -> OnDemandMetrics:
        """Return the counts on the page of ``registry``, which go on when a server is started again."""
        found = _made.get(registry)
        if found is None:
            found = _made[registry] = cls(registry)
        return found

    def count_load(self, model: str) -> None:
        """Count a load."""
        self._loads.labels(model).inc()

    def count_failure(self, model: str) -> None:
        """Count a load that failed."""
        self._failures.labels(model).inc()

    def count_eviction(self, model: str, reason: str) -> None:
        """Count an unload."""
        self._evictions.labels(model, reason).inc()

    def show_memory(self, nbytes: int) -> None:
        """Show what the loaded models take."""
        self._nbytes.set(nbytes)


_made: WeakKeyDictionary[CollectorRegistry, OnDemandMetrics] = WeakKeyDictionary()
