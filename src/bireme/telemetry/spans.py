"""Tracing one request: who asked for it, what it called, where the time went.

A client asks by the request parameter `TRACE_PARAMETER`. The request gets a `Span`, and so does every call that a model makes
for it, through any depth: BLS from processes and threads, calls past the queue, the steps of ensembles. The final response
carries the tree as a parameter of the same name.

Triton's trace extension samples requests as well (`bireme.telemetry.tracing`). To such a trace belong the steps of ensembles,
and those calls that pass it on (``trace=request.trace()``). Nothing is recorded for anybody else.

What the times mean is what Triton's trace extension calls them: ``REQUEST_START``, ``QUEUE_START`` and so on.

A call that a model makes after its ``execute`` has returned (decoupled models with threads of their own) belongs to no
request any more, and is not in the tree, unless it passes on the trace of a request that is still open.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable
from typing import Any, Final

import numpy as np
import orjson

from bireme.types import (
    BiremeError,
    Execution,
    InferenceRequest,
    InferenceResponse,
    InvalidArgument,
    Sample,
    Span,
    Tensor,
)

TRACE_PARAMETER: Final = "bireme_trace"
"""Of a request: true asks for a trace. Of its final response: the trace, as JSON text."""
MAX_SPANS: Final = 1000
"""So many requests of models one trace holds; what comes beyond is counted only."""
MAX_DEPTH: Final = 100
"""So many calls, each made by the one before it. JSON writers and readers give up at about twice that."""
_MAX_CHARACTERS: Final = 500

TENSOR_QUEUE_INPUT: Final = "TENSOR_QUEUE_INPUT"
TENSOR_BACKEND_OUTPUT: Final = "TENSOR_BACKEND_OUTPUT"

_now_ns = time.monotonic_ns
_sampled: Final[dict[str, Span]] = {}
"""Spans that calls can be linked to, by `Sample.link`: of sampled requests that are not answered yet. Any thread, one step
at a time."""


def begin_trace(request: InferenceRequest) -> None:
    """Take the parameter off ``request``, so that no model sees it, and trace the request if it is true.

    Raises:
        InvalidArgument: it is neither true nor false.
    """
    parameters = dict(request.parameters or {})
    wanted = parameters.pop(TRACE_PARAMETER, False)
    if not isinstance(wanted, bool):
        raise InvalidArgument(
            f"{request.id_prefix}parameter '{TRACE_PARAMETER}': expected true or false, got {wanted!r:.40}"
        )
    request.parameters = parameters or None
    if wanted:
        request.trace = request.trace or _make_span(request, 0, [MAX_SPANS - 1])
        request.trace.is_wanted = True


def begin_sample(request: InferenceRequest, make: Callable[[Sample | None], Sample]) -> Span:
    """Trace ``request``, which has come from outside, as the first of a sampled trace. ``make`` makes its `Sample`."""
    request.trace = span = request.trace or _make_span(request, 0, [MAX_SPANS - 1])
    _enter(request, span, make(None))
    return span


def _enter(request: InferenceRequest, span: Span, sample: Sample) -> None:
    span.sample = sample
    request.trace_context = sample.link
    _sampled[sample.link] = span


def begin_call(request: InferenceRequest, caller: Execution | None) -> None:
    """Trace ``request`` as a call of the code of ``caller``, if a request of that batch is traced. Any thread.

    Without a caller, whose ``execute`` has returned, it is traced if it passes on the trace of an open request. A request
    that was begun already, as its model had no time for a direct call, goes on in the same span.
    """
    if request.trace is not None:
        return
    if request.trace_context is not None:
        _add_call(request, caller, _sampled.get(request.trace_context))
        return
    for called_for in () if caller is None else caller.requests:
        if called_for.trace is not None:
            _add_call(request, caller, None)
            return


def _add_call(request: InferenceRequest, caller: Execution | None, linked: Span | None) -> None:
    """``linked``: the span whose trace was passed on."""
    requests = [] if caller is None else caller.requests
    parents = [each.trace for each in requests if each.trace is not None and each.trace.is_wanted]
    if linked is not None and linked not in parents:
        parents.insert(0, linked)
    if not parents:
        return
    budget, depth = parents[0].budget, parents[0].depth + 1
    if budget[0] <= 0 or depth >= MAX_DEPTH:
        for parent in parents:
            parent.num_dropped += 1
        return
    budget[0] -= 1
    request.trace = span = _make_span(request, depth, budget)
    span.is_wanted = any(parent.is_wanted for parent in parents)
    if linked is not None and linked.sample is not None:
        _enter(request, span, linked.sample.trace.make_sample(linked.sample))
    for parent in parents:
        parent.children.append(span)


def _make_span(request: InferenceRequest, depth: int, budget: list[int]) -> Span:
    return Span(request.model_name, request.model_version, _clean(request.id), _now_ns(), depth, budget)


def _clean(text: str) -> str:
    """Return ``text`` as JSON can tell it, and not too much of it."""
    return text[:_MAX_CHARACTERS].encode(errors="replace").decode()


def refuse_call(request: InferenceRequest, error: BiremeError) -> None:
    """End the span of a call that its model did not take. Any thread."""
    span = request.trace
    if span is not None:
        leave_sample(span)
        span.end_ns = _now_ns()
        span.error = _clean(error.message)


def refuse_request(request: InferenceRequest, error: BiremeError) -> None:
    """End the trace of a request from outside that its model did not take."""
    refuse_call(request, error)
    span = request.trace
    if span is not None and span.sample is not None:
        span.sample.trace.close()


def leave_sample(span: Span) -> None:
    """Let no call belong to ``span`` any more. Any thread."""
    if span.sample is not None:
        _sampled.pop(span.sample.link, None)


def note_response(span: Span, response: InferenceResponse) -> None:
    """Count a response that is not the final one."""
    now_ns = _now_ns()
    span.num_responses += 1
    span.first_response_ns = span.first_response_ns or now_ns
    if span.sample is not None and span.sample.trace.takes_tensors:
        _copy(span.sample, TENSOR_BACKEND_OUTPUT, response.outputs, now_ns)


def _copy(sample: Sample, activity: str, tensors: Iterable[Tensor], time_ns: int) -> None:
    """Keep copies: what tensors borrow may be memory of a client, which writes to it as soon as it has its answer."""
    for tensor in tensors:
        with contextlib.suppress(BiremeError):  # BYTES that are none: what failed for them tells that
            copy = Tensor(tensor.name, tensor.datatype, tensor.shape, np.array(tensor.to_numpy()))
            sample.tensors.append((time_ns, activity, copy))


def end_span(request: InferenceRequest, response: InferenceResponse) -> None:
    """Complete the span of ``request``, whose model is known and whose last response is ``response``. Any thread.

    The response of the request that the trace was asked for gets the whole tree, if the client wants it.
    """
    span = request.trace
    assert span is not None
    span.end_ns = _now_ns()
    span.queue_ns = request.queue_ns
    span.rows = request.batch_size
    if response.error is not None:
        span.error = _clean(response.error.message)
    if request.execution is not None:
        _take_times(span, request.execution)
    if span.sample is not None:
        leave_sample(span)
        if span.sample.trace.takes_tensors:
            _copy(span.sample, TENSOR_QUEUE_INPUT, request.inputs.values(), span.queue_ns or span.start_ns)
            if not span.is_decoupled:
                _copy(span.sample, TENSOR_BACKEND_OUTPUT, response.outputs, span.end_ns)
    if span.is_decoupled and not response.flag_only:
        note_response(span, response)
    if span.depth == 0 and span.is_wanted:
        response.parameters = {**(response.parameters or {}), TRACE_PARAMETER: write_trace(span)}


def _take_times(span: Span, execution: Execution) -> None:
    span.batch_size = execution.batch_size
    span.close_reason = str(execution.close_reason)
    span.compute_start_ns = execution.compute_start_ns
    if span.is_ensemble:  # the other times of its execution are sums over its steps
        return
    span.compute_input_end_ns = execution.compute_input_end_ns or execution.compute_start_ns
    # A decoupled model goes on after its execute; others may answer before that has ended.
    goes_on = span.is_decoupled or not execution.compute_end_ns
    span.compute_output_start_ns = span.end_ns if goes_on else execution.compute_output_start_ns
    span.compute_end_ns = span.end_ns if goes_on else execution.compute_end_ns


def write_trace(root: Span) -> str:
    """Return the tree as JSON text; see `to_json`."""
    return orjson.dumps(to_json(root, root.start_ns)).decode()


def to_json(span: Span, origin_ns: int, room: list[int] | None = None) -> dict[str, Any]:
    """Return ``span`` and what it called as JSON values; times are microseconds since ``origin_ns``.

    What does not apply is left out: times that it did not come to, ``request_end`` of a call that nobody waited for,
    ``calls`` where there are none. ``room``: how many spans may still be told. A call of a batch is told with each of its
    requests, so that a few spans can be told very often.
    """
    room = [MAX_SPANS - 1] if room is None else room
    found: dict[str, Any] = {"model": span.model}
    if span.version != -1:
        found["version"] = span.version
    if span.is_ensemble:
        found["ensemble"] = True
    if span.id:
        found["id"] = span.id
    for key, time_ns in (
        ("request_start", span.start_ns),
        ("queue_start", span.queue_ns),
        ("compute_start", span.compute_start_ns),
        ("compute_input_end", span.compute_input_end_ns),
        ("compute_output_start", span.compute_output_start_ns),
        ("compute_end", span.compute_end_ns),
        ("first_response", span.first_response_ns),
        ("request_end", span.end_ns),
    ):
        if time_ns:
            found[key] = (time_ns - origin_ns) / 1e3
    found["rows"] = span.rows
    if span.batch_size:
        found["batch_size"] = span.batch_size
        found["close_reason"] = span.close_reason
    if span.first_response_ns:
        found["responses"] = span.num_responses
    if span.error is not None:
        found["error"] = span.error
    children = tuple(span.children)
    told = children[: room[0]]
    room[0] -= len(told)
    if num_dropped := span.num_dropped + len(children) - len(told):
        found["dropped_calls"] = num_dropped
    if told:
        found["calls"] = [to_json(child, origin_ns, room) for child in told]
    return found
