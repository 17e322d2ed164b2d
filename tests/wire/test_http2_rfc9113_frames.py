"""RFC 9113 section by section, as tables: what a client sends, and what must come of it. Here: section 6, the frames."""

from __future__ import annotations

import pytest

from bireme.wire.http2 import ErrorCode, Http2Limits
from http2_client import RESPONSE_BLOCK, TRAILERS_BLOCK
from http2_peer import (
    ACK,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HAS_PRIORITY,
    HEADERS,
    PADDED,
    PING,
    PRIORITY,
    PUSH_PROMISE,
    REQUEST,
    RST_STREAM,
    SETTINGS,
    SMALL,
    START,
    WINDOW_UPDATE,
    Peer,
    continuation,
    data,
    frame,
    goaway,
    headers,
    is_ping_ack,
    ping,
    priority,
    request,
    rst_stream,
    settings,
    window_update,
)
from http2_rules import Cancels, Ends, Fails, Ignored, Rule, Taken, as_parameters, check

PROTOCOL_ERROR = ErrorCode.PROTOCOL_ERROR
FRAME_SIZE_ERROR = ErrorCode.FRAME_SIZE_ERROR
FLOW_CONTROL_ERROR = ErrorCode.FLOW_CONTROL_ERROR

OPEN = START + headers()
MAX_WINDOW = 0x7FFFFFFF
WHOLE = END_HEADERS | END_STREAM
PRIORITY_FIELDS = b"\0\0\0\0\x10"

DATA_RULES = [
    Rule("6.1", "DATA in several frames", data(1, b"a") + data(1) + data(1, b"b") + data(1, b"c", END_STREAM), Taken(b"abc"), start=OPEN),
    Rule("6.1", "on stream 0", data(0, b"x"), Ends(PROTOCOL_ERROR), start=OPEN),
    Rule("6.1", "padding", frame(DATA, PADDED | END_STREAM, 1, b"\x03abc\0\0\0"), Taken(b"abc"), start=OPEN),
    Rule("6.1", "no padding", frame(DATA, PADDED | END_STREAM, 1, b"\0abc"), Taken(b"abc"), start=OPEN),
    Rule("6.1", "nothing but padding", frame(DATA, PADDED | END_STREAM, 1, b"\xff" + bytes(255)), Taken(), start=OPEN),
    Rule("6.1", "padding that is not zero", frame(DATA, PADDED | END_STREAM, 1, b"\x01a\xff"), Taken(b"a"), start=OPEN),
    Rule("6.1", "as much padding as payload", frame(DATA, PADDED, 1, b"\x04abc"), Ends(PROTOCOL_ERROR), start=OPEN),
    Rule("6.1", "more padding than payload", frame(DATA, PADDED, 1, b"\xffabc"), Ends(PROTOCOL_ERROR), start=OPEN),
    Rule("6.1", "no padding length", frame(DATA, PADDED, 1), Ends(FRAME_SIZE_ERROR), start=OPEN),
]  # fmt: skip

HEADERS_RULES = [
    Rule("6.2", "padding", frame(HEADERS, WHOLE | PADDED, 1, b"\x05" + REQUEST + bytes(5)), Taken()),
    Rule("6.2", "a priority", frame(HEADERS, WHOLE | HAS_PRIORITY, 1, PRIORITY_FIELDS + REQUEST), Taken()),
    Rule("6.2", "padding and a priority", frame(HEADERS, WHOLE | HAS_PRIORITY | PADDED, 1, b"\x02" + PRIORITY_FIELDS + REQUEST + b"\0\0"), Taken()),
    Rule("6.2", "padding and CONTINUATION", frame(HEADERS, END_STREAM | PADDED, 1, b"\x02" + REQUEST[:7] + b"\0\0") + continuation(1, REQUEST[7:], END_HEADERS), Taken()),
    Rule("6.2", "on stream 0", headers(0), Ends(PROTOCOL_ERROR)),
    Rule("6.2", "more padding than payload", frame(HEADERS, END_HEADERS | PADDED, 1, b"\xff" + REQUEST), Ends(PROTOCOL_ERROR)),
    Rule("6.2", "padding that leaves no room for the priority", frame(HEADERS, END_HEADERS | PADDED | HAS_PRIORITY, 1, b"\x01" + PRIORITY_FIELDS), Ends(PROTOCOL_ERROR)),
    Rule("6.2", "no padding length", frame(HEADERS, END_HEADERS | PADDED, 1), Ends(FRAME_SIZE_ERROR)),
    Rule("6.2", "a priority that is too short", frame(HEADERS, END_HEADERS | HAS_PRIORITY, 1, b"\0\0\0\0"), Ends(FRAME_SIZE_ERROR)),
    Rule("6.2", "another frame amid a block", headers(1, REQUEST, 0) + ping(), Ends(PROTOCOL_ERROR)),
    Rule("6.2", "another stream's frame amid a block", headers(1, REQUEST, 0) + headers(3), Ends(PROTOCOL_ERROR)),
    Rule("6.2", "DATA amid a block", headers(1, REQUEST, 0) + data(1, b"x"), Ends(PROTOCOL_ERROR)),
    Rule("6.2", "another stream's DATA amid a block", headers(3, REQUEST, 0) + data(1, b"abc"), Ends(PROTOCOL_ERROR), start=OPEN),
    Rule("6.2", "nothing but padding, then CONTINUATION", frame(HEADERS, END_STREAM | PADDED, 1, b"\x02\0\0") + continuation(1, REQUEST, END_HEADERS), Taken()),
    Rule("6.2", "RST_STREAM amid a block", headers(1, REQUEST, 0) + rst_stream(1), Ends(PROTOCOL_ERROR)),
]  # fmt: skip

PRIORITY_RULES = [
    Rule("6.3", "on stream 0", priority(0), Ends(PROTOCOL_ERROR)),
    Rule("6.3", "too short", frame(PRIORITY, 0, 1, bytes(4)), Fails(FRAME_SIZE_ERROR), start=OPEN),
    Rule("6.3", "too long", frame(PRIORITY, 0, 1, bytes(6)), Fails(FRAME_SIZE_ERROR), start=OPEN),
    Rule("6.3", "far too long", frame(PRIORITY, 0, 1, bytes(9000)), Fails(FRAME_SIZE_ERROR), start=OPEN),
    Rule("6.3", "too short on an idle stream", frame(PRIORITY, 0, 3, bytes(4)), Ends(FRAME_SIZE_ERROR), start=OPEN),
]  # fmt: skip

RST_STREAM_RULES = [
    Rule("6.4", "on stream 0", rst_stream(0), Ends(PROTOCOL_ERROR)),
    Rule("6.4", "on an idle stream", rst_stream(3), Ends(PROTOCOL_ERROR), start=OPEN),
    Rule("6.4", "too short", frame(RST_STREAM, 0, 1, bytes(3)), Ends(FRAME_SIZE_ERROR), start=OPEN),
    Rule("6.4", "too long", frame(RST_STREAM, 0, 1, bytes(5)), Ends(FRAME_SIZE_ERROR), start=OPEN),
    Rule("6.4", "amid a request", data(1, b"x") + rst_stream(1), Cancels(ErrorCode.CANCEL), start=OPEN),
    Rule("6.4", "twice", rst_stream(1) + rst_stream(1), Cancels(ErrorCode.CANCEL), start=OPEN),
    Rule("7", "unknown error codes mean nothing", rst_stream(1, 0xDEADBEEF), Cancels(0xDEADBEEF), start=OPEN),
]  # fmt: skip

SETTINGS_RULES = [
    Rule("6.5", "an acknowledgement", settings(flags=ACK), Ignored()),
    Rule("6.5", "an acknowledgement with a payload", settings((3, 1), flags=ACK), Ends(FRAME_SIZE_ERROR)),
    Rule("6.5", "on a stream", frame(SETTINGS, 0, 1), Ends(PROTOCOL_ERROR), start=OPEN),
    Rule("6.5", "a size that is no multiple of 6", frame(SETTINGS, 0, 0, bytes(5)), Ends(FRAME_SIZE_ERROR)),
    Rule("6.5", "another such size", frame(SETTINGS, 0, 0, bytes(13)), Ends(FRAME_SIZE_ERROR)),
    Rule("6.5.2", "ENABLE_PUSH 0 and 1", settings((2, 0), (2, 1)) + request(), Taken()),
    Rule("6.5.2", "ENABLE_PUSH 2", settings((2, 2)), Ends(PROTOCOL_ERROR)),
    Rule("6.5.2", "INITIAL_WINDOW_SIZE 2^31 - 1", settings((4, MAX_WINDOW)) + request(), Taken()),
    Rule("6.5.2", "INITIAL_WINDOW_SIZE 2^31", settings((4, MAX_WINDOW + 1)), Ends(FLOW_CONTROL_ERROR)),
    Rule("6.5.2", "MAX_FRAME_SIZE 2^14", settings((5, 1 << 14)) + request(), Taken()),
    Rule("6.5.2", "MAX_FRAME_SIZE 2^14 - 1", settings((5, (1 << 14) - 1)), Ends(PROTOCOL_ERROR)),
    Rule("6.5.2", "MAX_FRAME_SIZE 2^24 - 1", settings((5, (1 << 24) - 1)) + request(), Taken()),
    Rule("6.5.2", "MAX_FRAME_SIZE 2^24", settings((5, 1 << 24)), Ends(PROTOCOL_ERROR)),
    Rule("6.5.2", "the largest of the others", settings((1, 0xFFFFFFFF), (3, 0xFFFFFFFF), (6, 0xFFFFFFFF)) + request(), Taken()),
    Rule("6.5.2", "a bad value behind good ones", settings((4, 1), (2, 7)), Ends(PROTOCOL_ERROR)),
    Rule("6.5.2", "as many settings as anybody sends", settings(*((0x100, 0),) * 64) + request(), Taken()),
    Rule("10.5", "more settings than anybody sends", settings(*((0x100, 0),) * 65), Ends(ErrorCode.ENHANCE_YOUR_CALM)),
]  # fmt: skip

OTHER_RULES = [
    Rule("6.6", "PUSH_PROMISE", frame(PUSH_PROMISE, END_HEADERS, 1, b"\0\0\0\2" + REQUEST), Ends(PROTOCOL_ERROR), start=OPEN),
    Rule("6.6", "PUSH_PROMISE on stream 0", frame(PUSH_PROMISE, END_HEADERS, 0, b"\0\0\0\2" + REQUEST), Ends(PROTOCOL_ERROR)),
    Rule("6.7", "an acknowledgement", ping(flags=ACK), Ignored()),
    Rule("6.7", "on a stream", frame(PING, 0, 1, bytes(8)), Ends(PROTOCOL_ERROR), start=OPEN),
    Rule("6.7", "too short", frame(PING, 0, 0, bytes(7)), Ends(FRAME_SIZE_ERROR)),
    Rule("6.7", "too long", frame(PING, 0, 0, bytes(9)), Ends(FRAME_SIZE_ERROR)),
    Rule("6.7", "empty", frame(PING), Ends(FRAME_SIZE_ERROR)),
    Rule("6.8", "requests go on after the client's GOAWAY", goaway() + data(1, b"x", END_STREAM), Taken(b"x"), start=OPEN),
    Rule("6.8", "with a text", goaway(0, 2, b"bye" * 1000), Ignored()),
    Rule("6.8", "twice", goaway() * 2, Ignored()),
    Rule("6.8", "on a stream", frame(GOAWAY, 0, 1, bytes(8)), Ends(PROTOCOL_ERROR), start=OPEN),
    Rule("6.8", "too short", frame(GOAWAY, 0, 0, bytes(7)), Ends(FRAME_SIZE_ERROR)),
    Rule("6.10", "many frames", headers(1, b"", END_STREAM) + b"".join(continuation(1, bytes((byte,))) for byte in REQUEST) + continuation(1, b"", END_HEADERS), Taken()),
    Rule("6.10", "trailers", headers(1, b"", END_STREAM) + continuation(1, b"", END_HEADERS), Taken(), start=OPEN),
    Rule("6.10", "on stream 0", headers(1, REQUEST, 0) + continuation(0, b"", END_HEADERS), Ends(PROTOCOL_ERROR)),
    Rule("6.10", "on another stream", headers(1, REQUEST, 0) + continuation(3, b"", END_HEADERS), Ends(PROTOCOL_ERROR)),
    Rule("6.10", "after END_HEADERS", continuation(1, b"", END_HEADERS), Ends(PROTOCOL_ERROR), start=OPEN),
    Rule("6.10", "after the last CONTINUATION", headers(1, REQUEST, 0) + continuation(1, b"", END_HEADERS) + continuation(1, b"", END_HEADERS), Ends(PROTOCOL_ERROR)),
    Rule("6.10", "after DATA", continuation(1, b"", END_HEADERS), Ends(PROTOCOL_ERROR), start=OPEN + data(1, b"x")),
]  # fmt: skip

WINDOW_RULES = [
    Rule("6.9", "by 0 on a stream", window_update(1, 0), Fails(PROTOCOL_ERROR), start=OPEN),
    Rule("6.9", "by 0 on the connection", window_update(0, 0), Ends(PROTOCOL_ERROR)),
    Rule("6.9", "the reserved bit is ignored", window_update(1, 0x80000001), Ignored(), start=OPEN),
    Rule("6.9", "by 0 but for the reserved bit", window_update(1, 0x80000000), Fails(PROTOCOL_ERROR), start=OPEN),
    Rule("6.9", "too short", frame(WINDOW_UPDATE, 0, 0, bytes(3)), Ends(FRAME_SIZE_ERROR)),
    Rule("6.9", "too long", frame(WINDOW_UPDATE, 0, 1, bytes(5)), Ends(FRAME_SIZE_ERROR), start=OPEN),
    Rule("6.9.1", "up to 2^31 - 1 on the connection", window_update(0, MAX_WINDOW - 65535), Ignored()),
    Rule("6.9.1", "over 2^31 - 1 on the connection", window_update(0, MAX_WINDOW - 65534), Ends(FLOW_CONTROL_ERROR)),
    Rule("6.9.1", "up to 2^31 - 1 on a stream", window_update(1, MAX_WINDOW - 65535), Ignored(), start=OPEN),
    Rule("6.9.1", "over 2^31 - 1 on a stream", window_update(1, MAX_WINDOW - 65534), Fails(FLOW_CONTROL_ERROR), start=OPEN),
    Rule("6.9.1", "over 2^31 - 1 in steps", window_update(1, MAX_WINDOW - 65535) + window_update(1, 1), Fails(FLOW_CONTROL_ERROR), start=OPEN),
    Rule("6.9.2", "a larger initial window over 2^31 - 1 on a stream", window_update(1, MAX_WINDOW - 65535) + settings((4, 65536)), Ends(FLOW_CONTROL_ERROR), start=OPEN),
    Rule("6.9.2", "a larger initial window up to 2^31 - 1 on a stream", window_update(1, MAX_WINDOW - 65535) + settings((4, 65535)) + data(1, b"x", END_STREAM), Taken(b"x"), start=OPEN),
]  # fmt: skip


@pytest.mark.parametrize("chunk_size", [1 << 20, 1], ids=["whole", "by the byte"])
@pytest.mark.parametrize(
    "rule",
    as_parameters([
        *DATA_RULES, *HEADERS_RULES, *PRIORITY_RULES, *RST_STREAM_RULES, *SETTINGS_RULES, *OTHER_RULES, *WINDOW_RULES,
    ]),
)  # fmt: skip
def test_rule(rule, chunk_size):
    check(rule, chunk_size)


# What the server sends of its own


def test_3_4_the_servers_first_frame_is_settings():
    peer = Peer(SMALL, start=b"")

    [first, window] = peer.frames
    assert (first.type, first.flags, first.settings[4], first.settings[5]) == (
        SETTINGS,
        set(),
        1 << 16,
        1 << 14,
    )
    assert first.settings[2] == 0
    assert (window.type, window.stream_id, window.window_increment) == (WINDOW_UPDATE, 0, (1 << 17) - 65535)


def test_6_5_3_settings_are_acknowledged_in_their_order_and_in_force_from_then_on():
    peer = Peer(SMALL)
    replies = peer.exchange(settings((4, 10)) + ping() + settings((4, 20)) + settings())

    assert [(sent.type, "ACK" in sent.flags) for sent in replies] == [
        (SETTINGS, True), (PING, True), (SETTINGS, True), (SETTINGS, True),
    ]  # fmt: skip
    peer.exchange(headers())
    assert peer.calls[1].stream.window == 20


def test_6_5_3_of_one_setting_given_twice_the_last_is_in_force():
    peer = Peer(SMALL)
    peer.exchange(settings((4, 10), (4, 30)) + headers())

    assert peer.calls[1].stream.window == 30


def test_6_7_pings_are_answered_with_their_payload():
    peer = Peer(SMALL)
    replies = peer.exchange(ping(b"abcdefgh") + ping(b"\0" * 8))

    assert [sent.opaque_data for sent in replies] == [b"abcdefgh", b"\0" * 8]
    assert is_ping_ack(replies, b"abcdefgh")


def test_6_8_goaway_names_the_last_stream_that_was_taken():
    peer = Peer(SMALL)
    peer.exchange(request(7) + request(3 << 8 | 1) + frame(SETTINGS, 0, 1))

    assert peer.frames[-1].last_stream_id == 3 << 8 | 1
    assert peer.goaway_code() == PROTOCOL_ERROR


def test_6_8_streams_after_a_goaway_are_refused_and_those_before_it_end_well():
    peer = Peer(SMALL)
    peer.exchange(headers(1))
    peer.connection.go_away(ErrorCode.NO_ERROR)
    peer.exchange(request(3) + data(1, b"x", END_STREAM))

    assert peer.resets_sent() == {3: ErrorCode.REFUSED_STREAM}
    assert list(peer.calls) == [1]
    assert peer.calls[1].has_ended


def test_6_1_data_received_into_its_own_memory_ends_a_request_as_soon_as_it_is_there():
    peer = Peer(SMALL, scratch_size=1 << 12)
    peer.handler.wants_memory = True
    sent = data(1, bytes(10_000), END_STREAM)
    peer.exchange(headers())
    peer.feed(sent[:5000])
    assert not peer.calls[1].has_ended

    peer.feed(sent[5000:], 5000)
    assert peer.calls[1].num_direct
    assert peer.calls[1].has_ended


def test_6_9_the_window_of_a_stream_and_that_of_the_connection_are_opened_again():
    peer = Peer(SMALL)
    peer.exchange(settings(flags=ACK) + headers())
    granted = {0: 1 << 17, 1: 1 << 16}
    for _ in range(40):
        for sent in peer.exchange(data(1, bytes(1 << 14))):
            assert sent.type == WINDOW_UPDATE
            granted[sent.stream_id] += sent.window_increment
        granted[0] -= 1 << 14
        granted[1] -= 1 << 14
        assert granted[1] >= 1 << 15
        assert granted[0] >= 1 << 16
    assert granted[0] <= 1 << 17
    assert granted[1] <= 1 << 16


def test_6_9_1_padding_counts_against_windows():
    peer = Peer(SMALL)
    peer.exchange(settings(flags=ACK) + headers())
    num_bytes = sum(
        sent.window_increment
        for _ in range(200)
        for sent in peer.exchange(frame(DATA, PADDED, 1, b"\xff" + bytes(1023)))
        if sent.stream_id == 1
    )

    assert 200 * 1024 - (1 << 15) <= num_bytes <= 200 * 1024


def test_6_9_1_data_over_a_streams_window_ends_the_stream():
    peer = Peer(Http2Limits(stream_window=1 << 16, connection_window=1 << 20, max_frame_size=1 << 18))
    peer.exchange(settings(flags=ACK) + headers(1) + headers(3))
    peer.exchange(data(1, bytes((1 << 16) + 1)) + data(3, bytes(1 << 16), END_STREAM))

    assert peer.resets_sent() == {1: FLOW_CONTROL_ERROR}
    assert peer.calls[1].resets == [FLOW_CONTROL_ERROR]
    assert len(peer.calls[3].body) == 1 << 16


def test_6_9_1_data_over_the_connections_window_ends_it():
    peer = Peer(Http2Limits(stream_window=1 << 20, connection_window=1 << 16, max_frame_size=1 << 18))
    peer.exchange(headers(1) + data(1, bytes(1 << 16)))
    assert len(peer.calls[1].body) == 1 << 16

    peer.exchange(data(1, bytes((1 << 16) + 1)))
    assert peer.goaway_code() == FLOW_CONTROL_ERROR


def test_6_9_1_data_on_closed_streams_counts_against_the_connections_window():
    peer = Peer(SMALL)
    peer.exchange(headers(1))
    peer.connection.reset(peer.calls[1].stream, ErrorCode.CANCEL)
    peer.take_frames()
    updates = [sent for _ in range(20) for sent in peer.exchange(data(1, bytes(1 << 14)))]

    assert updates
    assert all((sent.type, sent.stream_id) == (WINDOW_UPDATE, 0) for sent in updates)


def test_6_9_2_a_window_of_ours_that_is_smaller_than_by_default_is_in_force_when_acknowledged():
    peer = Peer(Http2Limits(stream_window=1000, max_frame_size=1 << 14))
    assert not peer.exchange(headers(1) + data(1, bytes(900)) + headers(3) + data(3, bytes(400)))

    [sent] = peer.exchange(settings(flags=ACK))
    assert (sent.stream_id, sent.window_increment) == (1, 900)
    peer.exchange(data(3, bytes(601)))
    assert peer.resets_sent() == {3: FLOW_CONTROL_ERROR}


def test_6_9_2_a_smaller_initial_window_may_make_windows_negative():
    peer = Peer(SMALL)
    peer.exchange(headers())
    stream = peer.calls[1].stream
    peer.connection.send_data(stream, [bytes(100)], 100)
    peer.exchange(settings((4, 50)))
    assert stream.window == -50

    peer.connection.send_data(stream, [b"x" * 30], 30)
    assert not [sent for sent in peer.exchange(window_update(1, 50)) if sent.type == DATA]
    [sent] = peer.exchange(window_update(1, 10))
    assert sent.data == b"x" * 10
    [sent] = peer.exchange(settings((4, 51)))[-1:]
    assert sent.data == b"x"


def test_4_2_data_keeps_to_the_clients_frame_size():
    peer = Peer(SMALL)
    peer.exchange(headers())
    peer.connection.send_data(peer.calls[1].stream, [bytes(40_000)], 40_000)

    assert [len(sent.data) for sent in peer.take_frames()] == [16384, 16384, 7232]


def test_4_3_1_a_smaller_table_of_the_client_is_acknowledged_in_the_next_block():
    peer = Peer(SMALL)
    peer.exchange(settings((1, 0)) + headers())
    peer.connection.send_headers(peer.calls[1].stream, RESPONSE_BLOCK)
    peer.connection.finish(peer.calls[1].stream, TRAILERS_BLOCK)
    sent = [sent for sent in peer.take_frames() if sent.type == HEADERS]

    assert sent[0].data == b"\x20" + RESPONSE_BLOCK
    assert sent[1].data == TRAILERS_BLOCK
