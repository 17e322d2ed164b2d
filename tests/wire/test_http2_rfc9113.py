"""RFC 9113 section by section, as tables: what a client sends, and what must come of it. Here: sections 3 to 5.

`test_http2_rfc9113_frames` has section 6, `test_http2_rfc9113_requests` sections 8 and 10.
"""

from __future__ import annotations

import pytest

from bireme.wire.http2 import ErrorCode, Http2Limits, encode_block
from http2_client import REQUEST_HEADERS, RESPONSE_BLOCK, TRAILERS_BLOCK
from http2_peer import (
    ACK,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    PREFACE,
    PUSH_PROMISE,
    REQUEST,
    SETTINGS,
    SMALL,
    START,
    Peer,
    continuation,
    data,
    encode,
    frame,
    headers,
    ping,
    priority,
    request,
    rst_stream,
    settings,
    window_update,
)
from http2_rules import Cancels, Ends, Fails, Ignored, Rule, Taken, as_parameters, check

PROTOCOL_ERROR = ErrorCode.PROTOCOL_ERROR
STREAM_CLOSED = ErrorCode.STREAM_CLOSED
FRAME_SIZE_ERROR = ErrorCode.FRAME_SIZE_ERROR
COMPRESSION_ERROR = ErrorCode.COMPRESSION_ERROR

PLAIN_REQUEST = encode_block(REQUEST_HEADERS)
"""Leaves the table as it is."""
TRAILING = encode([(b"x-checksum", b"1")])
REQUEST_HALVES = (REQUEST[:10], REQUEST[10:])

PREFACE_RULES = [
    Rule("3.4", "the preface and SETTINGS begin a connection", START + request(), Taken(), start=b""),
    Rule("3.4", "SETTINGS may have values", PREFACE + settings((3, 100)) + request(), Taken(), start=b""),
    Rule("3.4", "HTTP/1.1 in place of the preface", b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", Ends(PROTOCOL_ERROR), start=b""),
    Rule("3.4", "a preface that is wrong at its end", PREFACE[:-1] + b"X" + settings(), Ends(PROTOCOL_ERROR), start=b""),
    Rule("3.4", "TLS in place of the preface", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", Ends(PROTOCOL_ERROR), start=b""),
    Rule("3.4", "a request in place of SETTINGS", PREFACE + request(), Ends(PROTOCOL_ERROR), start=b""),
    Rule("3.4", "a PING in place of SETTINGS", PREFACE + ping(), Ends(PROTOCOL_ERROR), start=b""),
    Rule("3.4", "an acknowledgement in place of SETTINGS", PREFACE + settings(flags=ACK), Ends(PROTOCOL_ERROR), start=b""),
    Rule("3.4", "an unknown frame in place of SETTINGS", PREFACE + frame(0xFA), Ends(PROTOCOL_ERROR), start=b""),
    Rule("3.4", "a second preface", PREFACE, Ends(FRAME_SIZE_ERROR)),  # "PRI" is a length of 5 MB
]  # fmt: skip

FRAMING_RULES = [
    Rule("4.1", "unknown types are discarded", frame(0xFA, 0xFF, 0, b"?" * 100), Ignored()),
    Rule("4.1", "unknown types are discarded on idle streams", frame(0x0A, 0, 7, b"?"), Ignored()),
    Rule("4.2", "unknown frames of the largest size", frame(0xFF, 0, 0, bytes(1 << 14)), Ignored()),
    Rule("4.1", "unknown flags are ignored", frame(HEADERS, END_HEADERS | END_STREAM | 0xD2, 1, REQUEST), Taken()),
    Rule("4.1", "the reserved bit is ignored", frame(HEADERS, END_HEADERS | END_STREAM, 0x80000001, REQUEST), Taken()),
    Rule("4.1", "the reserved bit is ignored in DATA", headers() + data(0x80000001, b"x", END_STREAM), Taken(b"x")),
    Rule("4.2", "DATA of the largest size", headers() + data(1, bytes(1 << 14), END_STREAM), Taken(bytes(1 << 14))),
    Rule("4.2", "DATA over the largest size", headers() + data(1, bytes((1 << 14) + 1)), Ends(FRAME_SIZE_ERROR)),
    Rule("4.2", "HEADERS over the largest size", headers(1, bytes((1 << 14) + 1)), Ends(FRAME_SIZE_ERROR)),
    Rule("4.2", "SETTINGS over the largest size", frame(SETTINGS, 0, 0, bytes((1 << 14) + 2)), Ends(FRAME_SIZE_ERROR)),
    Rule("4.2", "unknown frames over the largest size", frame(0xFA, 0, 0, bytes((1 << 14) + 1)), Ends(FRAME_SIZE_ERROR)),
    Rule("4.2", "a size over the largest is refused at the header", frame(0, 0, 1, length=0xFFFFFF), Ends(FRAME_SIZE_ERROR), start=START + headers()),
    Rule("4.3", "a block in one frame", headers(1, REQUEST, END_HEADERS | END_STREAM), Taken()),
    Rule("4.3", "a block in two frames", headers(1, REQUEST_HALVES[0], END_STREAM) + continuation(1, REQUEST_HALVES[1], END_HEADERS), Taken()),
    Rule("4.3", "an index that is not in the table", headers(1, b"\xff\x80\x01"), Ends(COMPRESSION_ERROR)),
    Rule("4.3", "index 0", headers(1, b"\x80"), Ends(COMPRESSION_ERROR)),
    Rule("4.3", "a block that ends within a field", headers(1, b"\x00\x05abc"), Ends(COMPRESSION_ERROR)),
    Rule("4.3", "broken Huffman code", headers(1, b"\x00\x81\xff\x81\xff"), Ends(COMPRESSION_ERROR)),
    Rule("4.3", "a broken block as trailers", headers() + headers(1, b"\x80", END_HEADERS | END_STREAM), Ends(COMPRESSION_ERROR)),
    Rule("4.3", "a broken block on a stream that is closed", headers() + request(3) + headers(1, b"\x80"), Ends(COMPRESSION_ERROR)),
    Rule("4.3.1", "a table larger than announced", headers(1, b"\x3f\xe2\x1f" + REQUEST), Ends(COMPRESSION_ERROR)),
    Rule("4.3.1", "a smaller table", headers(1, b"\x20" + REQUEST, END_HEADERS | END_STREAM), Taken()),
    Rule("4.3.1", "a smaller table, then the announced size", headers(1, b"\x20\x3f\xe1\x1f" + REQUEST, END_HEADERS | END_STREAM), Taken()),
    Rule("4.3.1", "another size amid the fields", headers(1, REQUEST + b"\x20"), Ends(COMPRESSION_ERROR)),
]  # fmt: skip


def opened(*, flags=0):
    return START + headers(1, REQUEST, END_HEADERS | flags)


# Stream 1 is brought into each state, then a frame of each type comes.
IDLE_RULES = [
    Rule("5.1 idle", "DATA", data(1, b"x"), Ends(PROTOCOL_ERROR)),
    Rule("5.1 idle", "HEADERS", headers(), Taken(is_ended=False)),
    Rule("5.1 idle", "HEADERS with END_STREAM", request(), Taken()),
    Rule("5.1 idle", "PRIORITY", priority(), Ignored()),
    Rule("5.1 idle", "RST_STREAM", rst_stream(), Ends(PROTOCOL_ERROR)),
    Rule("5.1 idle", "PUSH_PROMISE", frame(PUSH_PROMISE, END_HEADERS, 1, b"\0\0\0\2" + REQUEST), Ends(PROTOCOL_ERROR)),
    Rule("5.1 idle", "WINDOW_UPDATE", window_update(1, 1), Ends(PROTOCOL_ERROR)),
    Rule("5.1 idle", "CONTINUATION", continuation(1, REQUEST, END_HEADERS), Ends(PROTOCOL_ERROR)),
    Rule("5.1 idle", "unknown", frame(0xFA, 0, 1), Ignored()),
    Rule("5.1 idle", "DATA on a stream of the server", data(2, b"x"), Ends(PROTOCOL_ERROR), start=START + request(3)),
    Rule("5.1 idle", "WINDOW_UPDATE on a stream of the server", window_update(2, 1), Ends(PROTOCOL_ERROR), start=START + request(3)),
    Rule("5.1 idle", "RST_STREAM on a stream of the server", rst_stream(2), Ends(PROTOCOL_ERROR), start=START + request(3)),
]  # fmt: skip

OPEN_RULES = [
    Rule("5.1 open", "DATA", data(1, b"x"), Taken(b"x", is_ended=False), start=opened()),
    Rule("5.1 open", "DATA with END_STREAM", data(1, b"x", END_STREAM), Taken(b"x"), start=opened()),
    Rule("5.1 open", "empty DATA with END_STREAM", data(1, b"", END_STREAM), Taken(), start=opened()),
    Rule("5.1 open", "HEADERS with END_STREAM", headers(1, TRAILING, END_HEADERS | END_STREAM), Taken(), start=opened()),
    Rule("5.1 open", "PRIORITY", priority(), Ignored(), start=opened()),
    Rule("5.1 open", "RST_STREAM", rst_stream(), Cancels(ErrorCode.CANCEL), start=opened()),
    Rule("5.1 open", "PUSH_PROMISE", frame(PUSH_PROMISE, END_HEADERS, 1, b"\0\0\0\2" + REQUEST), Ends(PROTOCOL_ERROR), start=opened()),
    Rule("5.1 open", "WINDOW_UPDATE", window_update(1, 1), Ignored(), start=opened()),
    Rule("5.1 open", "CONTINUATION", continuation(1, TRAILING, END_HEADERS), Ends(PROTOCOL_ERROR), start=opened()),
    Rule("5.1 open", "unknown", frame(0xFA, 0, 1), Ignored(), start=opened()),
]  # fmt: skip

HALF_CLOSED_RULES = [
    Rule("5.1 half-closed (remote)", title, sent, outcome, start=opened(flags=END_STREAM))
    for title, sent, outcome in [
        ("DATA", data(1, b"x"), Fails(STREAM_CLOSED)),
        ("empty DATA", data(1), Fails(STREAM_CLOSED)),
        ("DATA with END_STREAM", data(1, b"", END_STREAM), Fails(STREAM_CLOSED)),
        ("HEADERS", headers(1, TRAILING), Fails(STREAM_CLOSED)),
        ("HEADERS with END_STREAM", headers(1, TRAILING, END_HEADERS | END_STREAM), Fails(STREAM_CLOSED)),
        ("HEADERS of a request", request(), Fails(STREAM_CLOSED)),
        ("PRIORITY", priority(), Ignored()),
        ("RST_STREAM", rst_stream(), Cancels(ErrorCode.CANCEL)),
        ("WINDOW_UPDATE", window_update(1, 1), Ignored()),
        ("CONTINUATION", continuation(1, TRAILING, END_HEADERS), Ends(PROTOCOL_ERROR)),
        ("unknown", frame(0xFA, 0, 1), Ignored()),
    ]
]  # fmt: skip


def rules_when_closed(state, start, stream_error):
    """Return the rules for stream 1 when it is closed; a peer that goes on then has lost count (``stream_error``)."""
    return [
        Rule(f"5.1 closed ({state})", title, sent, outcome, start=start, is_answered=True)
        for title, sent, outcome in [
            ("DATA", data(1, b"x"), stream_error),
            ("HEADERS", headers(1, TRAILING, END_HEADERS | END_STREAM), stream_error),
            ("PRIORITY", priority(), Ignored()),
            ("RST_STREAM", rst_stream(), Ignored()),
            ("WINDOW_UPDATE", window_update(1, 1), Ignored()),
            ("WINDOW_UPDATE by 0", window_update(1, 0), Ignored()),
            ("CONTINUATION", continuation(1, TRAILING, END_HEADERS), Ends(PROTOCOL_ERROR)),
            ("unknown", frame(0xFA, 0, 1), Ignored()),
        ]
    ]


CLOSED_RULES = [
    *rules_when_closed("by END_STREAM of both", START + request(), Ends(STREAM_CLOSED)),
    # Passed over when the client used stream 3 (5.1.1)
    *[
        Rule("5.1.1 passed over", title, sent, outcome, start=START + request(3), is_answered=True)
        for title, sent, outcome in [
            ("DATA", data(1, b"x"), Ends(PROTOCOL_ERROR)),
            ("HEADERS", headers(), Ends(PROTOCOL_ERROR)),
            ("PRIORITY", priority(), Ignored()),
            ("RST_STREAM", rst_stream(), Ignored()),
            ("WINDOW_UPDATE", window_update(1, 1), Ignored()),
        ]
    ],
]


def test_5_1_frames_on_a_stream_that_the_client_has_reset_end_the_connection():
    peer = Peer(SMALL)
    peer.exchange(headers() + rst_stream())
    peer.exchange(data(1, b"x"))

    assert peer.goaway_code() == STREAM_CLOSED
    assert not peer.calls[1].body


LATE = {
    "DATA": data(1, b"late"),
    "DATA with END_STREAM": data(1, b"late", END_STREAM),
    "HEADERS": headers(1, TRAILING, END_HEADERS | END_STREAM),
    "WINDOW_UPDATE": window_update(1, 1),
    "PRIORITY": priority(),
    "RST_STREAM": rst_stream(),
}


def reset_by_server(peer):
    peer.connection.reset(peer.calls[1].stream, ErrorCode.CANCEL)


def answered_early(peer):
    peer.connection.answer(peer.calls[1].stream, RESPONSE_BLOCK, [b"x"], 1, TRAILERS_BLOCK)


@pytest.mark.parametrize("late", LATE)
@pytest.mark.parametrize("end", [reset_by_server, answered_early])
def test_5_1_what_was_under_way_when_the_server_ended_a_stream_is_ignored(end, late):
    peer = Peer(SMALL)
    peer.exchange(headers())
    end(peer)
    peer.take_frames()

    assert not peer.exchange(LATE[late])
    assert peer.is_alive()
    assert not peer.calls[1].body
    assert not peer.calls[1].resets


def test_5_1_only_so_much_comes_after_the_server_has_ended_a_stream():
    peer = Peer(SMALL)
    peer.exchange(headers())
    reset_by_server(peer)
    peer.exchange(data(1, b"late", END_STREAM))

    peer.exchange(data(1, b"later than the end"))
    assert peer.goaway_code() == STREAM_CLOSED


def test_5_1_nothing_comes_after_the_client_has_reset_a_stream_too():
    peer = Peer(SMALL)
    peer.exchange(headers())
    reset_by_server(peer)
    peer.exchange(rst_stream())
    assert peer.is_alive()

    peer.exchange(data(1, b"late"))
    assert peer.goaway_code() == STREAM_CLOSED


def test_5_1_what_comes_too_late_does_not_come_without_end():
    peer = Peer(Http2Limits(frame_allowance=100))
    peer.exchange(headers())
    reset_by_server(peer)
    peer.exchange(data(1, b"late") * 50)
    assert peer.is_alive()

    peer.exchange(data(1, b"late") * 60)
    assert peer.goaway_code() == ErrorCode.ENHANCE_YOUR_CALM


def test_5_1_a_block_that_comes_too_late_still_changes_the_table():
    peer = Peer(SMALL)
    peer.exchange(headers())
    reset_by_server(peer)
    peer.take_frames()
    added = b"\x40\x06custom\x05value"  # becomes index 62

    assert not peer.exchange(headers(1, added, END_HEADERS | END_STREAM))
    peer.exchange(headers(3, PLAIN_REQUEST + b"\xbe"))
    assert peer.calls[3].stream.head.headers[-1] == (b"custom", b"value")


IDENTIFIER_RULES = [
    Rule("5.1.1", "streams may be passed over", request(5) + request(999), Taken(stream_id=999)),
    Rule("5.1.1", "the highest stream", request(0x7FFFFFFF), Taken(stream_id=0x7FFFFFFF)),
    Rule("5.1.1", "an even stream", headers(2), Ends(PROTOCOL_ERROR)),
    Rule("5.1.1", "an even stream after others", headers(4), Ends(PROTOCOL_ERROR), start=START + request(3)),
    Rule("5.1.1", "stream 0", headers(0), Ends(PROTOCOL_ERROR)),
    Rule("5.1.1", "a lower stream than the last", headers(3), Ends(PROTOCOL_ERROR), start=START + request(5)),
    Rule("5.1.1", "a stream that was used", headers(1), Ends(STREAM_CLOSED), start=START + request(1), is_answered=True),
    Rule("5.1.2", "as many streams as allowed", b"".join(headers(number) for number in (1, 3, 5, 7)), Taken(stream_id=7, is_ended=False)),
    Rule("5.1.2", "one more", headers(9), Fails(ErrorCode.REFUSED_STREAM, 9, is_opened=False), start=START + b"".join(headers(number) for number in (1, 3, 5, 7))),
    Rule("5.1.2", "one more when another has ended", headers(9), Taken(stream_id=9, is_ended=False), start=START + b"".join(headers(number) for number in (1, 3, 5, 7)) + rst_stream(3)),
    Rule("5.1.2", "answered streams do not count", b"".join(request(number) for number in range(3, 41, 2)) + headers(41), Taken(stream_id=41, is_ended=False), start=START, is_answered=True),
]  # fmt: skip

OTHER_RULES = [
    Rule("5.3.2", "priorities are ignored", priority(1, 3, 255) + priority(99, 1), Ignored(), start=opened()),
    Rule("5.3.2", "a stream that depends on itself", priority(1, 1), Ignored(), start=opened()),
    Rule("5.3.2", "a request that depends on itself", frame(HEADERS, END_HEADERS | END_STREAM | 0x20, 1, b"\0\0\0\1\x10" + REQUEST), Taken()),
    Rule("5.4.2", "no RST_STREAM answers another", rst_stream(1, PROTOCOL_ERROR), Cancels(PROTOCOL_ERROR), start=opened()),
    Rule("5.5", "unknown frames amid a header block", headers(1, REQUEST, 0) + frame(0xFA), Ends(PROTOCOL_ERROR)),
    Rule("5.5", "unknown settings are ignored", settings((0xFF, 1)) + request(), Taken()),
    Rule("5.5", "unknown frames amid a request", headers() + frame(0xFA, 0xFF, 1, b"?") + data(1, b"x", END_STREAM), Taken(b"x")),
]  # fmt: skip


@pytest.mark.parametrize("chunk_size", [1 << 20, 1], ids=["whole", "by the byte"])
@pytest.mark.parametrize(
    "rule",
    as_parameters([
        *PREFACE_RULES, *FRAMING_RULES, *IDLE_RULES, *OPEN_RULES, *HALF_CLOSED_RULES, *CLOSED_RULES,
        *IDENTIFIER_RULES, *OTHER_RULES,
    ]),
)  # fmt: skip
def test_rule(rule, chunk_size):
    check(rule, chunk_size)
