"""TraceContext: who called, as W3C's ``traceparent`` and ``tracestate`` say it.

Source: https://www.w3.org/TR/trace-context/ sections 3.2 and 3.3.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, NamedTuple

import orjson

_FORM: Final = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}(-.*)?")
_NO_VERSION: Final = "ff"
_FIRST_VERSION: Final = "00"


class TraceContext(NamedTuple):
    """The span of another program that a request belongs to."""

    trace_id: int
    span_id: int
    state: str = ""
    """``tracestate``, handed on as it came."""

    @classmethod
    def read(cls, fields: Mapping[bytes, bytes]) -> TraceContext | None:
        """Return what headers or metadata (by lower-case name) tell; None: nothing, or nothing that can be read."""
        text = fields.get(b"traceparent")
        if text is None:
            return None
        found = _FORM.fullmatch(text.decode("latin-1").strip())
        if found is None or found[1] == _NO_VERSION or (found[1] == _FIRST_VERSION and found[4]):
            return None
        trace_id, span_id = int(found[2], 16), int(found[3], 16)
        if not trace_id or not span_id:
            return None
        return cls(trace_id, span_id, fields.get(b"tracestate", b"").decode("latin-1").strip())

    def to_json(self) -> str:
        """Return the context as Python models get it: the headers that hand it on, as JSON."""
        carrier = {"traceparent": f"00-{self.trace_id:032x}-{self.span_id:016x}-01"}
        if self.state:
            carrier["tracestate"] = self.state
        return orjson.dumps(carrier).decode()
