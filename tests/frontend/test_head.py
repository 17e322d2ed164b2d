"""Request heads: what llhttp and we make of them, whole and in pieces, and the cache."""

from __future__ import annotations

import gc

import pytest
from hypothesis import given, strategies as st

from bireme.frontend.http.head import HeadCache, HeadParser, RefusedRequest, RequestHead, parse_head

POST = (
    b"POST /v2/models/add/infer?verbose=1 HTTP/1.1\r\nHost: localhost:8000\r\nContent-Length: 12\r\n"
    b"Inference-Header-Content-Length:  8 \r\nX-Empty:\r\nX-Twice: a\r\nx-twice: b\r\n\r\n"
)


def parse_bytewise(data: bytes) -> RequestHead:
    parser = HeadParser()
    for index in range(len(data)):
        parser.feed(data[index : index + 1])
    return parser.finish()


@pytest.fixture(params=[parse_head, parse_bytewise], ids=["whole", "bytewise"])
def parse(request):
    return request.param


def test_head_is_taken_apart(parse):
    head = parse(POST)

    assert (head.method, head.path, head.content_length) == (b"POST", b"/v2/models/add/infer", 12)
    assert head.keep_alive
    assert not head.is_chunked
    assert not head.expects_continue
    assert head.fields[b"inference-header-content-length"] == b"8"
    assert head.fields[b"x-empty"] == b""
    assert head.fields[b"x-twice"] == b"a, b"
    assert [name for name, _ in head.headers][-2:] == [b"X-Twice", b"x-twice"]
    assert head.text(b"host") == "localhost:8000"
    assert head.text(b"absent") is None
    assert head.reply_end == b"\r\n"


@pytest.mark.parametrize(
    ("target", "path"),
    [
        (b"/v2", b"/v2"),
        (b"/v2?a=/b", b"/v2"),
        (b"/v2/models/a%2Fb", b"/v2/models/a%2Fb"),
        (b"http://host:80/v2/health/live?x", b"/v2/health/live"),
        (b"http://host", b"/"),
        (b"*", b"*"),
    ],
)
def test_path_has_no_query_and_is_not_decoded(parse, target, path):
    assert parse(b"OPTIONS %s HTTP/1.1\r\n\r\n" % target).path == path


@pytest.mark.parametrize(
    ("start", "keep_alive", "reply_end"),
    [
        (b"HTTP/1.1\r\n", True, b"\r\n"),
        (b"HTTP/1.1\r\nConnection: close\r\n", False, b"Connection: close\r\n\r\n"),
        (b"HTTP/1.1\r\nConnection: Close, TE\r\n", False, b"Connection: close\r\n\r\n"),
        (b"HTTP/1.0\r\n", False, b"Connection: close\r\n\r\n"),
        (b"HTTP/1.0\r\nConnection: keep-alive\r\n", True, b"Connection: keep-alive\r\n\r\n"),
        (b"HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n", True, b"\r\n"),
    ],
)
def test_persistence_follows_version_and_connection_header(parse, start, keep_alive, reply_end):
    head = parse(b"GET /v2 " + start + b"\r\n")

    assert (head.keep_alive, head.reply_end) == (keep_alive, reply_end)


def test_expect_continue_counts_in_http_1_1_only(parse):
    header = b"Expect: 100-Continue\r\nContent-Length: 1\r\n\r\n"

    assert parse(b"POST /v2 HTTP/1.1\r\n" + header).expects_continue
    assert not parse(b"POST /v2 HTTP/1.0\r\n" + header).expects_continue


@pytest.mark.parametrize(
    ("data", "status", "text"),
    [
        (b"\x16\x03\x01\x02\x00\r\n\r\n", 400, "Invalid method"),
        (b"BREW /pot HTTP/1.1\r\n\r\n", 400, "Invalid method"),
        (b"GET /v2\r\n\r\n", 505, "version 0.9"),
        (b"GET /v2 HTTP/2.0\r\n\r\n", 505, "version 2.0"),
        (b"PRI * HTTP/2.0\r\n\r\n", 400, "malformed"),
        (b"GET /v2 HTTP/1.1\nHost: a\n\r\n\r\n", 400, "CRLF"),
        (b"GET /v2 HTTP/1.1\r\nHost : a\r\n\r\n", 400, "header token"),
        (b"GET /v2 HTTP/1.1\r\nA: b\r\n c\r\n\r\n", 400, "whitespace"),
        (b"GET /v\x01 HTTP/1.1\r\n\r\n", 400, "Invalid char"),
        (b"POST /v2 HTTP/1.1\r\nContent-Length: -1\r\n\r\n", 400, "Content-Length"),
        (b"POST /v2 HTTP/1.1\r\nContent-Length: 1, 2\r\n\r\n", 400, "Content-Length"),
        (b"POST /v2 HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\n", 400, "Content-Length"),
        (
            b"POST /v2 HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
            400,
            "Content-Length",
        ),
        (b"POST /v2 HTTP/1.1\r\nTransfer-Encoding: gzip, chunked\r\n\r\n", 501, "'gzip, chunked'"),
        (b"POST /v2 HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n", 400, "HTTP/1.0"),
        (b"POST /v2 HTTP/1.1\r\nExpect: a pony\r\n\r\n", 417, "'a pony'"),
    ],
)
def test_what_is_not_http_as_we_take_it_is_refused(parse, data, status, text):
    with pytest.raises(RefusedRequest, match=text) as caught:
        parse(data)

    assert caught.value.status == status


def test_a_bad_byte_is_refused_before_the_head_is_complete():
    parser = HeadParser()

    with pytest.raises(RefusedRequest, match="method"):
        parser.feed(b"\x16")


@given(st.binary(max_size=200))
def test_arbitrary_bytes_parse_or_are_refused(data):
    try:
        head = parse_head(b"GET /v2 HTTP/1.1\r\n" + data + b"\r\n\r\n")
    except RefusedRequest as refusal:
        assert refusal.status in {400, 417, 501}  # noqa: PT017 (or there is none)
    else:
        assert head.path == b"/v2"


def test_parsing_leaves_no_garbage():
    parse_head(POST)
    gc.collect()
    gc.disable()
    try:
        for _ in range(10):
            parse_head(POST)
        assert gc.collect() == 0
    finally:
        gc.enable()


def test_cache_keeps_heads_and_stays_bounded():
    cache = HeadCache()
    head = parse_head(POST)
    cache.put(POST, head)

    assert cache.get(POST) is head
    for index in range(10_000):
        cache.put(b"%d" % index, head)
    assert len(cache) <= 512
    cache.put(b"x" * 5000, head)
    assert cache.get(b"x" * 5000) is None
