"""Compressed messages: negotiation as in gRPC core, and bounded inflating."""

from __future__ import annotations

import gzip
import os
import tracemalloc
import zlib
from contextlib import contextmanager, suppress

import pytest
from hypothesis import given, strategies as st

from bireme.wire.grpc.compression import choose_encoding, compress, decompress, parse_encoding
from bireme.wire.grpc.status import Refusal, Status

MIB = 1 << 20
ENCODINGS = ["gzip", "deflate"]


@contextmanager
def refused(status, text=""):
    with pytest.raises(Refusal) as caught:
        yield
    assert caught.value.status is status
    assert text in caught.value.text


@pytest.mark.parametrize(
    ("value", "expected"),
    [(None, None), (b"identity", None), (b"gzip", "gzip"), (b"deflate", "deflate")],
)
def test_known_encodings_are_understood(value, expected):
    assert parse_encoding(value) == expected


@pytest.mark.parametrize("value", [b"", b"snappy", b"GZIP", b"gzip,deflate", b"\xff" * 10_000])
def test_an_unknown_encoding_is_unimplemented(value):
    with refused(Status.UNIMPLEMENTED, "grpc-encoding"):
        parse_encoding(value)


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_every_byte_is_asked_for_before_it_is_kept(encoding):
    taken: list[int] = []

    plain = decompress(compress([bytes(3 * MIB + 5)], encoding), encoding, 4 * MIB, taken.append)

    assert plain == bytes(3 * MIB + 5)
    assert sum(taken) == len(plain)
    assert max(taken) <= MIB


@pytest.mark.parametrize(
    ("accept", "low", "medium", "high"),
    [
        (None, None, None, None),
        (b"", None, None, None),
        (b"identity", None, None, None),
        (b"identity, deflate, gzip", "gzip", "deflate", "deflate"),
        (b"identity,deflate,gzip", "gzip", "deflate", "deflate"),
        (b"gzip", "gzip", "gzip", "gzip"),
        (b"deflate, identity", "deflate", "deflate", "deflate"),
        (b"snappy,br,gzip", "gzip", "gzip", "gzip"),
        (b"GZIP, \xff, gzip;q=1", None, None, None),
    ],
)
def test_a_level_chooses_among_what_the_client_accepts(accept, low, medium, high):
    assert choose_encoding(accept, "none") is None
    assert choose_encoding(accept, "low") == low
    assert choose_encoding(accept, "medium") == medium
    assert choose_encoding(accept, "high") == high


@pytest.mark.parametrize("encoding", ENCODINGS)
@given(pieces=st.lists(st.binary(max_size=300), max_size=5))
def test_what_is_compressed_comes_back(encoding, pieces):
    plain = b"".join(pieces)

    assert decompress(compress(pieces, encoding), encoding, MIB) == plain


def test_encodings_are_those_that_clients_speak():
    plain = os.urandom(100) * 100

    assert gzip.decompress(compress([plain], "gzip")) == plain
    assert zlib.decompress(compress([plain], "deflate")) == plain
    assert decompress(gzip.compress(plain), "gzip", MIB) == plain
    assert decompress(memoryview(zlib.compress(plain)), "deflate", MIB) == plain


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize(
    "plain", [b"", b"a", bytes(3 * MIB), os.urandom(200_000)], ids=["empty", "a", "zeros", "noise"]
)
def test_messages_of_all_sizes_come_back(encoding, plain):
    assert decompress(compress([plain], encoding), encoding, len(plain)) == plain


def test_a_compressed_message_in_a_call_without_an_encoding_is_refused():
    with refused(Status.INTERNAL, "compressed flag"):
        decompress(gzip.compress(b"x"), None, MIB)


@pytest.mark.parametrize(
    ("message", "encoding"),
    [
        (b"", "gzip"),
        (b"plain", "gzip"),
        (gzip.compress(b"x" * 1000)[:-1], "gzip"),
        (gzip.compress(b"x" * 1000) + b"more", "gzip"),
        (gzip.compress(b"x") + gzip.compress(b"y"), "gzip"),
        (zlib.compress(b"x"), "gzip"),
        (b"", "deflate"),
        (gzip.compress(b"x"), "deflate"),
        (zlib.compress(b"x" * 1000)[:-2], "deflate"),
        (zlib.compress(b"x")[2:-4], "deflate"),  # a bare deflate stream
        (zlib.compress(b"x") + b"\0", "deflate"),
    ],
)
def test_a_broken_stream_is_refused(message, encoding):
    with refused(Status.INTERNAL, f"by {encoding}"):
        decompress(message, encoding, MIB)


@pytest.mark.parametrize("encoding", ENCODINGS)
@given(message=st.binary(max_size=100))
def test_arbitrary_bytes_are_refused_or_read(encoding, message):
    with suppress(Refusal):
        assert len(decompress(message, encoding, 1000)) <= 1000


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_a_message_is_limited_by_its_plain_size(encoding):
    message = compress([b"x" * 1000], encoding)

    assert len(decompress(message, encoding, 1000)) == 1000
    with refused(Status.RESOURCE_EXHAUSTED, "Received message larger than max (1000 vs. 999)"):
        decompress(message, encoding, 999)


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_a_bomb_takes_little_memory(encoding):
    bomb = compress([bytes(MIB)] * 64, encoding)
    tracemalloc.start()
    try:
        with refused(Status.RESOURCE_EXHAUSTED):
            decompress(bomb, encoding, MIB)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert peak < 5 * MIB
