"""A finished trace as the JSON objects of Triton's trace files. Pure; on any thread.

Per span one object that says what it is, one per event, one per tensor, in the order of their times. They are told apart by
``id``. All objects of a trace stand together.

Source: Triton ``tracer.cc`` (``TraceActivity``, ``TraceTensorActivity``).
"""

from __future__ import annotations

from collections.abc import Iterator
from operator import itemgetter
from typing import Any

import orjson

from bireme.telemetry.spans import TENSOR_QUEUE_INPUT
from bireme.telemetry.tracing.sampled import SampledTrace
from bireme.types import Sample, Span, Tensor

_EMPTY = ("FP16", "BF16")
"""Types whose data Triton leaves out."""


def write_objects(trace: SampledTrace) -> bytes:
    """Return the objects of ``trace``, joined by commas."""
    has_times = "TIMESTAMPS" in trace.setting.level
    objects: list[dict[str, Any]] = []
    for span, sample in walk(trace.root):
        objects.append(_describe(span, sample))
        entries = list(_tensors(sample))
        if has_times:
            events = [*span_events(span), *(trace.events if span is trace.root else ())]
            entries += [
                (time_ns, 1, {"timestamps": [{"name": name, "ns": time_ns}]}) for time_ns, name in events
            ]
        entries.sort(key=itemgetter(0, 1))
        objects += [{"id": sample.number, **entry} for _, _, entry in entries]
    return b",".join(map(orjson.dumps, objects))


def _tensors(sample: Sample) -> Iterator[tuple[int, int, dict[str, Any]]]:
    """Yield when each tensor was seen, its rank among what happened then, and its object."""
    for time_ns, activity, tensor in sample.tensors:
        rank = 2 if activity == TENSOR_QUEUE_INPUT else 0
        yield time_ns, rank, {"activity": activity, "tensor": _tensor(tensor)}


def walk(span: Span) -> Iterator[tuple[Span, Sample]]:
    """Yield ``span``, and what belongs to its trace below it."""
    sample = span.sample
    assert sample is not None
    yield span, sample
    for child in tuple(span.children):
        if child.sample is not None and child.sample.parent_number == sample.number:
            yield from walk(child)


def span_events(span: Span) -> Iterator[tuple[int, str]]:
    """Yield what happened to the request of ``span``, and when, as far as it came."""
    for name, time_ns in (("REQUEST_START", span.start_ns), ("QUEUE_START", span.queue_ns)):
        if time_ns:
            yield time_ns, name
    yield from compute_events(span)
    if span.end_ns:
        yield span.end_ns, "REQUEST_END"


def compute_events(span: Span) -> Iterator[tuple[int, str]]:
    """Yield what happened in the backend; nothing for an ensemble, or for what did not get there."""
    if span.is_ensemble or not span.compute_end_ns:
        return
    yield span.compute_start_ns, "COMPUTE_START"
    yield span.compute_input_end_ns, "COMPUTE_INPUT_END"
    yield span.compute_output_start_ns, "COMPUTE_OUTPUT_START"
    yield span.compute_end_ns, "COMPUTE_END"


def _describe(span: Span, sample: Sample) -> dict[str, Any]:
    found: dict[str, Any] = {
        "id": sample.number,
        "model_name": span.model,
        "model_version": span.version,
    }
    if span.id:
        found["request_id"] = span.id
    if sample.parent_number:
        found["parent_id"] = sample.parent_number
    return found


def _tensor(tensor: Tensor) -> dict[str, str]:
    return {
        "name": tensor.name,
        "data": "" if tensor.datatype in _EMPTY else ",".join(_elements(tensor)),
        "shape": ",".join(map(str, tensor.shape)),
        "dtype": tensor.datatype,
    }


def _elements(tensor: Tensor) -> Iterator[str]:
    values = tensor.to_numpy().ravel()
    if tensor.datatype == "BYTES":
        return (f'"{value.decode(errors="replace")}"' for value in values.tolist())
    if tensor.datatype == "BOOL":
        return (str(int(value)) for value in values.tolist())
    if values.dtype.kind == "f":  # the shortest text that is read back as the same number
        return (str(text).removesuffix(".0") for text in values.astype(str))
    return map(str, values.tolist())
