"""MetricFamily and Metric: what a model counts itself, on the server's metrics page."""

from __future__ import annotations

import itertools
import logging
import weakref
from enum import StrEnum
from typing import Any, ClassVar, Final

from bireme.backends.python import runtime
from bireme.backends.python.pb_utils.errors import TritonModelException
from bireme.backends.python.pb_utils.text import to_text
from bireme.backends.python.runtime import Runtime
from bireme.types import BiremeError

log = logging.getLogger("bireme.backends.python")

_handles: Final = itertools.count(1)
"""Names of what the models of this process have made, for `bireme.telemetry.custom_metrics`."""


class MetricKind(StrEnum):
    """Kinds of metric families."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


_UNSUPPORTED: Final = {
    "increment": {MetricKind.HISTOGRAM},
    "set": {MetricKind.COUNTER, MetricKind.HISTOGRAM},
    "observe": {MetricKind.COUNTER, MetricKind.GAUGE},
    "value": {MetricKind.HISTOGRAM},
}
_DELETED: Final = (
    "Invalid metric operation as the corresponding 'MetricFamily' has been deleted. The 'MetricFamily' object should be "
    "deleted AFTER its corresponding 'Metric' objects have been deleted."
)


class _Handle:
    """A number under which the server keeps something for this model; dropped with the object that holds it."""

    __slots__ = ("_drop", "is_dropped", "number", "runtime")

    def __init__(self, made_by: Runtime, make: str, drop: str, arguments: dict[str, Any]) -> None:
        self.is_dropped = True
        self.runtime = made_by
        self.number = next(_handles)
        self._drop = drop
        made_by.metric(make, handle=self.number, **arguments)
        self.is_dropped = False

    def drop(self) -> None:
        if self.is_dropped:
            return
        self.is_dropped = True
        try:
            self.runtime.metric(self._drop, handle=self.number)
        except Exception:  # called while objects are deleted: nobody is there to catch it
            log.exception("cannot delete a metric")


class Metric:
    """One series of a family, made by `MetricFamily.Metric`; it leaves the page with the last object for its labels."""

    __slots__ = ("__weakref__", "_handle", "_kind")

    def __init__(self, handle: _Handle, kind: MetricKind) -> None:
        self._handle = handle
        self._kind = kind

    def increment(self, value: float) -> None:
        """Add ``value`` to a counter (not a negative one) or a gauge.

        Raises:
            TritonModelException: the kind does not support it, the server refuses it or the family was deleted.
        """
        if value < 0 and self._kind is MetricKind.COUNTER:
            raise TritonModelException(
                "Failed to increment metric value: TRITONSERVER_METRIC_KIND_COUNTER can only be incremented monotonically "
                "by non-negative values."
            )
        self._do("increment", value=float(value))

    def set(self, value: float) -> None:
        """Set a gauge. Raises as `increment`."""
        self._do("set", value=float(value))

    def observe(self, value: float) -> None:
        """Count ``value`` in a histogram. Raises as `increment`."""
        self._do("observe", value=float(value))

    def value(self) -> float:
        """Return the value of a counter or gauge, to which other instances may have added. Raises as `increment`."""
        return self._do("value") or 0.0

    def _do(self, operation: str, **arguments: float) -> float | None:
        handle = self._handle
        problem = _DELETED
        if not handle.is_dropped:
            if self._kind not in _UNSUPPORTED[operation]:
                try:
                    return handle.runtime.metric(operation, handle=handle.number, **arguments)
                except BiremeError as error:
                    raise TritonModelException(_failure(operation, error.message)) from error
            problem = f"TRITONSERVER_METRIC_KIND_{self._kind.name} does not support {operation.capitalize()}"
        raise TritonModelException(_failure(operation, problem))

    def __del__(self) -> None:
        self._handle.drop()


class MetricFamily:
    """A family of metrics. Keep the object for as long as its metrics are used: they end with it.

    Raises:
        TypeError: an argument has the wrong type.
        TritonModelException: the server refuses it.
    """

    __slots__ = ("_handle", "_kind", "_metrics")

    COUNTER: ClassVar = MetricKind.COUNTER
    GAUGE: ClassVar = MetricKind.GAUGE
    HISTOGRAM: ClassVar = MetricKind.HISTOGRAM

    def __init__(self, name: str, description: str, kind: MetricKind) -> None:
        name = to_text("MetricFamily: name", name)
        description = to_text("MetricFamily: description", description)
        if not isinstance(kind, MetricKind):
            raise TypeError(f"MetricFamily: kind must be one such as MetricFamily.COUNTER, found {kind!r}")
        self._kind = kind
        self._metrics: weakref.WeakSet[Metric] = weakref.WeakSet()
        arguments = {"name": name, "description": description, "kind": kind.value}
        self._handle = _make("MetricFamily", "family", "drop_family", arguments)

    def Metric(  # noqa: N802 (the API's name)
        self, labels: dict[str, str] | None = None, buckets: list[float] | None = None
    ) -> Metric:
        """Make the series with these labels, or take part in it where it exists.

        ``buckets`` are the ascending upper bounds of a histogram; other kinds have none.

        Raises:
            TritonModelException: labels or buckets are not of that form, or the server refuses it.
        """
        if labels is not None and not isinstance(labels, dict):
            raise TritonModelException("Failed to create metric. Labels must be a dictionary.")
        if buckets is None:
            if self._kind is MetricKind.HISTOGRAM:
                raise TritonModelException("Failed to create metric. Missing required buckets.")
        elif not isinstance(buckets, list):
            raise TritonModelException("Failed to create metric. Buckets must be a list.")
        elif self._kind is not MetricKind.HISTOGRAM:
            raise TritonModelException("Failed to create metric. Unexpected buckets found.")
        for text in itertools.chain.from_iterable((labels or {}).items()):
            if not isinstance(text, str):
                raise TritonModelException(
                    f"Failed to create metric. Labels must be str to str, found {text!r}."
                )
        arguments = {
            "family": self._handle.number,
            "labels": labels,
            "buckets": None if buckets is None else [float(bound) for bound in buckets],
        }
        metric = Metric(_make("Metric", "series", "drop_series", arguments, self._handle.runtime), self._kind)
        self._metrics.add(metric)
        return metric

    def __del__(self) -> None:
        if not hasattr(self, "_handle"):
            return
        for metric in self._metrics:
            metric._handle.drop()  # noqa: SLF001 (ours)
        self._handle.drop()


def _make(
    what: str, make: str, drop: str, arguments: dict[str, Any], made_by: Runtime | None = None
) -> _Handle:
    try:
        return _Handle(made_by or runtime.current(), make, drop, arguments)
    except (BiremeError, RuntimeError) as error:
        raise TritonModelException(f"Error when creating {what}: {error}") from error


def _failure(operation: str, problem: str) -> str:
    action = "get" if operation == "value" else operation
    return f"Failed to {action} metric value: {problem}"
