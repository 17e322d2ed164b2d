"""Requests without inputs, for tests of the schedulers: these look at nothing but the fields set here."""

from __future__ import annotations

from bireme.types import InferenceRequest

US = 1000
"""Nanoseconds per microsecond."""


def make_request(
    name: str = "",
    *,
    rows: int = 1,
    key: object = None,
    priority: int = 0,
    timeout_us: int = 0,
    sequence_id: int | str = 0,
    sequence_start: bool = False,
    sequence_end: bool = False,
) -> InferenceRequest:
    request = InferenceRequest(
        "model",
        {},
        _respond,
        id=name,
        priority=priority,
        timeout_us=timeout_us,
        sequence_id=sequence_id,
        sequence_start=sequence_start,
        sequence_end=sequence_end,
    )
    request.batch_size = rows
    request.batch_key = key
    return request


def ids(requests) -> str:
    """One-letter ids, run together: what a test compares with."""
    return "".join(request.id for request in requests)


def _respond(request, response):
    raise AssertionError("a scheduler answers nobody")
