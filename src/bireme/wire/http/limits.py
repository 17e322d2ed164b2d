"""Limits on what one request may make the server hold."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """What a request body may ask for.

    Source: Triton's ``--http-max-input-size`` and its ``HTTP_MAX_JSON_NESTING_DEPTH``.
    """

    max_input_size: int = 64 << 20
    """Bytes of: the JSON part, each tensor decoded from JSON, a raw request, a decompressed body. Binary tensors
    are not limited by it."""
    max_json_depth: int = 100
    """Levels of nested arrays in a tensor's ``data``."""
    max_head_size: int = 256 << 10
    """Bytes of JSON that are left of a large request when its tensors have been made binary: what a server's loop
    parses at once, in some 20 ms."""
