"""The objects of a trace file: which there are, in which order, and tensors as text."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from bireme.telemetry.tracing.triton_json import write_objects
from bireme.types import Sample, Span, Tensor


def made(level: tuple[str, ...] = ("TIMESTAMPS", "TENSORS"), events: tuple[tuple[int, str], ...] = ()) -> Any:
    """Return a finished trace of one span."""
    span = Span("m", 3, "r", 10, 0, [5])
    span.queue_ns, span.end_ns = 20, 90
    span.compute_start_ns, span.compute_input_end_ns = 30, 40
    span.compute_output_start_ns, span.compute_end_ns = 50, 60
    trace = SimpleNamespace(setting=SimpleNamespace(level=level), root=span, events=list(events))
    span.sample = Sample(trace, 7, 0, 0, "7")
    return trace


def child_of(trace: Any, number: int, parent: int) -> Span:
    span = Span("n", -1, "", 11, 1, [5])
    span.sample = Sample(trace, number, parent, 0, str(number))
    return span


def read(trace: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(b"[%s]" % write_objects(trace))
    return found


def test_objects_are_in_the_order_of_their_times():
    trace = made(events=((5, "HTTP_RECV_START"), (95, "HTTP_SEND_END")))
    tensor = Tensor.from_numpy("X", np.ones(1, np.int32))
    trace.root.sample.tensors = [(20, "TENSOR_QUEUE_INPUT", tensor), (90, "TENSOR_BACKEND_OUTPUT", tensor)]

    first, *rest = read(trace)

    assert first == {"id": 7, "model_name": "m", "model_version": 3, "request_id": "r"}
    assert [each.get("activity") or each["timestamps"][0]["name"] for each in rest] == [
        "HTTP_RECV_START",
        "REQUEST_START",
        "QUEUE_START",
        "TENSOR_QUEUE_INPUT",
        "COMPUTE_START",
        "COMPUTE_INPUT_END",
        "COMPUTE_OUTPUT_START",
        "COMPUTE_END",
        "TENSOR_BACKEND_OUTPUT",
        "REQUEST_END",
        "HTTP_SEND_END",
    ]
    assert rest[0] == {"id": 7, "timestamps": [{"name": "HTTP_RECV_START", "ns": 5}]}


def test_what_did_not_happen_is_missing():
    trace = made()
    trace.root.compute_end_ns = 0
    trace.root.queue_ns = 0

    assert [each["timestamps"][0]["name"] for each in read(trace)[1:]] == ["REQUEST_START", "REQUEST_END"]


def test_only_spans_that_the_trace_was_passed_to_are_written():
    """A call for a batch is among the calls of all its requests, and the child of one."""
    trace = made()
    linked, other = child_of(trace, 8, 7), child_of(trace, 9, 6)
    plain = Span("p", 1, "", 11, 1, [5])
    trace.root.children = [linked, other, plain]

    heads = [each for each in read(trace) if "model_name" in each]

    assert heads[1:] == [{"id": 8, "model_name": "n", "model_version": -1, "parent_id": 7}]


@pytest.mark.parametrize(
    ("array", "datatype", "data", "shape"),
    [
        (np.array([[1, 2], [3, 4]], np.int64), None, "1,2,3,4", "2,2"),
        (np.array([True, False]), None, "1,0", "2"),
        (np.array([1, 0.1, 2.5, np.inf, 1e20], np.float32), None, "1,0.1,2.5,inf,1e+20", "5"),
        (np.array([0.1], np.float64), None, "0.1", "1"),
        (np.array([1.5], np.float16), None, "", "1"),
        (np.array([1], np.uint16), "BF16", "", "1"),
        (np.array([b'say "hi"', b"\xff"], np.object_), None, '"say "hi"","\ufffd"', "2"),
        (np.array(7, np.uint8), None, "7", ""),
        (np.empty((0, 2), np.int32), None, "", "0,2"),
    ],
)
def test_tensors_are_text(array, datatype, data, shape):
    trace = made(level=("TENSORS",))
    tensor = Tensor.from_numpy("T", array, datatype)
    trace.root.sample.tensors = [(20, "TENSOR_QUEUE_INPUT", tensor)]

    _, told = read(trace)

    assert told["tensor"] == {"name": "T", "data": data, "shape": shape, "dtype": tensor.datatype}
