"""W3C's trace context: who called."""

from __future__ import annotations

import json

import pytest

from bireme.telemetry.tracing import TraceContext

PARENT = b"00-0af7651916cd43dd8448eb211c12666c-b7ad6b7169242424-00"


def test_headers_tell_who_called():
    context = TraceContext.read({b"traceparent": PARENT, b"tracestate": b"a=1,b=2"})

    assert context == (0x0AF7651916CD43DD8448EB211C12666C, 0xB7AD6B7169242424, "a=1,b=2")


def test_a_later_version_may_tell_more():
    assert TraceContext.read({b"traceparent": b"01" + PARENT[2:] + b"-more"}) is not None


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"00",
        PARENT + b"-more",
        PARENT.upper(),
        b"ff" + PARENT[2:],
        b"00-" + b"0" * 32 + b"-b7ad6b7169242424-01",
        b"00-0af7651916cd43dd8448eb211c12666c-0000000000000000-01",
        PARENT.replace(b"0af", b"xyz"),
    ],
)
def test_what_is_no_context_is_none(text):
    assert TraceContext.read({b"traceparent": text}) is None
    assert TraceContext.read({}) is None


def test_a_context_is_handed_on_as_json():
    told = json.loads(TraceContext(1, 2, "a=1").to_json())

    assert told == {
        "traceparent": "00-00000000000000000000000000000001-0000000000000002-01",
        "tracestate": "a=1",
    }
    assert "tracestate" not in json.loads(TraceContext(1, 2).to_json())
