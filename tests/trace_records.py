"""Traces as a server tells them, made up by tests."""

from __future__ import annotations

TIMES = (
    "request_start",
    "queue_start",
    "compute_start",
    "compute_input_end",
    "compute_output_start",
    "compute_end",
    "request_end",
)


def record(model: str, *times: float, **more: object) -> dict[str, object]:
    """Return the JSON object of one request that went the whole way at such ``times``."""
    return {"model": model, "batch_size": 1, **dict(zip(TIMES, times, strict=False)), **more}
