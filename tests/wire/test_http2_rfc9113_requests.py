"""RFC 9113 section by section, as tables: what a client sends, and what must come of it. Here: requests (section 8).

Floods (section 10.5) are in `test_http2_memory` and `test_http2_limits`.
"""

from __future__ import annotations

import pytest

from bireme.wire.http2 import ErrorCode, Http2Limits
from http2_client import REQUEST_HEADERS, RESPONSE_BLOCK, TRAILERS_BLOCK
from http2_peer import (
    END_HEADERS,
    END_STREAM,
    SMALL,
    START,
    Peer,
    data,
    encode,
    frame,
    headers,
    request,
    rst_stream,
)
from http2_rules import Ends, Fails, Rule, Taken, as_parameters, check

PROTOCOL_ERROR = ErrorCode.PROTOCOL_ERROR
WHOLE = END_HEADERS | END_STREAM
OPEN = START + headers()
PSEUDO = dict(REQUEST_HEADERS[:4])


def fields(*extra, without=(), **changes):
    """Return a request of these fields: pseudo-headers changed by name, or left out, and ``extra`` behind all others."""
    pseudo = PSEUDO | {b":" + name.encode(): value for name, value in changes.items()}
    block = encode(
        [
            *((name, value) for name, value in pseudo.items() if name not in without),
            *REQUEST_HEADERS[4:],
            *extra,
        ]
    )
    return headers(1, block, WHOLE)


def with_length(length, *frames):
    """Return a request that announces ``length`` bytes of content, and ``frames`` behind its head."""
    return headers(1, encode([*REQUEST_HEADERS, (b"content-length", b"%d" % length)])) + b"".join(frames)


MALFORMED = Fails(PROTOCOL_ERROR, is_opened=False)
"""A request that no handler gets to see."""

MESSAGE_RULES = [
    Rule("8.1", "a request without content", request(), Taken()),
    Rule("8.1", "a request with content", request(1, b"abc"), Taken(b"abc")),
    Rule("8.1", "trailers", headers(1, encode([(b"x-checksum", b"1")]), WHOLE), Taken(b"x"), start=OPEN + data(1, b"x")),
    Rule("8.1", "empty trailers", headers(1, b"", WHOLE), Taken(), start=OPEN),
    Rule("8.1", "trailers that do not end the stream", headers(1, encode([(b"x-checksum", b"1")])), Fails(PROTOCOL_ERROR), start=OPEN),
    Rule("8.1", "trailers with a pseudo-header", headers(1, encode([(b":path", b"/")]), WHOLE), Fails(PROTOCOL_ERROR), start=OPEN),
    Rule("8.1", "trailers with a status", headers(1, encode([(b":status", b"200")]), WHOLE), Fails(PROTOCOL_ERROR), start=OPEN),
    Rule("8.1", "trailers with a name in upper case", headers(1, encode([(b"X-Sum", b"1")]), WHOLE), Fails(PROTOCOL_ERROR), start=OPEN),
    Rule("8.1", "trailers with a connection field", headers(1, encode([(b"connection", b"close")]), WHOLE), Fails(PROTOCOL_ERROR), start=OPEN),
    Rule("8.1", "a second request on the stream", headers(), Fails(PROTOCOL_ERROR), start=OPEN),
    Rule("8.1.1", "content of the length announced", with_length(3, data(1, b"ab"), data(1, b"c", END_STREAM)), Taken(b"abc")),
    Rule("8.1.1", "an end behind the content", with_length(3, data(1, b"abc"), data(1, b"", END_STREAM)), Taken(b"abc")),
    Rule("8.1.1", "trailers behind the content", with_length(3, data(1, b"abc"), headers(1, b"", WHOLE)), Taken(b"abc")),
    Rule("8.1.1", "no content as announced", with_length(0, data(1, b"", END_STREAM)), Taken()),
    Rule("8.1.1", "padding is no content", with_length(1, frame(0, 0x8 | END_STREAM, 1, b"\x02a\0\0")), Taken(b"a")),
    Rule("8.1.1", "less content", with_length(3, data(1, b"ab", END_STREAM)), Fails(PROTOCOL_ERROR)),
    Rule("8.1.1", "less content, then trailers", with_length(3, data(1, b"ab"), headers(1, b"", WHOLE)), Fails(PROTOCOL_ERROR)),
    Rule("8.1.1", "more content", with_length(3, data(1, b"abcd")), Fails(PROTOCOL_ERROR)),
    Rule("8.1.1", "more content in a second frame", with_length(3, data(1, b"abc"), data(1, b"d", END_STREAM)), Fails(PROTOCOL_ERROR)),
    Rule("8.1.1", "content where none was announced", with_length(0, data(1, b"a")), Fails(PROTOCOL_ERROR)),
    Rule("8.1.1", "no content where some was announced", fields((b"content-length", b"3")), MALFORMED),
    Rule("8.1.1", "two lengths", fields((b"content-length", b"0"), (b"content-length", b"1")), MALFORMED),
    Rule("8.1.1", "the same length twice", fields((b"content-length", b"0"), (b"content-length", b"0")), Taken()),
    Rule("8.1.1", "a length below 0", fields((b"content-length", b"-1")), MALFORMED),
    Rule("8.1.1", "a length that is no number", fields((b"content-length", b"1e3")), MALFORMED),
    Rule("8.1.1", "an empty length", fields((b"content-length", b"")), MALFORMED),
]  # fmt: skip

FIELD_RULES = [
    Rule("8.2.1", f"a name with {name!r}", fields((name, b"v")), MALFORMED)
    for name in (b"X-Upper", b"", b"a b", b"a\0", b"a\n", b"a\r", b"a\x7f", b"a\xff", b"a:b", b" a", b"a\t", b'a"', b"a,", b"a(")
] + [
    Rule("8.2.1", f"a value with {value!r}", fields((b"x", value)), MALFORMED)
    for value in (b"a\0b", b"a\nb", b"a\rb", b"\0")
] + [
    Rule("8.2.1", f"the value {value!r}", fields((b"x", value)), Taken())
    for value in (b"", b"a b", b"a\tb", b"\x80\xff", "é".encode(), b'a,b;c="d"')
] + [
    Rule("8.2.1", f"the value {value!r}, on purpose: gRPC's clients send such", fields((b"x", value)), Taken())
    for value in (b" a", b"a ", b"\ta", b"a\t")
] + [
    Rule("8.2.1", f"a path with {value!r}", fields(path=value), MALFORMED) for value in (b"/a\0", b"/a\r\nx: y", b"/a ")
] + [
    Rule("8.2.2", name.decode(), fields((name, value)), MALFORMED)
    for name, value in [
        (b"connection", b"close"), (b"connection", b""), (b"keep-alive", b"timeout=5"), (b"proxy-connection", b"close"),
        (b"transfer-encoding", b"chunked"), (b"upgrade", b"h2c"), (b"te", b"gzip"), (b"te", b"trailers, deflate"),
    ]
] + [
    Rule("8.2.2", "te: trailers", fields((b"te", b"trailers")), Taken()),
    Rule("8.2.3", "cookies in pieces", fields((b"cookie", b"a=1"), (b"cookie", b"b=2")), Taken()),
]  # fmt: skip

PSEUDO_RULES = [
    Rule("8.3", "behind a regular field", fields((b":authority", b"a"), without=(b":authority",)), MALFORMED),
    Rule("8.3", "an unknown one", fields(protocol=b"websocket"), MALFORMED),
    Rule("8.3", "a response's", fields(status=b"200"), MALFORMED),
    Rule("8.3", "one with an empty name", fields(**{"": b"x"}), MALFORMED),
    Rule("8.3", "in upper case", headers(1, encode([(b":METHOD", b"POST"), *REQUEST_HEADERS[1:]]), WHOLE), MALFORMED),
    Rule("8.3", "twice", headers(1, encode([REQUEST_HEADERS[0], *REQUEST_HEADERS]), WHOLE), MALFORMED),
    Rule("8.3", "in any order", headers(1, encode([*reversed(REQUEST_HEADERS[:4]), *REQUEST_HEADERS[4:]]), WHOLE), Taken()),
    Rule("8.3.1", "no method", fields(without=(b":method",)), MALFORMED),
    Rule("8.3.1", "no scheme", fields(without=(b":scheme",)), MALFORMED),
    Rule("8.3.1", "no path", fields(without=(b":path",)), MALFORMED),
    Rule("8.3.1", "an empty path", fields(path=b""), MALFORMED),
    Rule("8.3.1", "a path that does not begin with a slash", fields(path=b"a/b"), MALFORMED),
    Rule("8.3.1", "an asterisk for another method than OPTIONS", fields(path=b"*"), MALFORMED),
    Rule("8.3.1", "an asterisk for OPTIONS", fields(path=b"*", method=b"OPTIONS"), Taken()),
    Rule("8.3.1", "no authority", fields(without=(b":authority",)), Taken()),
    Rule("8.3.1", "a host in place of the authority", fields((b"host", b"a"), without=(b":authority",)), Taken()),
    Rule("8.3.1", "a host that is the authority", fields((b"host", PSEUDO[b":authority"])), Taken()),
    Rule("8.3.1", "a host that is not the authority", fields((b"host", b"elsewhere")), MALFORMED),
    Rule("8.3.1", "an authority with user information", fields(authority=b"user@a"), MALFORMED),
    Rule("8.3.1", "an empty block", headers(1, b"", WHOLE), MALFORMED),
    Rule("8.3.1", "regular fields only", headers(1, encode(REQUEST_HEADERS[4:]), WHOLE), MALFORMED),
    Rule("8.5", "CONNECT", headers(1, encode([(b":method", b"CONNECT"), (b":authority", b"a:1")])), Taken(is_ended=False)),
    Rule("8.5", "CONNECT with a path", fields(method=b"CONNECT"), MALFORMED),
    Rule("8.5", "CONNECT without an authority", headers(1, encode([(b":method", b"CONNECT")])), MALFORMED),
    Rule("8.6", "an upgrade in HTTP/1.1", b"GET / HTTP/1.1\r\nUpgrade: h2c\r\n\r\n", Ends(PROTOCOL_ERROR), start=b""),
]  # fmt: skip


@pytest.mark.parametrize("chunk_size", [1 << 20, 1], ids=["whole", "by the byte"])
@pytest.mark.parametrize("rule", as_parameters([*MESSAGE_RULES, *FIELD_RULES, *PSEUDO_RULES]))
def test_rule(rule, chunk_size):
    check(rule, chunk_size)


@pytest.mark.parametrize(
    "rule",
    as_parameters(rule for rule in [*FIELD_RULES, *PSEUDO_RULES] if not isinstance(rule.outcome, Ends)),
)
def test_the_same_block_means_the_same_again(rule):
    peer = Peer(SMALL)
    flags, block = rule.sent[4], rule.sent[9:]
    peer.exchange(rule.sent + headers(3, block, flags))
    is_sound = isinstance(rule.outcome, Taken)

    assert list(peer.calls) == ([1, 3] if is_sound else [])
    assert peer.resets_sent() == ({} if is_sound else {1: PROTOCOL_ERROR, 3: PROTOCOL_ERROR})


def test_8_1_an_answer_is_headers_data_and_trailers():
    peer = Peer(SMALL)
    peer.answer_all(b"reply")
    sent = peer.exchange(request(1, b"x"))

    assert [(reply.type, reply.stream_id, "END_STREAM" in reply.flags) for reply in sent] == [
        (1, 1, False), (0, 1, False), (1, 1, True),
    ]  # fmt: skip
    assert [reply.data for reply in sent] == [RESPONSE_BLOCK, b"reply", TRAILERS_BLOCK]


def test_8_1_an_answer_before_the_end_of_the_request_is_followed_by_a_reset_without_error():
    peer = Peer(SMALL)
    peer.exchange(headers())
    peer.connection.answer(peer.calls[1].stream, RESPONSE_BLOCK, [b"x"], 1, TRAILERS_BLOCK)
    peer.take_frames()

    assert peer.frames[-2].flags >= {"END_STREAM"}
    assert peer.resets_sent() == {1: ErrorCode.NO_ERROR}


def test_8_1_a_malformed_request_leaves_the_table_as_it_should_be():
    peer = Peer(SMALL)
    added = b"\x40\x06custom\x05value"  # becomes index 62
    peer.exchange(headers(1, b"\x83" + added, WHOLE))
    plain = b"\x83\x86\x44\x02/a\x01\x01b"  # its path becomes index 62, and the field above index 63
    peer.exchange(headers(3, plain + b"\xbf", WHOLE))

    assert peer.resets_sent() == {1: PROTOCOL_ERROR}
    assert peer.calls[3].stream.head.headers == [(b"custom", b"value")]
    assert peer.calls[3].stream.head.path == b"/a"


def test_8_7_a_refused_stream_was_not_looked_at():
    peer = Peer(SMALL)
    peer.exchange(b"".join(headers(number) for number in (1, 3, 5, 7)))
    peer.exchange(headers(9) + data(9, b"x", END_STREAM))

    assert peer.resets_sent() == {9: ErrorCode.REFUSED_STREAM}
    assert 9 not in peer.calls
    peer.exchange(rst_stream(1) + headers(11))
    assert 11 in peer.calls


@pytest.mark.parametrize("chunk_size", [1 << 20, 1])
def test_10_5_1_a_block_larger_than_any_list_ends_the_connection_at_its_header(chunk_size):
    peer = Peer(Http2Limits(max_header_list_size=1000))
    peer.feed(headers(1, bytes(100_000))[:9], chunk_size)
    peer.take_frames()

    assert peer.goaway_code() == ErrorCode.ENHANCE_YOUR_CALM
