"""The body of every error reply."""

from __future__ import annotations

from bireme.wire.http.json_text import write_json


def error_body(message: str) -> bytes:
    """Return ``{"error": message}``, which clients look for whatever the status."""
    return write_json({"error": message})
