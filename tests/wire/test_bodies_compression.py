"""Compressed bodies: negotiation, and bounded inflating."""

from __future__ import annotations

import gzip
import os
import tracemalloc
import zlib
from contextlib import suppress

import pytest
from hypothesis import given, strategies as st

from bireme.types import InvalidArgument, Unsupported
from bireme.wire import http as wire_http
from bireme.wire.http.compression import MAX_STREAMS

MIB = 1 << 20


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        (None, None),
        (b"", None),
        (b"identity", None),
        (b"gzip", "gzip"),
        (b"deflate", "deflate"),
        (b"gzip, deflate", "gzip"),
        (b"deflate, gzip", "deflate"),
        (b"gzip, deflate, br, zstd", "gzip"),
        (b"br", None),
        (b"*", None),
        (b"gzip;q=0.5, deflate;q=0.8", "deflate"),
        (b"gzip;q=0.5,deflate;q=0.5", "gzip"),
        (b"deflate;q=0.5, gzip;q=1.0, *;q=0", "gzip"),
        (b"identity, gzip", None),
        (b"gzip;q=0.9, identity", None),
        (b"identity;q=0.5, gzip;q=1.0", "gzip"),
        (b"gzip;q=0", None),
        (b"GZip", "gzip"),
        (b"  gzip ; q = 0.3 , deflate ; level=1 ; q=0.2", "gzip"),
        (b"gzip;q=x, deflate;q=0.1", "deflate"),
        (b"gzip;q=, deflate;q=nan", None),
        (b";q=1,,gzip", "gzip"),
        (b"gzip;q=7, deflate", "gzip"),
        (b"\xff\xfe", None),
    ],
)
def test_the_reply_is_in_what_the_client_prefers(header, expected):
    assert wire_http.choose_encoding(header) == expected


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        (None, None),
        (b"", None),
        (b"identity", None),
        (b"gzip", "gzip"),
        (b"deflate", "deflate"),
        (b" GZIP ", "gzip"),
    ],
)
def test_the_encoding_of_a_request(header, expected):
    assert wire_http.parse_content_encoding(header) == expected


@pytest.mark.parametrize("header", [b"br", b"gzip, gzip", b"gzip;q=1", b"\xff"])
def test_another_encoding_is_not_supported(header):
    with pytest.raises(
        Unsupported, match=r"^Unsupported compression type: found '.*', expected one of gzip, deflate"
    ):
        wire_http.parse_content_encoding(header)


@given(st.lists(st.binary(max_size=50), max_size=4), st.sampled_from(["gzip", "deflate"]))
def test_what_is_compressed_is_read_by_others_and_by_us(pieces, encoding):
    compressed = b"".join(wire_http.compress(pieces, encoding))
    whole = b"".join(pieces)

    assert (gzip.decompress if encoding == "gzip" else zlib.decompress)(compressed) == whole
    assert wire_http.decompress(compressed, len(whole)) == whole


def test_views_are_compressed_without_a_copy():
    assert (
        wire_http.decompress(b"".join(wire_http.compress([memoryview(bytearray(b"ab"))], "gzip")), 9) == b"ab"
    )


@pytest.mark.parametrize("compress", [gzip.compress, zlib.compress])
def test_the_size_is_exact(compress):
    body = compress(b"x" * 1000)

    assert len(wire_http.decompress(memoryview(body), 1000)) == 1000
    with pytest.raises(InvalidArgument) as caught:
        wire_http.decompress(body, 999)

    assert caught.value.message == (
        "Decompressed data size exceeds the maximum allowed value of 999 bytes. Use --http-max-input-size to increase "
        "the limit."
    )


def test_several_gzip_streams_in_a_row_are_one_body():
    body = gzip.compress(b"ab") + gzip.compress(b"") + gzip.compress(b"cd")

    assert wire_http.decompress(body, 4) == b"abcd"
    with pytest.raises(InvalidArgument, match="exceeds the maximum"):
        wire_http.decompress(body, 3)


def test_a_bomb_is_refused_without_holding_it():
    bomb = zlib.compress(bytes(64 * MIB), 9)
    tracemalloc.start()
    with pytest.raises(InvalidArgument, match="exceeds the maximum"):
        wire_http.decompress(bomb, MIB)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    assert peak < 4 * MIB


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "nothing to be decompressed"),
        (b"not compressed", "failed to decompress the request body: Error -3"),
        (gzip.compress(b"abc")[:-1], "end within the compressed stream"),
        (zlib.compress(b"abc")[:4], "end within the compressed stream"),
        (gzip.compress(b"abc") + b"rest", "failed to decompress the request body"),
        (gzip.compress(b"abc")[:-5] + b"\0" + gzip.compress(b"abc")[-4:], "incorrect data check"),
    ],
)
def test_a_broken_stream_is_refused(body, message):
    with pytest.raises(InvalidArgument, match=message):
        wire_http.decompress(body, MIB)


@given(st.binary(max_size=80))
def test_arbitrary_bytes_are_refused_or_read(data):
    for body in (data, zlib.compress(b"x" * 30)[:-10] + data, gzip.compress(b"x" * 30) + data):
        with suppress(InvalidArgument):
            wire_http.decompress(body, 1000)


def test_streams_in_a_row_are_one_body_up_to_a_limit():
    """300 000 empty streams, 6 MB, once took 35 s, most of them with the GIL held."""
    part = gzip.compress(b"ab")
    assert wire_http.decompress(part * MAX_STREAMS, MIB) == b"ab" * MAX_STREAMS
    with pytest.raises(InvalidArgument, match="more than 4096 compressed streams in a row"):
        wire_http.decompress(part * (MAX_STREAMS + 1), MIB)


@pytest.mark.parametrize("size", [1, 16 << 10, MIB - 1, MIB, MIB + 1, 3 * MIB + 7])
@pytest.mark.parametrize("fill", [bytes, os.urandom], ids=["dense", "noise"])
def test_bodies_larger_than_a_slice_are_put_together(size, fill):
    data = fill(size)
    assert wire_http.decompress(zlib.compress(data, 1), size) == data
    assert wire_http.decompress(memoryview(gzip.compress(data, 1) * 2), 2 * size) == data * 2
