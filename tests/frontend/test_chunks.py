"""Chunked bodies: framing, limits, and where the body ends, however the bytes arrive."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from bireme.frontend.http.chunks import ChunkedBody
from bireme.frontend.http.head import RefusedRequest


def take(data: bytes, step: int | None = None, **limits: int) -> tuple[bytes, int]:
    """Feed ``data`` and return the body and the number of bytes that were taken."""
    chunks = ChunkedBody(**{"max_size": 1000, "max_chunks": 100} | limits)
    position = 0
    while position < len(data) and not chunks.is_complete:
        position += chunks.feed(memoryview(data)[position : position + (step or len(data))])
    assert chunks.is_complete
    return bytes(chunks.body), position


@pytest.mark.parametrize("step", [None, 1, 3])
@pytest.mark.parametrize(
    ("data", "body"),
    [
        (b"0\r\n\r\n", b""),
        (b"5\r\nhello\r\n0\r\n\r\n", b"hello"),
        (b'005\r\nhello\r\n1;ext="a;b"\r\n!\r\n000\r\n\r\n', b"hello!"),
        (b"A \r\n0123456789\r\na\r\n0123456789\r\n0\r\nTrailer: x\r\nOther: y\r\n\r\n", b"0123456789" * 2),
        (b"2\r\n\r\n\r\n0\r\n\r\n", b"\r\n"),
    ],
)
def test_body_is_put_together_and_what_follows_is_left(data, body, step):
    assert take(data + b"GET / HTTP/1.1\r\n", step) == (body, len(data))


@pytest.mark.parametrize("step", [None, 1])
@pytest.mark.parametrize(
    ("data", "status", "text"),
    [
        (b"\r\n", 400, "chunk size"),
        (b"-1\r\n", 400, "chunk size"),
        (b"0x5\r\n", 400, "chunk size"),
        (b"5_0\r\n", 400, "chunk size"),
        (b"5\n", 400, "bare LF"),
        (b"5\r\nhello\n0\r\n\r\n", 400, "bare LF"),
        (b"5\r\nhello!\r\n", 400, "after a chunk"),
        (b"1" * 16 + b"\r\n", 400, "chunk size"),
        (b"5;" + b"x" * 2000, 400, "1024 bytes"),
        (b"3e9\r\n", 413, "1000 bytes"),
        (b"3e8\r\n" + b"x" * 1000 + b"\r\n1\r\n", 413, "1000 bytes"),
        (b"0\r\n" + b"Trailer: xxxxxxxxxxxxxx\r\n" * 1000, 431, "trailers"),
    ],
)
def test_broken_framing_and_limits_are_refused(data, status, text, step):
    with pytest.raises(RefusedRequest, match=text) as caught:
        take(data, step)

    assert caught.value.status == status


def test_one_chunk_too_many_is_refused_and_the_last_one_does_not_count():
    assert take(b"1\r\nx\r\n" * 100 + b"0\r\n\r\n")[0] == b"x" * 100
    with pytest.raises(RefusedRequest, match="exceeds maximum of 100 non-empty chunks"):
        take(b"1\r\nx\r\n" * 101 + b"0\r\n\r\n")


@given(st.lists(st.binary(min_size=1, max_size=50), max_size=20), st.integers(1, 60))
def test_any_chunks_come_back_whole(pieces, step):
    data = b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"

    assert take(data + b"rest", step) == (b"".join(pieces), len(data))


@given(st.binary(max_size=300), st.integers(1, 20))
def test_arbitrary_bytes_are_taken_or_refused(data, step):
    chunks = ChunkedBody(max_size=1000, max_chunks=100)
    position = 0
    try:
        while position < len(data) and not chunks.is_complete:
            position += chunks.feed(memoryview(data)[position : position + step])
    except RefusedRequest as refusal:
        assert refusal.status in {400, 413, 431}  # noqa: PT017 (or there is none)
    assert len(chunks.body) <= 1000
