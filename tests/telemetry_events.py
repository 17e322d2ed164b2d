"""Requests and batches with known time stamps, for tests of what is counted."""

from __future__ import annotations

from bireme.scheduling.interface import CloseReason
from bireme.telemetry import ModelStatistics
from bireme.types import Execution, InferenceRequest

US = 1000
MS = 1_000_000

QUEUE_NS, INPUT_NS, INFER_NS, OUTPUT_NS = 20 * US, 3 * US, 700 * US, 9 * US
"""Phases of the requests of `executed` unless told otherwise."""


def executed(
    *rows: int,
    close_reason: str = CloseReason.FULL,
    start_ns: int = 1_000 * MS,
    queue_ns: int = QUEUE_NS,
    input_ns: int = INPUT_NS,
    infer_ns: int = INFER_NS,
    output_ns: int = OUTPUT_NS,
) -> Execution:
    """Return a finished batch of one request per element of ``rows``, accepted at ``start_ns``."""
    requests = [InferenceRequest("m", {}, lambda *_: None, id=f"r{index}") for index in range(len(rows))]
    execution = Execution(requests, sum(rows), close_reason)
    execution.compute_start_ns = start_ns + queue_ns
    execution.compute_input_end_ns = execution.compute_start_ns + input_ns
    execution.compute_output_start_ns = execution.compute_input_end_ns + infer_ns
    execution.compute_end_ns = execution.compute_output_start_ns + output_ns
    for request, num_rows in zip(requests, rows, strict=True):
        request.batch_size = num_rows
        request.start_ns = request.queue_ns = start_ns
        request.execution = execution
    return execution


def count_success(statistics: ModelStatistics, execution: Execution) -> None:
    """Take a batch through its whole life: accepted, started, answered well as soon as it has been computed."""
    for _ in execution.requests:
        statistics.accept()
    statistics.start(len(execution.requests))
    statistics.finish_execution(execution)
    for request in execution.requests:
        statistics.succeed(request, execution.compute_end_ns)


def count_failure(statistics: ModelStatistics, reason: str, duration_ns: int = 0) -> None:
    """Accept a request and let it fail while it waits."""
    statistics.accept()
    statistics.fail(reason, duration_ns, was_pending=True)
